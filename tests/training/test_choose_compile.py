"""The decision of a run on one GPU to compile, by the seconds saved over the run, simulated on any device."""

from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from tiny_runs import tiny_masked_recipe, tiny_pairs_recipe, tiny_recipe

from tercet.config import UserError
from tercet.models import AnyModel, build
from tercet.training.compute import choose_compile as choosing
from tercet.training.compute import compiling
from tercet.training.compute.compiling import is_one_graph
from tercet.training.distributed.reduction import MeanReduction
from tercet.training.loop.module import TrainingModule
from tercet.training.loop.out_of_memory import MicroBatchHalving
from tercet.training.recipe.recipe import Recipe
from tercet.training.tasks.open_task import task_of
from tercet.training.tasks.task import Task


class TimedSteps:
    """Steps whose durations are set by the test, depending on what is compiled."""

    times: dict[str, float]
    launching = 0.0

    def __init__(self, task: Task, model: AnyModel, device: torch.device, precision: str) -> None:
        self.model = model

    def seconds(self, loss: Any) -> float:
        return self.times[loss if isinstance(loss, str) else "never"]

    def seconds_of_update(self) -> float:
        return 0.002

    def run_all(self, loss: Any) -> None:
        pass

    def launch_share(self, loss: Any) -> float:
        return self.launching


@pytest.fixture(autouse=True)
def _on_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choosing, "is_one_graph", lambda spec, device: is_one_graph(spec, "cuda"))
    monkeypatch.setattr(choosing, "compiled_loss", lambda task, model, device, mode: mode)
    monkeypatch.setattr(choosing, "_TrialSteps", TimedSteps)
    monkeypatch.setattr(TimedSteps, "times", {"never": 0.024, "always": 0.014, "cuda_graphs": 0.010}, raising=False)


def choice(recipe: Recipe) -> tuple[str, str]:
    task = task_of(recipe, progress=False)
    return choosing.choose_compile(task, build(task.recipe.model), "fp32")


def test_a_run_compiles_if_its_seconds_are_more_than_the_compilers(tmp_path: Path) -> None:
    """For one block, compiling is estimated at 13 s; a run of 43 s saves about a third of its time."""
    assert choice(tiny_recipe(tmp_path, compile="auto", max_steps=1600)) == (
        "never", "about 42 s of training, too short for compiling to pay off"
    )  # fmt: skip
    assert choice(tiny_recipe(tmp_path, compile="auto", max_steps=1700)) == (
        "always",
        "16 ms per step compiled, 26 ms not compiled",
    )
    assert choice(tiny_recipe(tmp_path, compile="never", max_steps=1700)) == ("never", "as requested")


def test_slow_compilation_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 17.1, 0.0, 16.9])
    monkeypatch.setattr(choosing, "clock", lambda: next(clock))
    assert choice(tiny_recipe(tmp_path, compile="auto", max_steps=1700))[0] == "never"  # which saves 17.0 s
    assert choice(tiny_recipe(tmp_path, compile="auto", max_steps=1700))[0] == "always"


@pytest.mark.parametrize(
    ("message", "reason"),
    [("", "RuntimeError"), (" \n", "RuntimeError"), ("\nno C compiler\nTraceback", "RuntimeError: no C compiler")],
)
def test_any_error_of_the_compiler_leaves_a_run_that_is_not_compiled(
    message: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "compiled_loss", mock.Mock(side_effect=RuntimeError(message)))
    assert choice(tiny_recipe(tmp_path, compile="auto", max_steps=5000)) == (
        "never", f"the compiler failed: {reason}"
    )  # fmt: skip


def test_optimizer_time_counts_in_the_decision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TimedSteps, "seconds_of_update", lambda self: 0.080)
    assert choice(tiny_recipe(tmp_path, compile="auto", max_steps=5000)) == (
        "never",
        "94 ms per step compiled, 104 ms not compiled",
    )


