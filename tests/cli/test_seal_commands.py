"""`tercet data seal` and `tercet evaluate --sealed` on the command line."""

import json
from pathlib import Path

import pytest

from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.tokens import Characters, Tokenizer

TEXTS = [f"line {'abcde'[n % 5] * (n % 9 + 1)} of {n}\n" for n in range(60)]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("all.txt").write_text("".join(TEXTS))
    tokenizer = Tokenizer.train(Characters(), ["".join(TEXTS)])
    for seed, name in enumerate(("first", "second")):
        stack = StackSpec(d_model=24, n_layers=1, n_heads=2)
        spec = DecoderOnlySpec(vocab_size=tokenizer.vocab_size, max_len=32, stack=stack)
        save_model(Path(name), DecoderOnly(spec, seed=seed), tokenizer, Card())


def seal(*flags: str) -> None:
    assert main(["data", "seal", "all.txt", "--documents", "line", "--fraction", "0.5", "--out", "sealed", *flags]) == 0


@pytest.mark.slow
def test_several_models_are_compared_in_one_call(capsys: pytest.CaptureFixture[str]) -> None:
    seal("--calls", "2")
    out, err = capsys.readouterr()
    assert "2 calls of `tercet evaluate --sealed` may score models on the test part" in out
    assert err == ""
    assert main(["evaluate", "first", "--sealed", "sealed", "second"]) == 0
    out, err = capsys.readouterr()
    assert out.rstrip().endswith("call 1 of 2; 2 models scored on this part so far")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert lines[0] == "bits per byte loss nats per token parameters leaked"
    assert lines[1].startswith("first ")
    assert "second (model) compared with first" in lines
    assert "model first difference 95 % interval p" in lines
    assert "first does not name its training data" in err
    assert main(["evaluate", "second", "--sealed", "sealed", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert (result["call"], result["models_scored"], len(result["models"])) == (2, 3, 1)
    assert main(["evaluate", "second", "--data", "sealed/test.txt", "--documents", "line", "--json"]) == 0
    other = json.loads(capsys.readouterr().out)
    assert result["models"][0]["scores"]["bits_per_byte"] == other["bits_per_byte"]
    assert main(["evaluate", "second", "--sealed", "sealed"]) == 2
    message = capsys.readouterr().err
    assert message.startswith("tercet: error: sealed: all 2 allowed calls are used (the last one on 20")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("data seal all.txt", "the output folder is missing; pass --out DIR"),
        ("data seal all.txt --out x --fraction 0.1 --count 3", "--count: not allowed with argument --fraction"),
        ("data seal all.txt --out x --calls 0", "--calls: 0 must be"),
        ("data seal all.txt --out x --count 3", "one running text, which has no documents to count"),
        ("data seal nosuch.txt --out x", "no such file or folder: nosuch.txt"),
        ("data seal all.txt --out x --encoding nosuch", "unknown encoding 'nosuch'"),
        ("data seal all.txt --out first", "first is not empty, and data is sealed only once"),
        ("evaluate first second", "second: several models require --sealed DIR; to compare two models"),
        ("evaluate first --sealed second", "second has no seal.json; pass a folder that `tercet data seal`"),
        ("evaluate first --sealed sealed --data all.txt", "--data does not apply to --sealed"),
        ("evaluate first --sealed sealed --compare second", "--compare does not apply to --sealed"),
        ("evaluate first frist --sealed sealed", "no such folder: frist; did you mean 'first'?"),
    ],
)
def test_mistakes_are_reported_in_one_line(arguments: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    if "--sealed sealed" in arguments:
        seal()
        capsys.readouterr()
    assert main(arguments.split()) == 2
    message = capsys.readouterr().err
    assert words in message
    assert message.count("\n") == 1
    if Path("sealed").exists():
        assert json.loads(Path("sealed/seal.json").read_text())["calls"] == []
