"""Logged training metrics, recomputed with PyTorch's losses and optimizer and by counting."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from small_runs import SMALL_RUNS, TRAINING
from torch import Tensor

from sampled_cases import sampled
from tercet.checkpoint import load_model
from tercet.checkpoint.metrics import read_metrics, training_time
from tercet.models import DecoderOnly, EncoderDecoder, EncoderOnly, build
from tercet.objectives import CausalBatch, LabeledBatch, Loss, MaskedBatch, PairBatch
from tercet.training.loop import step_actions
from tercet.training.loop.metrics_logger import MetricsLogger
from tercet.training.loop.step_actions import MetricsAction, Validation
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.tasks.open_task import task_of
from tercet.training.tasks.task import Task

SmallRun = Callable[[str], Path]
NAMES = list(SMALL_RUNS)
USUAL = set(NAMES) - {"left", "masked-documents"}  # which differ little from `right` and `masked-padded`


def build_task(name: str, folder: Path) -> Task:
    return task_of(SMALL_RUNS[name](folder), progress=False)


def column(run: Path, name: str) -> list[float]:
    return [value for _, value in read_metrics(run / "metrics.csv")[name]]


def real_tokens(task: Any, batch: Any) -> int:
    """Count ids that are not padding, which no text contains."""
    if isinstance(batch, PairBatch):
        source, target = task.corpus.source_tokenizer.pad_id, task.corpus.tokenizer.pad_id
        return int((batch.source != source).sum() + (batch.inputs != target).sum()) - finished_rows(batch)
    return int((batch.inputs != task.corpus.tokenizer.pad_id).sum())


def finished_rows(batch: PairBatch) -> int:
    """Count targets shorter than the longest, whose last input token, eos, is not read."""
    return int((batch.targets[:, -1] < 0).sum())


@pytest.mark.parametrize(
    ("name", "world"),
    [
        pytest.param(
            name, world, marks=() if world == 1 or name in ("right", "pairs", "labels") else pytest.mark.exhaustive
        )
        for name in NAMES
        for world in (1, 2)
    ],
)
def test_token_counts_equal_the_tokens_that_the_model_reads(name: str, world: int, tmp_path: Path) -> None:
    task, n_tokens = build_task(name, tmp_path), 0
    tokens_before = [task.tokens_before(step) for step in range(26)]  # several epochs, which do not end at a step
    for step in range(25):
        assert tokens_before[step] == n_tokens
        n_tokens += sum(real_tokens(task, batch) for rank in range(world) for batch in task.batches(step, rank, world))
    assert tokens_before[25] == n_tokens
    assert task.plan.epoch(25) > 1.5
    assert task.tokens_before(17) == tokens_before[17]  # back to an earlier epoch, as for another run on the same data


@pytest.mark.parametrize("name", ["left", "right", "masked-padded", "labels", "pairs"])
def test_token_counts_with_a_ramp_and_in_long_runs(name: str, tmp_path: Path) -> None:
    task = build_task(name, tmp_path)
    task.plan = replace(task.plan, unit=2, units=3, ramp=0.5, steps=20)
    n_tokens = sum(real_tokens(task, batch) for step in range(13) for batch in task.batches(step, 0, 1))
    assert task.tokens_before(13) == n_tokens
    epochs = 10**9
    all_rows = task.tokens_before(0) + change_plan(task, steps=1, unit=task.plan.n_rows).tokens_before(1)
    assert change_plan(task, unit=task.plan.n_rows).tokens_before(epochs) == epochs * all_rows  # without reading them


def change_plan(task: Task, **settings: Any) -> Task:
    task.plan = replace(task.plan, units=1, ramp=0.0, **settings)
    return task


def logits_and_targets(model: Any, batch: Any) -> tuple[Tensor, Tensor]:
    """Return the whole output of the model and its targets."""
    if isinstance(batch, CausalBatch):
        assert isinstance(model, DecoderOnly)
        logits = model(batch.inputs, token_mask=batch.token_mask, documents=batch.documents)
        return logits.flatten(0, 1), batch.targets.flatten()
    if isinstance(batch, PairBatch):
        assert isinstance(model, EncoderDecoder)
        memory = model.encode(batch.source, token_mask=batch.source_token_mask)
        hidden = model.hidden(batch.inputs, memory, memory_token_mask=batch.source_token_mask)
        return model.logits(hidden).flatten(0, 1), batch.targets.flatten()
    assert isinstance(model, EncoderOnly)
    if isinstance(batch, MaskedBatch):
        hidden = model.hidden(batch.inputs, token_mask=batch.token_mask, documents=batch.documents)
        return model.logits(hidden).flatten(0, 1)[batch.positions], batch.targets
    assert isinstance(batch, LabeledBatch)
    hidden = model.hidden(batch.inputs, token_mask=batch.token_mask)
    return model.classify(hidden, batch.token_mask), batch.targets


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    sampled(["packed", "smoothed", "masked-padded", "pairs", "documents", "left", "labels"], keep=(0, 1, 2, 3)),
)
def test_losses_and_norms_equal_those_of_a_plain_loop(name: str, small_run: SmallRun) -> None:
    run = small_run(name)
    task: Any = build_task(name, run.parent)
    spec = task.recipe.training
    model = build(task.recipe.model, seed=spec.seed).train()
    for part in model.modules():
        if isinstance(part, torch.nn.Dropout):
            assert part.p == 0.0
    optimizer = build_optimizer(spec.optimizer, model)
    losses, plain, norms = list[float](), list[float](), list[float]()
    rates = column(run, "lr")
    for step in range(9):
        logits, targets = (
            torch.cat(x) for x in zip(*(logits_and_targets(model, b) for b in task.batches(step, 0, 1)), strict=True)
        )
        loss = F.cross_entropy(logits, targets, ignore_index=-100, label_smoothing=spec.label_smoothing)
        plain.append(F.cross_entropy(logits, targets, ignore_index=-100).item())
        losses.append(loss.item())
        loss.backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        norms.append(math.sqrt(sum(float(gradient.double().square().sum()) for gradient in gradients)))
        for gradient in gradients:
            gradient.mul_(min(1.0, spec.clip_norm / norms[-1]))
        for group in optimizer.param_groups:
            group["lr"] = rates[step]
        optimizer.step()
        optimizer.zero_grad()
    assert max(norms) > spec.clip_norm
    assert column(run, "train/loss") == pytest.approx(losses, rel=1e-3)
    assert column(run, "grad_norm") == pytest.approx(norms, rel=1e-2)
    unsmoothed_losses = column(run, "train/nll")
    assert unsmoothed_losses == (pytest.approx(plain, rel=1e-3) if spec.label_smoothing else [])


@pytest.mark.parametrize("name", sampled(NAMES, keep=[n for n, name in enumerate(NAMES) if name in USUAL]))
def test_rates_epochs_and_the_card_match_the_plan(name: str, small_run: SmallRun) -> None:
    run = small_run(name)
    task = build_task(name, run.parent)
    rise = [0.02 * step / 3 for step in (1, 2, 3)]
    fall = [0.02 * (0.1 + 0.9 * (1 + math.cos(math.pi * (step - 3) / 5)) / 2) for step in range(3, 9)]
    assert column(run, "lr") == pytest.approx([*rise, *fall])
    rows = np.cumsum([0, *(len(task.plan.rows(step)[0]) for step in range(9))])
    assert column(run, "epoch") == pytest.approx([x / task.plan.n_rows for x in rows[:-1]])  # at the start of the step
    assert column(run, "tokens") == [task.tokens_before(step) for step in range(1, 10)]  # at the end of the step
    trained_model, columns = load_model(run / "last"), read_metrics(run / "metrics.csv")
    assert trained_model.card.step == 9
    assert trained_model.card.tokens_seen == task.tokens_before(9)
    assert trained_model.card.metrics == pytest.approx(
        {name: points[-1][1] for name, points in columns.items() if name.startswith("val/") and points}
    )
    parameters = {id(p): p.numel() for p in trained_model.model.parameters()}
    assert trained_model.n_parameters == sum(parameters.values())
    readme = (run / "last" / "README.md").read_text()
    assert f"| Parameters | {trained_model.n_parameters:,} |" in readme
    assert f"| Trained for | 9 steps, {trained_model.card.tokens_seen:,} tokens |" in readme
    for figure, value in trained_model.card.metrics.items():
        assert f"| {figure} | {value:.4f} |" in readme
    seconds = column(run, "seconds")
    assert seconds == sorted(seconds)


def test_seconds_and_speed_by_the_clock(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Steps take 2, 3, 4, ... seconds, each with 100 more real tokens, and every second one is logged."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(step_actions, "time", SimpleNamespace(perf_counter=lambda: clock.now))
    logged_metrics = list[tuple[int, dict[str, float]]]()
    spec = SimpleNamespace(label_smoothing=0.1)
    tensor = torch.tensor
    module: Any = SimpleNamespace(total_steps=6, spec=spec, last_norm=tensor(3.0), tokens_seen=0)
    logger = SimpleNamespace(log_metrics=lambda metrics, step: logged_metrics.append((step, dict(metrics))))
    optimizer = SimpleNamespace(param_groups=[{"lr": 0.5}, {"lr": 0.25}])
    trainer: Any = SimpleNamespace(global_step=0, loggers=[logger], optimizers=[optimizer])
    plan = build_task("left", tmp_path).plan
    action = MetricsAction(SimpleNamespace(metrics={}), plan, 2, elapsed=50.0)  # pyright: ignore[reportArgumentType]
    for step in range(1, 7):
        clock.now += step + 1
        module.tokens_seen += 100 * step
        module.last_loss = Loss(tensor(6.0), tensor(5.0), tensor(4))
        trainer.global_step = step
        action.after_step(trainer, module)
    assert [step for step, _ in logged_metrics] == [1, 2, 4, 6]
    assert [metrics["seconds"] for _, metrics in logged_metrics] == [52, 55, 64, 77]
    assert [metrics["tokens"] for _, metrics in logged_metrics] == [100, 300, 1000, 2100]
    assert "tokens_per_second" not in logged_metrics[0][1]  # there is no earlier time
    assert [metrics["tokens_per_second"] for _, metrics in logged_metrics[1:]] == [200 / 3, 700 / 9, 1100 / 13]
    assert {metrics["train/loss"] for _, metrics in logged_metrics} == {1.5}
    assert {metrics["train/nll"] for _, metrics in logged_metrics} == {1.25}
    assert {metrics["grad_norm"] for _, metrics in logged_metrics} == {3.0}
    assert {metrics["lr"] for _, metrics in logged_metrics} == {0.5}  # of the first group
    columns = {
        name: [(step, metrics[name]) for step, metrics in logged_metrics if name in metrics]
        for name in ("seconds", "tokens", "tokens_per_second")
    }
    took = training_time(columns)
    assert took is not None
    assert (took.seconds, took.steps, took.tokens) == (77, 6, 2100)
    assert took.tokens_per_second == 700 / 9  # the median


def test_counts_are_written_exactly(tmp_path: Path) -> None:
    """A long run reads more tokens than fit in nine digits."""
    tokens = 98_765_432_109
    MetricsLogger(tmp_path / "metrics.csv").log_metrics({"tokens": tokens, "train/loss": 1 / 3}, 7)
    columns = read_metrics(tmp_path / "metrics.csv")
    assert columns["tokens"] == [(7, tokens)]
    assert columns["train/loss"] == [(7, 0.333333333)]


class Counts:
    """Task whose validation is a list of sums."""

    def __init__(self, sums: list[tuple[float, int, int]], task: Task) -> None:
        self.sums, self.recipe = sums, task.recipe

    def validation_groups(self) -> list[np.ndarray]:
        return list(np.arange(len(self.sums))[:, None])

    def validation_batch(self, group: np.ndarray) -> tuple[float, int, int]:
        return self.sums[group.item()]

    def validate_batch(self, model: Any, batch: tuple[float, int, int]) -> tuple[Loss, dict[str, Tensor]]:
        nats, right, count = batch
        loss = torch.tensor(nats)
        return Loss(loss, loss, torch.tensor(count)), {"accuracy": torch.tensor(right)}

    def scores(self, model: Any) -> dict[str, float]:
        return {}


def validate_counts(sums: list[tuple[float, int, int]], folder: Path) -> dict[str, float]:
    task: Any = Counts(sums, build_task("labels", folder))
    plugin = SimpleNamespace(forward_context=torch.no_grad)
    strategy = SimpleNamespace(reduce=lambda x, reduce_op: x, broadcast=lambda x: x)
    trainer: Any = SimpleNamespace(
        global_step=9, precision_plugin=plugin, strategy=strategy, global_rank=0, world_size=1, is_global_zero=True
    )
    module: Any = SimpleNamespace(
        total_steps=9, eval=lambda: None, train=lambda: None, device=torch.device("cpu"), eval_model=None,
        spec=task.recipe.training, transfer_batch_to_device=lambda batch, device, index: batch,
    )  # fmt: skip
    validation = Validation(task)
    validation.after_step(trainer, module)
    return validation.metrics


def test_validation_sums_are_exact_beyond_float32(tmp_path: Path) -> None:
    """2^24 + 1 is not a float32, so in float32 a hundred batches of one target would be lost after a large one."""
    big = 1 << 24
    metrics = validate_counts([(2.0 * big, big, big), *[(1.0, 0, 1)] * 100], tmp_path)
    assert metrics["val/loss"] == (2 * big + 100) / (big + 100)
    assert metrics["val/accuracy"] == big / (big + 100)


def test_validation_is_a_mean_over_targets_not_over_batches(tmp_path: Path) -> None:
    metrics = validate_counts([(30.0, 2, 10), (1.0, 1, 1)], tmp_path)
    assert metrics == {"val/loss": 31 / 11, "val/accuracy": 3 / 11}


def test_validation_batches_count_truncated_pairs(tmp_path: Path) -> None:
    """A pair that is truncated because it is too long does not make the batches smaller."""
    long = "Wort " * 900
    task: Any = build_task("pairs", tmp_path)
    group_sizes = [len(group) for group in task.validation_groups()]
    pairs = task.corpus.validation
    end = len(pairs.target) + len(long)
    task.corpus = replace(
        task.corpus,
        validation=replace(
            pairs,
            target=np.append(pairs.target, np.zeros(len(long), pairs.target.dtype)),
            target_starts=np.append(pairs.target_starts, end),
            source=np.append(pairs.source, np.zeros(3, pairs.source.dtype)),
            source_starts=np.append(pairs.source_starts, pairs.source_starts[-1] + 3),
        ),
    )
    assert [len(group) for group in task.validation_groups()] == group_sizes


def test_gradient_clipping_is_active_in_the_runs(small_run: SmallRun) -> None:
    assert TRAINING["clip_norm"] < min(column(small_run("packed"), "grad_norm"))
