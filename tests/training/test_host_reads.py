"""A step on a GPU does not wait for it unless its metrics are logged: no number is read from a tensor."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import TINY, tiny_numbers_recipe
from torch.utils._python_dispatch import TorchDispatchMode

from tercet.models import build
from tercet.training.distributed.reduction import MeanReduction
from tercet.training.loop.module import MovingAverage, TrainingModule
from tercet.training.loop.out_of_memory import MicroBatchHalving
from tercet.training.optim import adamw
from tercet.training.optim.optimizers import base_rates, build_optimizer
from tercet.training.recipe.recipe import Recipe
from tercet.training.tasks.open_task import task_of

# Operations that make the host wait for a GPU: reading a number, a size that depends on values, and copying a number to
# the device from memory that is not pinned.
WAITS = (
    "_local_scalar_dense", "nonzero", "masked_select", "equal", "_unique2", "unique_dim", "repeat_interleave.Tensor",
    "lift_fresh",
)  # fmt: skip


class HostReads(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.reads = list[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func).removeprefix("aten.")
        if name.startswith(WAITS) or (name.startswith("index") and is_chosen_by_mask(args)):
            self.reads.append(name)
        return func(*args, **(kwargs or {}))


def is_chosen_by_mask(args: Any) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(index, torch.Tensor) and index.dtype == torch.bool for index in indices)


def reads(recipe: Recipe, monkeypatch: pytest.MonkeyPatch, *, steps: int) -> list[list[str]]:
    """Return the reads of each step of a module that reports a GPU as its device, without CPU kernels."""
    monkeypatch.setattr(adamw, "supports_gradients", lambda *_, **__: False)
    task = task_of(recipe, progress=False)
    module = TrainingModule(build(task.recipe.model), task, MicroBatchHalving(task, exact=False, save=lambda *_: None))
    optimizer = build_optimizer(recipe.training.optimizer, module.model)
    module.base_rates, module.reduction = base_rates(optimizer), MeanReduction(module, 1)
    place = SimpleNamespace(step=0)
    monkeypatch.setattr(TrainingModule, "device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(TrainingModule, "global_step", property(lambda self: place.step))
    monkeypatch.setattr(TrainingModule, "trainer", SimpleNamespace(precision="bf16-mixed"))
    monkeypatch.setattr(module, "optimizers", lambda: optimizer)
    monkeypatch.setattr(module, "manual_backward", lambda loss: loss.backward())
    step = optimizer.step

    def clipped_step() -> None:  # as Lightning calls it
        module.on_before_optimizer_step(optimizer)
        step()

    monkeypatch.setattr(optimizer, "step", clipped_step)
    reads_by_step = list[list[str]]()
    for place.step in range(steps):
        batches = task.batches(place.step, 0, 1)
        with HostReads() as mode:
            module.training_step(batches, place.step)
            if place.step and not mode.reads:
                assert module.current_loss > 0  # the value of a progress bar causes no wait
        reads_by_step.append(mode.reads)
    return reads_by_step


OPTIMIZERS = {"muon": {"kind": "muon"}, "adamw": {"kind": "adamw"}}
CASES = {**TINY, "a number": tiny_numbers_recipe}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "optimizer"),
    [
        pytest.param(family, optimizer, marks=[] if (number + turn) % 2 else pytest.mark.exhaustive)
        for number, family in enumerate(CASES)
        for turn, optimizer in enumerate(OPTIMIZERS)
    ],
)
def test_step_reads_no_number_unless_metrics_are_logged(
    family: str, optimizer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = CASES[family](
        tmp_path,
        optimizer=OPTIMIZERS[optimizer],
        log_every=3,
        save_every=100,
        validate_every=100,
        max_steps=10,
        ema=0.9,
    )
    first, second, third, fourth = reads(recipe, monkeypatch, steps=4)
    assert first  # its loss and its gradient are checked
    assert second == fourth == []
    assert third


@pytest.mark.slow
def test_an_average_that_reads_its_count_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    update_parameters = MovingAverage.update_parameters

    def forgetful(self: MovingAverage, model: torch.nn.Module) -> None:
        self.updates = None
        update_parameters(self, model)

    monkeypatch.setattr(MovingAverage, "update_parameters", forgetful)
    recipe = TINY["text"](tmp_path, log_every=100, save_every=100, max_steps=10, ema=0.9)
    assert reads(recipe, monkeypatch, steps=2)[1] == ["_local_scalar_dense.default"]
