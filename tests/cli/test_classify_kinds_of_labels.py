"""`tercet classify` and its Python API on multi-label models and regressors: types, columns, JSON and errors."""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import numpy as np
import pytest
import torch

import tercet
from tercet.checkpoint import Card, save_model
from tercet.cli.main import main
from tercet.config import UserError
from tercet.encoding import MultiLabelClassification, Regression
from tercet.kernel import warm_up
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.tokens import Tokenizer, WordPiece

LINES = ["the cat sat on the mat", "a dog ran", "", "the dog and the cats sat and sat and ran", "unbelievable mats"]
LABELS = ("bad", "fair", "good")
HEADS = {
    "texts": Classifier(labels=LABELS),
    "sets": Classifier(labels=LABELS, problem_type="multi_label_classification"),
    "numbers": Classifier(labels=("stars",), problem_type="regression", target_mean=1e4, target_std=20.0),
    "words": Classifier(labels=LABELS, over="tokens"),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    warm_up()  # otherwise the first verb reports that it compiles them
    folder, tokenizer = tmp_path_factory.mktemp("runs"), Tokenizer.train(WordPiece(vocab_size=80), LINES)
    stack = StackSpec(d_model=24, n_layers=1, n_heads=3, d_ff=41)
    for name, head in HEADS.items():
        spec = EncoderOnlySpec(
            vocab_size=tokenizer.vocab_size, max_len=23, stack=stack, masked_head=None, classifier=head
        )
        model = EncoderOnly(spec)
        torch.manual_seed(4)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.3)
        save_model(folder / name, model, tokenizer, Card(name=name))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", str(folder / "cache"))
        yield {name: str(folder / name) for name in HEADS}


def run_command(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> list[str]:
    text = "".join(line + "\n" for line in LINES)
    stdin = io.TextIOWrapper(io.BytesIO(text.encode()), encoding="utf-8")
    with mock.patch("sys.stdin", stdin):
        assert main(["classify", *arguments, "--device", "cpu"]) == 0
    return capsys.readouterr().out.splitlines()


def unbatched_logits(run: tercet.Run) -> np.ndarray:
    """Return the logits of each text, computed without batching, of shape (N, L)."""
    model, tokenizer = run.trained_model.require("classify").model, run.tokenizer
    rows = list[np.ndarray]()
    for line in LINES:
        with torch.no_grad():
            ids = torch.tensor([[tokenizer.bos_id, *tokenizer.encode(line), tokenizer.eos_id]])
            rows.append(model.classify(model.hidden(ids))[0].double().numpy())
    return np.stack(rows)


def test_sets_in_python(runs: dict[str, str]) -> None:
    run = tercet.load(runs["sets"])
    p = 1 / (1 + np.exp(-unbatched_logits(run)))
    for threshold in (0.2, 0.5, 0.8):
        for row, answer in zip(p, run.classify_multi_label(LINES, threshold=threshold), strict=True):
            assert isinstance(answer, MultiLabelClassification)
            assert set(answer.labels) == {label for label, x in zip(LABELS, row, strict=True) if x > threshold}
            assert [answer.scores[label] for label in LABELS] == pytest.approx(row.tolist(), abs=1e-5)
            assert list(answer.scores.values()) == sorted(answer.scores.values(), reverse=True)
            assert list(answer.labels) == list(answer.scores)[: len(answer.labels)]
    assert run.classify_multi_label(LINES[0]).scores == run.classify_multi_label(LINES[:1])[0].scores


def test_numbers_in_python(runs: dict[str, str]) -> None:
    run = tercet.load(runs["numbers"])
    answers = run.regress(LINES)
    assert all(isinstance(answer, Regression) for answer in answers)
    assert [answer.value for answer in answers] == pytest.approx(
        (1e4 + 20 * unbatched_logits(run)[:, 0]).tolist(), rel=1e-7
    )
    assert run.regress(LINES[1]).value == pytest.approx(answers[1].value, rel=1e-7)
    assert run.regress("the cat sat " * 30).chunks > 1
    assert run.regress("the cat sat " * 30, truncate=True).truncated


@pytest.mark.slow
def test_sets_on_the_command_line(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    expected = tercet.load(runs["sets"]).classify_multi_label(LINES, threshold=0.6)
    lines = run_command([runs["sets"], "--threshold", "0.6"], capsys)
    for line, classification in zip(lines, expected, strict=True):
        cells = "\t".join(f"{label}\t{classification.scores[label]:.4f}" for label in classification.labels)
        assert line == (cells or "-")
    assert run_command([runs["sets"], "--threshold", "1"], capsys) == ["-"] * 5
    all_scores = run_command([runs["sets"], "--scores"], capsys)
    assert [line.count("\t") for line in all_scores] == [5] * 5
    for line, classification in zip(run_command([runs["sets"], "--json", "--scores"], capsys), expected, strict=True):
        answer = json.loads(line)
        assert answer["scores"] == pytest.approx(classification.scores, abs=1e-6)
        assert answer["labels"] == {label: p for label, p in answer["scores"].items() if p > 0.5}
    assert set(json.loads(run_command([runs["sets"], "--json"], capsys)[0])) == {"text", "labels", "truncated"}


def test_numbers_on_the_command_line(runs: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    expected = tercet.load(runs["numbers"]).regress(LINES)
    assert run_command([runs["numbers"]], capsys) == [f"{answer.value:.6g}" for answer in expected]
    found = [json.loads(line) for line in run_command([runs["numbers"], "--json"], capsys)]
    assert [answer["value"] for answer in found] == pytest.approx([answer.value for answer in expected], rel=1e-7)
    assert [answer["text"] for answer in found] == LINES


@pytest.mark.parametrize(
    ("kind", "flags", "words"),
    [
        ("texts", ["--threshold", "0.3"], "several labels per text, but .* predicts one label"),
        ("words", ["--threshold", "0.3"], "several labels per text, but .* predicts one label"),
        ("numbers", ["--threshold", "0.3"], "several labels per text, but .* predicts a number"),
        ("numbers", ["--scores"], "--scores prints probabilities of labels, but .* predicts a number; leave it out"),
        ("sets", ["--threshold", "2"], "--threshold"),
    ],
)
def test_flags_that_do_not_fit(
    kind: str, flags: list[str], words: str, runs: dict[str, str], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "a.txt").write_text("a\n")
    arguments = ["classify", runs[kind], *flags, "--input", str(tmp_path / "a.txt"), "--device", "cpu"]
    assert main(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert re.search(words, error), error
    assert error.count("\n") == 1


def test_another_verb_is_named(runs: dict[str, str]) -> None:
    for kind, verb, words in (
        ("sets", "classify", r"predicts any number of labels for texts; use classify_multi_label\(\)"),
        ("numbers", "classify", r"predicts numbers for texts; use regress\(\)"),
        ("texts", "regress", r"predicts labels for texts; use classify\(\)"),
        ("numbers", "classify_multi_label", r"use regress\(\)"),
    ):
        with pytest.raises(UserError, match=words):
            getattr(tercet.load(runs[kind]), verb)("a")
    with pytest.raises(UserError, match="assigns labels to tokens, not to texts"):
        tercet.load(runs["words"]).regress("a")