@pytest.mark.parametrize(("launching", "replayed", "expected"), [
    (0.9, 0.010, "cuda_graphs"), (0.9, 0.0129, "always"), (0.7, 0.010, "always"),
])  # fmt: skip
def test_cuda_graphs_are_tried_if_launches_dominate(
    launching: float, replayed: float, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedSteps, "launching", launching)
    monkeypatch.setitem(TimedSteps.times, "cuda_graphs", replayed)
    assert choice(tiny_recipe(tmp_path, compile="auto", max_steps=5000))[0] == expected


def test_changing_shapes_are_compiled_once_and_have_no_cuda_graphs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TimedSteps, "launching", 1.0)
    assert choice(tiny_pairs_recipe(tmp_path, compile="auto", max_steps=5000))[0] == "always"
    with pytest.raises(UserError, match="steps of equal shapes"):
        choice(tiny_pairs_recipe(tmp_path, compile="cuda_graphs"))
    assert choice(tiny_masked_recipe(tmp_path, compile="cuda_graphs")) == ("cuda_graphs", "as requested")


@pytest.mark.parametrize(
    "settings", [{"exact": True}, {"activation_checkpointing": True}, {"strategy": "fsdp", "devices": 2}]
)
def test_model_with_several_graphs_has_no_cuda_graphs(settings: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UserError, match="compile=cuda_graphs needs one CUDA device"):
        choice(tiny_recipe(tmp_path, compile="cuda_graphs", **settings))


def test_blocks_or_one_graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = list[dict[str, Any]]()
    monkeypatch.setattr(compiling, "compile_loss", lambda loss, **mode: calls.append(mode) or loss)
    monkeypatch.setattr(compiling, "compile_in_place", lambda model, **mode: calls.append(mode))

    def compiled(recipe: Recipe, device: str, mode: Any = "always") -> dict[str, Any]:
        task = task_of(recipe, progress=False)
        assert compiling.compiled_loss(task, build(task.recipe.model), device, mode) == task.loss
        return calls.pop()

    plain = tiny_recipe(tmp_path)
    assert compiled(plain, "cuda") == {"dynamic": False, "cuda_graphs": False}
    assert compiled(plain, "cuda", "cuda_graphs") == {"dynamic": False, "cuda_graphs": True}
    assert compiled(tiny_pairs_recipe(tmp_path), "cuda") == {"dynamic": True, "cuda_graphs": False}
    for recipe, device in (
        (plain, "cpu"),
        (tiny_recipe(tmp_path, devices=2), "cuda"),
        (tiny_recipe(tmp_path, activation_checkpointing=True), "cuda"),
    ):
        assert compiled(recipe, device) == {"sharded": False}


def test_gradients_of_a_replayed_pass_are_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The backward pass overwrites the gradients of the previous pass, as the replay of a CUDA graph does."""
    task = task_of(tiny_recipe(tmp_path), progress=False)

    def learn(*, replayed: bool) -> list[torch.Tensor]:
        module = TrainingModule(
            build(task.recipe.model).eval(), task, MicroBatchHalving(task, exact=False, save=lambda *_: None),
            reuses_gradients=replayed,
        )  # fmt: skip
        module.reduction = MeanReduction(module, 1)
        static = [torch.zeros_like(p) for p in module.model.parameters()]

        def replay(loss: torch.Tensor) -> None:
            new = torch.autograd.grad(loss, list(module.model.parameters()))
            for p, memory, gradient in zip(module.model.parameters(), static, new, strict=True):
                memory.copy_(gradient)
                if p.grad is None:
                    p.grad = memory
                else:
                    p.grad += memory

        monkeypatch.setattr(module, "manual_backward", replay if replayed else lambda loss: loss.backward())
        module._pass(task.batches(0, 0, 1), 0)  # pyright: ignore[reportPrivateUsage]
        return [p.grad for p in module.model.parameters() if p.grad is not None]

    torch.testing.assert_close(learn(replayed=True), learn(replayed=False))
