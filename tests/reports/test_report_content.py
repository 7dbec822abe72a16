"""A report of each kind of task contains the run's own numbers, and only those that exist."""

import math
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from read_page import read_page

import tercet
from tercet.checkpoint import read_card, read_spec
from tercet.checkpoint.metrics import read_metrics
from tercet.config import UserError
from tercet.notebook import format_count
from tercet.training import read_recipe
from tercet.training.planning.flops import training_flops

KINDS = {  # of each run: kind, unit of its loss, baseline, and unit of its dataset parts
    "text": ("A language model", "nats per token", "uniform over", "tokens"),
    "pairs": ("A translator", "nats per target token", "uniform over", "pairs"),
    "masked": ("A masked language model", "nats per masked token", "counting tokens", "tokens"),
    "labels": ("A classifier", "nats per label", "uniform over 5 labels", "texts"),
    "sets": ("A classifier", "nats per label", "", "texts"),
    "numbers": ("A classifier", "share of the variance", "1, predicting the mean", "texts"),
    "chat": ("A chat model", "nats per answer token", "uniform over", "conversations"),
}


RARE = ("labels", "sets", "chat")  # their tables also occur in other runs


@pytest.fixture(
    scope="module", params=[pytest.param(k, marks=pytest.mark.exhaustive if k in RARE else ()) for k in KINDS]
)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.slow
def test_a_report_contains_the_runs_numbers(runs: Mapping[str, Path], kind: str) -> None:
    run, (task, unit, guessing, parts) = runs[kind], KINDS[kind]
    page = read_page(tercet.report(run))
    card, columns = read_card(run / "best"), read_metrics(run / "metrics.csv")
    assert page.words[""].count(kind) >= 2  # the title and the heading
    assert f"{task}, " in page.words[""]
    assert "Finished after 12 steps." in page.text
    assert page.cell(f"Loss, {unit}") == f"{card.metrics['val/loss']:.4f}"
    assert guessing in page.words["scores"]
    assert ("alike" in page.words["scores"]) == ("alike" in guessing)
    lowest = min(loss for _, loss in columns["val/loss"])
    assert f"validation, lowest {lowest:.4g}" in page.words["curves"]
    for title in ("Loss", "Learning rate", "Gradient norm", "Tokens per second"):
        assert title in page.words["curves"]
    newest = max((run / "samples").iterdir()).read_text()
    assert newest in page.words["samples"]
    for step in (3, 6, 9, 12):
        assert f"After step {step}" in page.words["samples"]
    assert f"{tercet.load(run).trained_model.n_parameters:,}" == page.cell("Parameters")
    assert page.cell("Data hash") == card.data_hash
    assert parts in page.cell("Training part")
    assert parts in page.cell("Validation part")
    assert page.cell("Steps") == "12"
    assert page.cell("Tokens read").startswith(f"{int(columns['tokens'][-1][1]):,}")
    assert "FLOPs" in page.cell("Arithmetic")
    assert page.cell("Machine").startswith("cpu")
    assert page.cell("Sessions").startswith("one")
    assert page.cell("torch") == card.versions["torch"]
    assert "max_steps: 12" in page.words["recipe"]
    assert any(tag == "img" for tag, _ in page.tags)
    assert str(run.parent.parent) not in page.html  # no folder of this machine


@pytest.mark.exhaustive
def test_a_classifier_report_has_labels_and_baseline(runs: Mapping[str, Path]) -> None:
    page = read_page(tercet.report(runs["labels"]))
    assert f"{math.log(5):.4f}, uniform over 5 labels" in page.words["scores"]
    assert page.cell("Accuracy").endswith("%")
    assert page.cell("Labels") == "bee, cat, cow, duck, mouse"


@pytest.mark.slow
def test_each_task_has_its_own_scores(runs: Mapping[str, Path]) -> None:
    numbers = read_page(tercet.report(runs["numbers"]))
    assert numbers.cell("Labels") == "a number"
    assert {"RMSE", "Pearson correlation", "Spearman correlation"} <= {row[0] for row in numbers.rows}
    pairs = read_page(tercet.report(runs["pairs"]))
    assert "BLEU, greedy" in {row[0] for row in pairs.rows}
    recipe = replace(read_recipe(runs["pairs"]), model=read_spec(runs["pairs"]))
    tokens = read_metrics(runs["pairs"] / "metrics.csv")["tokens"][-1][1]
    flops = round(training_flops(recipe).per_token * tokens / 2)  # FLOPs are per token of each side
    assert pairs.cell("Arithmetic").startswith(f"{format_count(flops)}FLOPs")


@pytest.mark.slow
def test_a_report_has_evaluation_scores_if_requested(runs: Mapping[str, Path], kind: str, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    assert tercet.report(runs[kind], out, evaluate=True) == out
    scores = read_page(out).words["scores"]
    assert "Scores of tercet evaluate" in scores
    assert "was not scored" not in scores
    assert ("xz -9e" in scores) == (kind == "text")


@pytest.mark.slow
def test_the_same_run_gives_the_same_page(runs: Mapping[str, Path], tmp_path: Path) -> None:
    first, second = (tercet.load(runs["text"]).report(tmp_path / name) for name in ("one.html", "other.html"))
    assert first.read_bytes() == second.read_bytes() == tercet.report(runs["text"]).read_bytes()


@pytest.mark.slow
def test_missing_or_changed_data_is_not_counted(runs: Mapping[str, Path], tmp_path: Path) -> None:
    run = shutil.copytree(runs["text"], tmp_path / "run")
    text = runs["text"].parents[1] / "text.txt"
    before = text.read_text()
    try:
        text.write_text(before + "3 times 3 is 9.\n")
        page = read_page(tercet.report(run))
        assert "the data is missing or has changed since the training" in page.words["data"]
        assert "Training part" not in page.words["data"]
        text.unlink()
        page = read_page(tercet.report(run))
        assert "the data is missing or has changed since the training" in page.words["data"]
        assert any(tag == "img" for tag, _ in page.tags)  # shows tokens that the model knows, instead of its data
        with pytest.raises(UserError, match="which is not on this machine"):
            tercet.report(run, evaluate=True)
    finally:
        text.write_text(before)


@pytest.mark.slow
def test_fine_tuned_models_name_their_base(runs: Mapping[str, Path], tmp_path: Path) -> None:
    from tiny_runs import tiny_recipe

    from tercet.training import train

    changes = {"pretrained": str(runs["text"]), "adapter": {"kind": "lora", "rank": 2}}
    folder = runs["text"].parents[1]
    train(tiny_recipe(folder, changes, max_steps=4), tmp_path / "tuned", quiet=True)
    page = read_page(tercet.report(tmp_path / "tuned"))
    assert page.cell("Fine-tuned from") == "./text"
    assert "lora, rank 2" in page.cell("Adapter")
    assert "FLOPs" in page.cell("Arithmetic")
    assert page.cell("Steps") == "4"
