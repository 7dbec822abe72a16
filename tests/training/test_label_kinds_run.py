"""Runs on multi-label and numeric targets: learning, logged metrics, data parallelism and resumption."""

import json
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import accumulate_gradients, validation_batches
from tiny_runs import (
    assert_same_run,
    child,
    dies_at_rename,
    exit_code,
    figures,
    kill_at_random,
    tiny_labels_recipe,
    tiny_numbers_recipe,
    tiny_sets_recipe,
)

import tercet
from tercet.checkpoint import Encoder, load_model
from tercet.cli.main import main
from tercet.config import UserError, merge, to_plain
from tercet.evaluate import MultiLabelScores, RegressionScores
from tercet.evaluate.held_out import score_held_out
from tercet.evaluate.leaderboard import RunResult, leaderboard
from tercet.evaluate.tasks.labels import score_classifier
from tercet.models import build
from tercet.training import Recipe, parse_recipe, read_recipe, train
from tercet.training.tasks.labels import LabelsTask
from tercet.training.tasks.open_task import task_of

RECIPES: dict[str, Callable[..., Recipe]] = {"numbers": tiny_numbers_recipe, "sets": tiny_sets_recipe}
FinishedRun = Callable[[str], Path]


@pytest.fixture(scope="module")
def uninterrupted_run(tmp_path_factory: pytest.TempPathFactory) -> FinishedRun:
    """Return a function that gives an uninterrupted run of a kind."""
    folder = tmp_path_factory.mktemp("own")

    def run(kind: str) -> Path:
        out = folder / kind
        return out if out.exists() else train(RECIPES[kind](folder), out, quiet=True)

    return run


def make_task(kind: str, folder: Path, **settings: Any) -> LabelsTask:
    task = task_of(RECIPES[kind](folder, **settings), progress=False)
    assert isinstance(task, LabelsTask)
    return task


def last_figures(out: Path) -> dict[str, float]:
    return {name: column[-1][1] for name, column in figures(out).items() if column}


