"""`tercet convert`: a path on stdout, or one error line and no written file."""

from pathlib import Path

import pytest

from tercet.checkpoint import Card, load_model, save_model
from tercet.cli.main import main
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.nn import ALiBi, Learned, Position
from tercet.tokens import Characters, Tokenizer


def run_folder(folder: Path, position: Position) -> Path:
    tokenizer = Tokenizer.train(Characters(), ["abc"])
    stack = StackSpec(d_model=8, n_layers=1, n_heads=2, d_ff=13, position=position)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=7, stack=stack))
    save_model(folder / "best", model, tokenizer, Card())
    return folder


def test_conversion_round_trip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = run_folder(tmp_path / "run", Learned())
    out, imported = tmp_path / "out", tmp_path / "back"
    assert main(["convert", str(source), str(out), "--to", "hf"]) == 0
    assert capsys.readouterr() == (f"{out}\n", "")
    assert main(["convert", str(out), str(imported)]) == 0
    assert capsys.readouterr() == (f"{imported}\n", "")
    original, converted = load_model(source), load_model(imported)
    assert original.model.spec == converted.model.spec
    assert original.tokenizer.encode("abccba") == converted.tokenizer.encode("abccba")
    assert main(["convert", str(source), str(out), "--force"]) == 0
    assert capsys.readouterr() == (f"{out}\n", "")
    assert (out / "card.json").is_file()
    assert not (out / "tokenizer_config.json").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("run out --to hf", "position is alibi, which GPT-2 of transformers does not support; a model"),
        ("run out --to hg", "--to hg is unknown; did you mean 'hf'?"),
        ("run run", "run is the model to convert; choose another folder"),
        ("run full", "full is not empty; choose another folder, or pass --force to replace the model in it"),
        ("rum out", "no such folder: rum; did you mean 'run'?"),
        ("run", "the following arguments are required: DST"),
    ],
)
def test_a_mistake_is_one_line_and_nothing_is_written(
    arguments: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run_folder(Path("run"), ALiBi())
    Path("full").mkdir()
    Path("full", "a").write_text("")
    before = sorted(tmp_path.rglob("*"))
    assert main(["convert", *arguments.split()]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert words in err
    assert sorted(tmp_path.rglob("*")) == before
