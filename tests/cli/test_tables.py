"""The verbs that read texts accept a column of a table, and list the columns of a table in one error line."""

import gzip
import json
from pathlib import Path

import pytest
import torch

from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.models import (
    AnyModel,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.nn.specs import Rotary
from tercet.tokens import Tokenizer, WordPiece

TEXTS = ["the cat [MASK] on the mat", "a dog, and a [MASK]", 'the "dog" [MASK]']
STACK = StackSpec(d_model=24, n_layers=1, n_heads=3, d_ff=41, position=Rotary())


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return a model of each family, with random weights."""
    torch.manual_seed(4)
    folder, tokenizer = tmp_path_factory.mktemp("runs"), Tokenizer.train(WordPiece(vocab_size=60), TEXTS)
    sizes = {"vocab_size": tokenizer.vocab_size, "max_len": 23}
    models: dict[str, AnyModel] = {
        "bert": EncoderOnly(EncoderOnlySpec(**sizes, stack=STACK)),
        "gpt": DecoderOnly(DecoderOnlySpec(**sizes, stack=STACK)),
        "translator": EncoderDecoder(EncoderDecoderSpec(**sizes, encoder=STACK, decoder=STACK)),
    }
    for name, model in models.items():
        save_model(folder / name, model, tokenizer, Card(name=name))
    return {name: str(folder / name) for name in models}


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    quoted = ['"' + text.replace('"', '""') + '"' for text in TEXTS]
    Path("a.csv").write_text("id,body\n" + "".join(f"{n},{text}\n" for n, text in enumerate(quoted)))
    Path("a.txt").write_text("".join(text + "\n" for text in TEXTS))
    Path("masks.csv").write_text('n,text\n1,"the [MASK], sat"\n2,no mask\n')
    return tmp_path


def run_command(arguments: str, capsys: pytest.CaptureFixture[str], *, code: int = 0) -> tuple[str, str]:
    exit_code = main(arguments.split())
    out, err = capsys.readouterr()
    assert exit_code == code, err
    return out, err


@pytest.mark.parametrize(
    "command",
    [
        "translate {translator} --quiet --beam 1 --max-extra 3 --input",
        "generate {gpt} --max-new-tokens 3 --json --input",
        "fill {bert} --json --input",
        "evaluate {gpt} --documents line --json --data",
        "evaluate {bert} --documents line --json --data",
    ],
)
def test_column_gives_the_same_output_as_its_texts(
    command: str, runs: dict[str, str], tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = command.format(**runs)
    lines, _ = run_command(f"{command} a.txt", capsys)
    column, _ = run_command(f"{command} a.csv --text-field body", capsys)
    assert column == lines
    _, err = run_command(f"{command} a.csv", capsys, code=2)
    assert err.count("\n") == 1
    assert "no column 'text'" in err
    assert "id" in err
    assert "body" in err


def test_text_without_mask_is_reported_with_its_number(
    runs: dict[str, str], tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run_command(f"fill {runs['bert']} --input masks.csv --json", capsys, code=2)
    assert [len(json.loads(line)["masks"]) for line in out.splitlines()] == [1]
    assert "masks.csv text 2: no mask in 'no mask'" in err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("fill {bert}", "pass a TEXT"),
        ("fill {bert} a[MASK] --input a.csv", "TEXT cannot be combined with --input"),
        ("generate {gpt} --text-field body", "--text-field requires --input FILE"),
        ("evaluate {gpt} --documents line", "--documents requires --data; add it"),
        ("evaluate {translator} --source a.csv --text-field x", "--text-field requires --data; add it"),
        ("generate {gpt} --input none.csv", "cannot read it"),
        ("train demo --data a.csv --quiet", "no column 'text'; known: body, id"),
    ],
)
def test_mistakes(
    arguments: str, words: str, runs: dict[str, str], tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out, err = run_command(arguments.format(**runs), capsys, code=2)
    assert out == ""
    assert err.count("\n") == 1
    assert words in err
    assert not Path("runs").exists()


def test_the_flags_are_keys_of_the_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = run_command("train demo --data a.csv --text-field body --documents blank_line --print-config", capsys)
    assert "text_field: body" in out
    assert "documents: blank_line" in out


@pytest.mark.slow
@pytest.mark.usefixtures("tables")
def test_lines_of_markdown_are_reported(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    Path("notes.md").write_text("the cat\n\non the mat\n")
    _, err = run_command(f"embed {runs['bert']} --input notes.md --output lines.jsonl", capsys)
    assert "notes.md is read line by line; to read it as one text, pass --documents file" in err
    _, err = run_command(f"embed {runs['bert']} --input notes.md --documents file --output one.jsonl", capsys)
    assert "line by line" not in err
    assert [len(Path(name).read_text().splitlines()) for name in ("lines.jsonl", "one.jsonl")] == [3, 1]


@pytest.mark.slow
@pytest.mark.usefixtures("tables")
@pytest.mark.parametrize("name", ["a.txt.gz", "a.gz", "a.csv.gz", "a.jsonl.gz"])
def test_compressed_input_is_read_as_what_it_contains(
    name: str, runs: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    data = {"csv": "text\nthe cat\n", "jsonl": '{"text": "the cat"}\n'}.get(name.split(".")[1], "the cat\n")
    Path(name).write_bytes(gzip.compress(data.encode()))
    Path("plain.txt").write_text("the cat\n")
    run_command(f"embed {runs['bert']} --input {name} --output vectors.jsonl", capsys)
    run_command(f"embed {runs['bert']} --input plain.txt --output plain.jsonl", capsys)
    compressed, plain = (json.loads(Path(f"{name}.jsonl").read_text()) for name in ("vectors", "plain"))
    assert compressed["vector"] == plain["vector"]