@pytest.mark.slow
@pytest.mark.parametrize("kind", RECIPES)
def test_figures_are_those_of_evaluate(kind: str, uninterrupted_run: FinishedRun) -> None:
    out = uninterrupted_run(kind)
    task, trained_model = make_task(kind, out.parent), load_model(out / "last")
    assert isinstance(trained_model, Encoder)
    scores, last_values = (
        score_classifier(trained_model.model, trained_model.tokenizer, task.corpus.validation),
        last_figures(out),
    )
    batches = validation_batches(task)
    losses = [task.loss(trained_model.model.eval(), batch).detach() for batch in batches]
    whole = sum(losses[1:], losses[0])
    assert last_values["val/loss"] == pytest.approx(whole.mean.item(), rel=1e-5)
    assert whole.count == len(task.corpus.validation) == scores.count
    assert read_recipe(out).model == trained_model.model.spec
    if isinstance(scores, MultiLabelScores):
        assert (last_values["val/f1"], last_values["val/accuracy"]) == pytest.approx((scores.f1, scores.exact_match))
        assert "val/rmse" not in last_values
    else:
        assert isinstance(scores, RegressionScores)
        names = ("rmse", "pearson", "spearman")
        assert [last_values[f"val/{name}"] for name in names] == pytest.approx(
            [getattr(scores, name) for name in names]
        )
        head = trained_model.label_head
        assert scores.rmse == pytest.approx(whole.mean.item() ** 0.5 * head.target_std, rel=1e-4)
        assert not {"val/f1", "val/accuracy"} & last_values.keys()
    best = load_model(out / "best").card
    by = dict(figures(out)[f"val/{best.best_by}"])
    assert best.step == max(by, key=lambda step: by[step])
    sample = (out / "samples" / "step-000012.txt").read_text()
    assert ("label " in sample) == (kind == "numbers")
    assert sample.count("output ") == 5


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind", [kind if kind == "sets" else pytest.param(kind, marks=pytest.mark.exhaustive) for kind in RECIPES]
)
def test_labels_are_learned(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = RECIPES[kind](tmp_path, max_steps=150, validate_every=150, save_every=150)
    out = train(recipe, tmp_path / "run", quiet=True)
    scores = tercet.load(out).evaluate()
    if isinstance(scores, MultiLabelScores):
        assert last_figures(out)["val/loss"] < 0.15, "a constant answer costs 0.5"
        assert scores.micro_f1 > 0.9
        assert scores.micro_f1 > scores.constant_micro_f1 + 0.3
    else:
        assert isinstance(scores, RegressionScores)
        assert last_figures(out)["val/loss"] < 0.3, "a constant answer costs 1"
        assert scores.rmse < 0.6 * scores.constant_rmse
        assert scores.spearman > 0.8
    assert main(["evaluate", str(out), "--json", "--device", "cpu"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["count"] == scores.count
    # The whole file, parsed as in training; it includes the training texts.
    assert main(["evaluate", str(out), "--data", str(tmp_path / f"{kind}.jsonl"), "--json", "--device", "cpu"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] == 100
    [held_out] = score_held_out([out / "best"])
    board = leaderboard([RunResult(name="a", scores=held_out), RunResult(name="b", scores=held_out)])
    assert board.ranked_by == (
        {"regression": "rmse"} if kind == "numbers" else {"multi-label classifier": "nats_per_label"}
    )


@pytest.mark.parametrize("kind", RECIPES)
def test_accumulation_equals_one_big_batch(kind: str, tmp_path: Path) -> None:
    gradients = list[list[torch.Tensor]]()
    for micro in (16, 3):
        task = make_task(kind, tmp_path, micro_batch_size=micro)
        model = build(task.recipe.model, seed=1).eval()
        gradients.append(accumulate_gradients(task, model))
    for first, second in zip(*gradients, strict=True):
        torch.testing.assert_close(first, second, atol=1e-5, rtol=1e-5)


def text_rows(batches: list[Any]) -> list[tuple[list[int], Any]]:
    return sorted((row.tolist(), target.tolist()) for batch in batches for row, target in zip(*batch[::2], strict=True))


@pytest.mark.parametrize("kind", RECIPES)
def test_devices_share_a_step(kind: str, tmp_path: Path) -> None:
    task = make_task(kind, tmp_path, batch_size=12, micro_batch_size=1)
    rank_batches = [batch for rank in range(3) for batch in task.batches(5, rank, 3)]
    assert text_rows(rank_batches) == text_rows(task.batches(5, 0, 1))


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", pytest.param("sets", marks=pytest.mark.exhaustive)])
def test_killed_in_the_middle_of_saving(kind: str, uninterrupted_run: FinishedRun, tmp_path: Path) -> None:
    recipe, out = RECIPES[kind](uninterrupted_run(kind).parent), tmp_path / "run"

    def work() -> None:
        dies_at_rename(9, after=True)()
        train(recipe, out, quiet=True)

    assert exit_code(child(work)) == -signal.SIGKILL
    train(recipe, out, quiet=True)
    assert_same_run(uninterrupted_run(kind), out)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", RECIPES)
def test_killed_at_any_time(kind: str, uninterrupted_run: FinishedRun, tmp_path: Path) -> None:
    recipe, out = RECIPES[kind](uninterrupted_run(kind).parent), tmp_path / "run"
    assert kill_at_random(recipe, out, timed_run=tmp_path / "timed") >= 3
    train(recipe, out, quiet=True)
    assert_same_run(uninterrupted_run(kind), out)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["numbers", pytest.param("sets", marks=pytest.mark.exhaustive)])
def test_extended_run_equals_longer_run(kind: str, uninterrupted_run: FinishedRun, tmp_path: Path) -> None:
    """The scale of numbers and the labels come from the data, and are not a change of the recipe."""
    out = shutil.copytree(uninterrupted_run(kind), tmp_path / "run")
    assert main(["train", str(out), "--more", "4"]) == 0
    assert load_model(out / "last").card.step == 16


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", [pytest.param("numbers", marks=pytest.mark.exhaustive), "sets"])
def test_with_an_adapter_or_frozen_parts(kind: str, finished_run: FinishedRun, tmp_path: Path) -> None:
    settings = to_plain(RECIPES[kind](tmp_path)) | {"model": {}, "pretrained": str(finished_run("masked"))}
    for name, change in (
        ("lora", {"adapter": {"kind": "lora", "rank": 3, "targets": ["all"]}}),
        ("frozen", {"freeze": ["embedding"]}),
    ):
        out = train(parse_recipe(merge(settings, change), name=name), tmp_path / name, quiet=True)
        trained_model = load_model(out)
        assert isinstance(trained_model, Encoder)
        reloaded_model = load_model(tercet.convert(out, tmp_path / f"{name}-again", merge=name == "lora"))
        assert reloaded_model.model.spec == trained_model.model.spec
        texts = tmp_path / f"{kind}.jsonl"
        assert tercet.load(out).evaluate(texts) == tercet.load(tmp_path / f"{name}-again").evaluate(texts)


def finetune_recipe(kind: str, folder: Path, old: Path, **data: Any) -> Recipe:
    settings = to_plain(RECIPES[kind](folder)) | {"model": {}, "pretrained": str(old)}
    return parse_recipe(merge(settings, {"data": data, "training": {"max_steps": 1}}), name="continued")


@pytest.mark.slow
def test_a_head_of_another_kind_is_replaced(
    finished_run: FinishedRun, uninterrupted_run: FinishedRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for old, kind in (
        (finished_run("labels"), "numbers"),
        (uninterrupted_run("numbers"), "sets"),
        (uninterrupted_run("sets"), "numbers"),
    ):
        out = train(finetune_recipe(kind, uninterrupted_run(kind).parent, old), tmp_path / f"{old.name} {kind}")
        assert "new: classifier.weight, classifier.bias" in capsys.readouterr().err
        head = load_model(out).require("classify").label_head
        assert head.problem_type == {"numbers": "regression"}.get(kind, "multi_label_classification")


@pytest.mark.slow
def test_the_same_labels_of_another_kind_are_other_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tiny_labels_recipe(tmp_path, max_steps=1)
    old = train(recipe, tmp_path / "old", quiet=True)
    names = load_model(old).require("classify").label_head.labels
    (tmp_path / "sets.jsonl").write_text(
        "".join(json.dumps({"text": f"the {a} and the {b}", "label": [a, b]}) + "\n" for a in names for b in names)
    )
    out = train(finetune_recipe("sets", tmp_path, old), tmp_path / "run")
    assert load_model(out).require("classify").label_head.labels == names
    assert "new: classifier.weight, classifier.bias" in capsys.readouterr().err


@pytest.mark.slow
def test_fine_tuned_regressor_uses_the_new_datas_scale(uninterrupted_run: FinishedRun, tmp_path: Path) -> None:
    """Predictions are the same before the first step, although the new targets have another mean and spread."""
    (tmp_path / "b.jsonl").write_text(
        "".join(
            json.dumps({"text": f"the cat {'eats ' * (n % 5)}", "label": 9e3 + 100 * (n % 5)}) + "\n" for n in range(60)
        )
    )
    old = uninterrupted_run("numbers")
    recipe = finetune_recipe("numbers", old.parent, old, source=str(tmp_path / "b.jsonl"))
    recipe = parse_recipe(merge(to_plain(recipe), {"training": {"optimizer": {"lr": 0}}}), name="still")
    out = train(recipe, tmp_path / "run", quiet=True)
    before, after = tercet.load(old), tercet.load(out)
    heads = [run.trained_model.require("classify").label_head for run in (before, after)]
    assert heads[0].target_mean != heads[1].target_mean
    texts = ["the red cat sleeps", "a bee"]
    values = [[prediction.value for prediction in run.regress(texts)] for run in (before, after)]
    assert values[0] == pytest.approx(values[1], rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "changes", "words"),
    [
        (
            "numbers",
            {"task": {"best_by": "accuracy"}},
            "best_by=accuracy does not fit data.problem_type=regression; set",
        ),
        ("sets", {"task": {"best_by": "pearson"}}, "set it to loss or accuracy or f1"),
        ("numbers", {"training": {"label_smoothing": 0.1}}, "label_smoothing requires a single label per example"),
        ("sets", {"training": {"label_smoothing": 0.1}}, "label_smoothing requires a single label per example"),
        (
            "numbers",
            {"data": {"over": "tokens"}},
            "problem_type=regression applies to texts, and a token has one label",
        ),
        ("numbers", {"data": {"problem_type": "single_label_classification"}}, "best_by=spearman does not fit"),
        ("numbers", {"training": {"strategy": "fsdp"}}, "task.best_by=spearman requires the whole model on one device"),
    ],
)
def test_incompatible_settings_are_rejected(kind: str, changes: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as result:
        RECIPES[kind](tmp_path, changes)
    assert "\n" not in str(result.value)


@pytest.mark.parametrize("label", ['"high"', "NaN", "null", "1e400"])
def test_a_wrong_label_is_one_line_and_writes_nothing(
    label: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = "".join(f'{{"text": "text {n}", "label": {n}}}\n' for n in range(30))
    (tmp_path / "a.jsonl").write_text(f'{lines}{{"text": "last", "label": {label}}}\n')
    settings = ["data.problem_type=regression", "task.best_by=loss"]
    arguments = ["train", "classify-docstrings", "--data", str(tmp_path / "a.jsonl"), "--out", str(tmp_path / "run")]
    assert main([*arguments, *(word for setting in settings for word in ("--set", setting))]) == 2
    error = capsys.readouterr().err
    assert f"{tmp_path / 'a.jsonl'} line 31 has" in error
    assert error.count("\n") == 1
    assert not (tmp_path / "run").exists()


def test_single_label_classifier_has_default_scale(tmp_path: Path) -> None:
    head = tiny_labels_recipe(tmp_path).model.classifier  # pyright: ignore[reportAttributeAccessIssue]
    assert (head.problem_type, head.target_mean, head.target_std) == ("single_label_classification", 0, 1)
