"""`tercet evaluate --metric`: the guide's metrics on models of each kind, in tables, JSON, comparisons and Python."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch
from package_of_guides import ALLOW, forget, write_package

import tercet
from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.custom_code import ALLOWED
from tercet.models import (
    Classifier,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.tokens import BPE, Tokenizer, WordPiece

SCHEMA = json.loads((Path(__file__).parents[2] / "docs/reference/schemas/evaluate.schema.json").read_text())
TEXTS = ["the cat sat on the mat", "a dog ran", "the cats and the dogs", "mats", "the dog sat on a mat"]
LABELS = ("ham", "spam")
FBETA, RATIO, SURPRISE = "my_package.fbeta:FBeta", "my_package.lengths:LengthRatio", "my_package.surprise:Surprise"
STACK = StackSpec(d_model=24, n_layers=1, n_heads=2)
HEADS = {
    "texts": Classifier(labels=LABELS),
    "words": Classifier(labels=LABELS, over="tokens"),
    "sets": Classifier(labels=LABELS, problem_type="multi_label_classification"),
    "numbers": Classifier(labels=("stars",), problem_type="regression", target_mean=10.0, target_std=2.0),
}
KINDS = """
from tercet.evaluate import CustomMetric
from tercet.spec import spec


@spec
class Seen(CustomMetric):
    def score(self, predictions, references):
        inner = [{type(word).__name__ for word in x} if isinstance(x, list) else () for x in references]
        kinds = {":".join([type(x).__name__, *words]) for x, words in zip(references, inner)}
        return {name: float(len(references)) for name in kinds}
