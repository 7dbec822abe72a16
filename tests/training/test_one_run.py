"""A single run: independence of irrelevant conditions, fatal errors, and its reports."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_runs import MUON, NO_DROPOUT, TINY, child, exit_code, figures, resume_state, tiny_recipe, weights
from torch import Tensor, nn

from tercet.checkpoint import load_model
from tercet.config import UserError
from tercet.data import Windows, prepare
from tercet.evaluate.language import score
from tercet.models import build
from tercet.objectives import CausalBatch, Loss, causal_loss, collate_windows
from tercet.training import read_recipe, train
from tercet.training.compute import choose_compile as choosing
from tercet.training.tasks import language
from tercet.training.tasks.open_task import task_of

EVAL = {"validate_every": 1, "save_every": 5, "log_every": 5, "sample_tokens": 30, "validation_tokens": 20}


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", [{"kind": "adamw"}, MUON], ids=lambda spec: spec["kind"])
def test_validation_and_samples_do_not_change_a_run(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    quiet = {"validate_every": 12, "save_every": 12, "log_every": 12, "sample_tokens": 0}
    plain_run = train(tiny_recipe(tmp_path, optimizer=optimizer, **quiet), tmp_path / "one", quiet=True)
    evaluated_run = train(tiny_recipe(tmp_path, optimizer=optimizer, **EVAL), tmp_path / "other", quiet=True)
    assert weights(plain_run) == weights(evaluated_run)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["text", "pairs", pytest.param("masked", marks=pytest.mark.exhaustive)])
def test_activation_checkpointing_changes_no_weight(
    tmp_path: Path, kind: str, finished_run: Callable[[str], Path]
) -> None:
    checkpointed_run = train(TINY[kind](tmp_path, activation_checkpointing=True), tmp_path / "again", quiet=True)
    assert weights(checkpointed_run) == weights(finished_run(kind))


@pytest.mark.slow
def test_run_is_independent_of_the_global_generator(tmp_path: Path) -> None:
    torch.manual_seed(1)
    first_run = train(tiny_recipe(tmp_path), tmp_path / "one", quiet=True)
    torch.manual_seed(2)
    np.random.default_rng(5)
    second_run = train(tiny_recipe(tmp_path), tmp_path / "other", quiet=True)
    assert weights(first_run) == weights(second_run)
    third_run = train(tiny_recipe(tmp_path, seed=2**40), tmp_path / "third", quiet=True)
    assert weights(first_run) != weights(third_run)


@pytest.mark.slow
@pytest.mark.parametrize("rows", [{"kind": "packed"}, {"kind": "padded", "stride": 8}], ids=lambda rows: rows["kind"])
def test_micro_batches_are_one_batch(tmp_path: Path, rows: dict[str, Any]) -> None:
    # Without biases: the gradient of a key's bias is rounding noise, which Adam scales to a full step.
    changes: dict[str, Any] = {
        "data": {"rows": rows, "tokenizer": {"kind": "characters", "eos": False, "pad": True}},
        "model": {"stack": {"bias": False, "dropout": {"embedding": 0.0, "attention": 0.0, "residual": 0.0}}},
    }
    runs = [
        train(tiny_recipe(tmp_path, changes, batch_size=32, micro_batch_size=size), tmp_path / str(size), quiet=True)
        for size in (32, 8)
    ]
    first, second = (load_model(run / "last").model.state_dict() for run in runs)
    for name in first:
        torch.testing.assert_close(first[name], second[name], atol=1e-5, rtol=1e-4)
    losses = [[y for _, y in figures(run)["train/loss"]] for run in runs]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.slow
def test_validation_loss_equals_evaluation(tmp_path: Path) -> None:
    out = train(tiny_recipe(tmp_path), tmp_path / "run", quiet=True)
    recipe, trained_model = read_recipe(out), load_model(out / "last")
    corpus = prepare(recipe.data)
    val_loss = figures(out)["val/loss"][-1][1]
    scores = score(trained_model.model, corpus.validation, n_bytes=corpus.validation_bytes)
    ids = corpus.validation.astype(np.int64)
    nats = []
    for first in range(0, len(ids) - 1, 8):
        row = torch.from_numpy(ids[first : first + 9])
        with torch.no_grad():
            logs = trained_model.model(row[None, :-1]).log_softmax(-1)[0]
        nats += (-logs[torch.arange(len(row) - 1), row[1:]]).tolist()
    assert val_loss == pytest.approx(np.mean(nats), rel=1e-5)
    assert scores.loss_nats_per_token == pytest.approx(val_loss, rel=1e-5)


@pytest.mark.slow
def test_validation_on_some_of_the_windows(tmp_path: Path) -> None:
    out = train(tiny_recipe(tmp_path, validation_tokens=20), tmp_path / "run", quiet=True)
    trained_model, corpus = load_model(out / "last"), prepare(read_recipe(out).data)
    windows = Windows(corpus.validation, 8)
    batch = collate_windows(windows.batch(np.array([0, len(windows) - 1])))
    with torch.no_grad():
        expected = float(causal_loss(trained_model.model, batch).mean)
    assert figures(out)["val/loss"][-1][1] == pytest.approx(expected, rel=1e-5)


@pytest.mark.slow
def test_a_bad_loss_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, steps = tmp_path / "run", 0

    def poisoned(model: nn.Module, batch: CausalBatch, *, smoothing: float = 0.0, objective: None = None) -> Loss:
        nonlocal steps
        if model.training and torch.is_grad_enabled():
            steps += 1
            if steps == 4 * 5 + 2:  # the second micro-batch of step 6
                with torch.no_grad():
                    model.get_parameter("stack.blocks.0.feedforward.up.weight")[0, 0] = float("nan")
        return causal_loss(model, batch)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(language, "causal_loss", poisoned)
    words = r"the loss is not finite at step 6: stack\.blocks\.0\.feedforward\.up\.weight has 1 non-finite values; .*lr"
    with pytest.raises(UserError, match=words):
        train(tiny_recipe(tmp_path), out, quiet=True)
    assert resume_state(out)["global_step"] == 4
    assert load_model(out / "last").card.step == 4
    assert load_model(out / "best").card.step == 3
    monkeypatch.undo()
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    uninterrupted_run = train(tiny_recipe(tmp_path), tmp_path / "whole", quiet=True)
    assert weights(train(tiny_recipe(tmp_path), out, quiet=True)) == weights(uninterrupted_run)


def test_a_bad_gradient_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def poisoned(model: nn.Module, batch: CausalBatch, *, smoothing: float = 0.0, objective: None = None) -> Loss:
        loss = causal_loss(model, batch)  # pyright: ignore[reportArgumentType]
        embedding = model.get_parameter("embedding.weight")
        return Loss(loss.total + _nan_gradient(embedding), loss.plain, loss.count)

    monkeypatch.setattr(language, "causal_loss", poisoned)
    with pytest.raises(UserError, match=r"the gradient is not finite at step 1: the gradient of embedding\.weight"):
        train(tiny_recipe(tmp_path), tmp_path / "run", quiet=True)
    assert not (tmp_path / "run" / "last").exists()


def _nan_gradient(x: Tensor) -> Tensor:
    return torch.where(x.sum() > 1e9, x.sum(), 0.0) * float("inf") if x.numel() == 0 else (x * 0).sum().sqrt()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "precision"),
    [
        ("text", "fp16"),
        ("pairs", "bf16"),
        pytest.param("text", "bf16", marks=pytest.mark.exhaustive),
        pytest.param("pairs", "fp16", marks=pytest.mark.exhaustive),
    ],
)
def test_every_precision_learns(
    tmp_path: Path, finished_run: Callable[[str], Path], family: str, precision: str
) -> None:
    out = train(TINY[family](tmp_path, precision=precision), tmp_path / "run", quiet=True)
    fp32_figures, half_figures = figures(finished_run(family)), figures(out)
    losses = [y for _, y in half_figures["train/loss"]]
    assert losses[-1] < losses[0] - 0.05
    assert losses == pytest.approx([y for _, y in fp32_figures["train/loss"]], rel=0.03)
    # Clipping follows unscaling, so the norm is as large as in fp32.
    assert half_figures["grad_norm"][0][1] == pytest.approx(fp32_figures["grad_norm"][0][1], rel=0.05)
    assert load_model(out / "last").model.embedding.weight.dtype == torch.float32


@pytest.mark.exhaustive
def test_muon_learns_in_bf16_as_it_does_in_fp32(tmp_path: Path) -> None:
    muon = {"kind": "muon", "lr": 0.05, "adam_lr": 0.01}
    fp32_losses, bf16_losses = (
        [
            y
            for _, y in figures(train(TINY["pairs"](tmp_path, optimizer=muon, precision=precision), out, quiet=True))[
                "train/loss"
            ]
        ]
        for precision, out in (("fp32", tmp_path / "whole"), ("bf16", tmp_path / "half"))
    )
    assert bf16_losses == pytest.approx(fp32_losses, rel=0.01)
    assert bf16_losses[-1] < bf16_losses[0] - 0.3


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")  # of the compiler
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.exhaustive)])
def test_compiled_is_eager(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """This tests the graphs; generating machine code would take another half minute."""
    changes = {"model": {"stack": {"bias": False, "dropout": NO_DROPOUT}}}
    eager = train(tiny_recipe(tmp_path, changes), tmp_path / "eager", quiet=True)
    compiled = tmp_path / "compiled"
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    assert exit_code(child(lambda: train(tiny_recipe(tmp_path, changes, compile="always"), compiled, quiet=True))) == 0
    eager_losses, compiled_losses = ([y for _, y in figures(run)["train/loss"]] for run in (eager, compiled))
    assert compiled_losses == pytest.approx(eager_losses, rel=1e-4)
    assert load_model(compiled).model.state_dict().keys() == load_model(eager).model.state_dict().keys()


@pytest.mark.slow
def test_failing_compiler_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no C++ compiler\nand a long story")

    monkeypatch.setattr(choosing, "compiled_loss", fail)
    monkeypatch.setattr(choosing, "MIN_TRAINING_SECONDS", 0.0)
    recipe = tiny_recipe(tmp_path, compile="auto")
    out = train(recipe, tmp_path / "run", quiet=False)
    assert '"compile": "never"' in (out / "run.json").read_text()


def test_why_it_is_not_compiled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("no C++ compiler\nand a long story")

    def seconds(*_: object, **__: object) -> float:
        return 1.0

    def choice(**training: Any) -> tuple[str, str]:
        task = task_of(tiny_recipe(tmp_path, **training), progress=False)
        return choosing.choose_compile(task, build(task.recipe.model), "fp32")

    monkeypatch.setattr(choosing, "compiled_loss", fail)
    monkeypatch.setattr(choosing, "median_seconds", seconds)
    assert choice(compile="auto", max_steps=10) == (
        "never",
        "about 40 s of training, too short for compiling to pay off",
    )
    assert choice(compile="auto", max_steps=1000) == ("never", "the compiler failed: RuntimeError: no C++ compiler")
    assert choice(compile="always") == ("always", "as requested")


@pytest.mark.parametrize(("precision", "expected"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_compiling_is_tried_in_the_precision_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str, expected: torch.dtype
) -> None:
    dtypes = set[torch.dtype]()
    task = task_of(tiny_recipe(tmp_path, compile="auto", max_steps=10), progress=False)
    model = build(task.recipe.model)
    loss = type(task).loss

    def record_dtypes(self: Any, trial: nn.Module, *args: Any, **kwargs: Any) -> Loss:
        projection = next(module for module in trial.modules() if isinstance(module, nn.Linear))
        projection.register_forward_hook(lambda _module, _inputs, output: dtypes.add(output.dtype))
        return loss(self, trial, *args, **kwargs)

    monkeypatch.setattr(type(task), "loss", record_dtypes)
    choosing.choose_compile(task, model, precision)
    assert dtypes == {expected}