"""
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    site = tmp_path_factory.mktemp("site")
    write_package(site)
    (site / "my_package" / "kinds.py").write_text(KINDS)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(site)
        yield
    forget()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with data, and with tiny models of random weights."""
    folder = tmp_path_factory.mktemp("models")
    for name in ("source", "target"):
        (folder / f"{name}.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    data = {
        "texts": "text,label\n" + "".join(f"{text},{LABELS[i % 2]}\n" for i, text in enumerate(TEXTS)),
        "numbers": "text,label\n" + "".join(f"{text},{i}\n" for i, text in enumerate(TEXTS)),
    }
    for name, content in data.items():
        (folder / f"{name}.csv").write_text(content)
    lines = [{"text": text, "label": list(LABELS[: i % 3])} for i, text in enumerate(TEXTS)]
    (folder / "sets.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = [{"text": text.split(), "label": [LABELS[len(word) % 2] for word in text.split()]} for text in TEXTS]
    (folder / "words.jsonl").write_text("".join(json.dumps(line) + "\n" for line in words))
    reader = Tokenizer.train(WordPiece(vocab_size=80), TEXTS)
    sizes: dict[str, Any] = {"vocab_size": reader.vocab_size, "max_len": 24}
    torch.manual_seed(4)
    translator = EncoderDecoder(EncoderDecoderSpec(**sizes, encoder=STACK, decoder=STACK))
    save_model(folder / "translator", translator, reader, Card(name="translator"))
    for name, head in HEADS.items():
        spec = EncoderOnlySpec(**sizes, stack=STACK, masked_head=None, classifier=head)
        save_model(folder / name, EncoderOnly(spec, seed=1), reader, Card(name=name))
    writer = Tokenizer.train(BPE(vocab_size=300, pad=True), TEXTS)
    gpt = DecoderOnly(DecoderOnlySpec(vocab_size=writer.vocab_size, max_len=64, stack=STACK))
    save_model(folder / "gpt", gpt, writer, Card(name="gpt"))
    bert = EncoderOnly(EncoderOnlySpec(**sizes, stack=STACK), seed=1)
    save_model(folder / "bert", bert, reader, Card(name="bert"))
    encoder = EncoderOnly(EncoderOnlySpec(**sizes, stack=STACK, masked_head=None), seed=1)
    save_model(folder / "encoder", encoder, reader, Card(name="encoder"))
    return folder


@pytest.fixture(autouse=True)
def no_permission(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    monkeypatch.setenv(ALLOWED, "")
    forget()


def evaluate(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["evaluate", *words, "--json", *ALLOW]) == 0
    result = json.loads(capsys.readouterr().out)
    jsonschema.validate(result, SCHEMA)
    return result


def test_classifier_reports_metrics_with_intervals(capsys: pytest.CaptureFixture[str]) -> None:
    data = ("texts", "--data", "texts.csv")
    result = evaluate(capsys, *data, "--metric", f"{{kind: {FBETA!r}, label: ham, beta: 2}}")
    score = result["metrics"]["FBeta.recall"]
    assert score["value"] == pytest.approx(result["per_label"]["ham"]["recall"])
    assert score["interval"][0] <= score["value"] <= score["interval"][1]
    assert main(["evaluate", *data, "--metric", FBETA, *ALLOW]) == 0
    table = capsys.readouterr().out
    assert "FBeta.recall" in table
    assert evaluate(capsys, *data)["metrics"] == {}


def test_comparison_has_the_difference_of_metrics(capsys: pytest.CaptureFixture[str]) -> None:
    data = ("texts", "--data", "texts.csv", "--compare", "texts")
    compared = evaluate(capsys, *data, "--metric", FBETA)["compared"]
    assert {"accuracy", "FBeta.recall"} <= set(compared)
    assert compared["FBeta.recall"]["difference"] == 0.0


@pytest.mark.parametrize("name", ["gpt", "bert"])
def test_model_of_text_reports_metrics_and_compares_them(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    two = ("--metric", SURPRISE, "--metric", f"{{kind: {SURPRISE!r}, bits: 2}}")
    data = (name, "--data", "source.txt", "--documents", "line", "--compare", name, *two)
    result = evaluate(capsys, *data)
    names = {f"Surprise(bits={bits}).{score}" for bits in ("10.0", "2.0") for score in ("per_word", "rare")}
    assert set(result["metrics"]) == names
    assert result["metrics"]["Surprise(bits=2.0).per_word"]["value"] > 0
    assert {name: row["difference"] for name, row in result["compared"].items() if name in names} == dict.fromkeys(
        names, 0
    )
    assert main(["evaluate", *data, *ALLOW]) == 0
    assert capsys.readouterr().out.count("Surprise(bits=2.0).rare") == 2


def test_translator_reports_metrics_and_compares_them(capsys: pytest.CaptureFixture[str]) -> None:
    data = ("translator", "--source", "source.txt", "--target", "target.txt", "--beam", "1", "--metric", RATIO)
    result = evaluate(capsys, *data, "--compare", "translator")
    assert result["metrics"]["LengthRatio"]["value"] >= 0
    assert result["compared"]["LengthRatio"]["difference"] == 0.0
    assert main(["evaluate", *data, "--compare", "translator", *ALLOW]) == 0
    assert capsys.readouterr().out.count("LengthRatio") == 2


@pytest.mark.parametrize(
    ("name", "data", "kinds"),
    [
        ("texts", "texts.csv", {"str"}),
        ("numbers", "numbers.csv", {"float"}),
        ("words", "words.jsonl", {"list:str"}),
        ("sets", "sets.jsonl", {"list", "list:str"}),
    ],
)
def test_each_kind_of_labels_has_its_documented_form(
    name: str, data: str, kinds: set[str], capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = evaluate(capsys, name, "--data", data, "--metric", "my_package.kinds:Seen")["metrics"]
    assert {key: score["value"] for key, score in metrics.items()} == {f"Seen.{kind}": 5.0 for kind in kinds}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("encoder --metric my_package.fbeta:FBeta --allow-code my_package", "--metric does not apply to encoder"),
        ("gpt --data source.txt --metric my_package.fbeta:FBeta --allow-code my_package", "my_package.fbeta:FBeta: "),
        ("texts --data texts.csv --metric my_package.fbeta:FBeta", "is code of the package my_package, which is not"),
        ("texts --metric my_package.fbeta:FBet --allow-code my_package", "has no class FBet"),
        ("texts --per-line --metric my_package.fbeta:FBeta", "--metric does not apply to --per-line"),
    ],
)
def test_wrong_use_is_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", *words.split()]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_run_evaluates_metrics_from_python(folder: Path) -> None:
    run = tercet.load(folder / "texts", allow_code="my_package")
    from my_package.fbeta import FBeta  # pyright: ignore

    scores = run.evaluate(folder / "texts.csv", metrics=[FBeta(label="ham")])
    by_path = run.evaluate(folder / "texts.csv", metrics=[f"{{kind: {FBETA!r}, label: ham}}"])
    assert scores.metrics == by_path.metrics  # pyright: ignore
    assert set(scores.metrics) == {"FBeta.f", "FBeta.precision", "FBeta.recall"}  # pyright: ignore
