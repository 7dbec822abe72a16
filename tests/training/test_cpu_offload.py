"""Weights, gradients and optimizer state in host memory: equal training, and less memory on the device."""

from pathlib import Path
from typing import Any

import pytest
import torch
from machines import start
from tiny_runs import NO_DROPOUT, tiny_recipe

from tercet.checkpoint import load_model
from tercet.config import UserError
from tercet.training.planning.ranks import estimate_rank
from tercet.training.planning.step_memory import measure_step
from tercet.training.tasks.open_task import task_of


@pytest.mark.slow
def test_host_memory_holds_the_offloaded_state(tmp_path: Path) -> None:
    def rank(**settings: Any) -> Any:
        recipe = task_of(tiny_recipe(tmp_path, devices=2, strategy="fsdp", **settings), progress=False).recipe
        step = measure_step(recipe, micro=4, device="cuda", precision="fp32", checkpointing=False)
        return estimate_rank(recipe, step, checkpointing=False, available_bytes=None)

    on_device, offloaded = rank(), rank(cpu_offload=True)
    assert on_device.host == 0
    assert offloaded.host == on_device.weights + on_device.gradients + on_device.optimizer > 0
    assert offloaded.weights == offloaded.gradients == offloaded.optimizer == 0
    assert offloaded.total == on_device.total - offloaded.host
    assert offloaded.communication == on_device.communication > 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({}, "cpu_offload requires strategy=fsdp; set it"),
        ({"strategy": "ddp", "devices": 2}, "cpu_offload requires strategy=fsdp"),
        ({"strategy": "fsdp", "exact": True}, "exact does not support cpu_offload"),
    ],
)
def test_conflicting_settings_are_rejected(settings: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        tiny_recipe(tmp_path, cpu_offload=True, **settings)


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", ["text", pytest.param("pairs", marks=pytest.mark.exhaustive)])
def test_two_ranks_train_equally_and_resume(family: str, tmp_path: Path) -> None:
    """On a CPU all memory is host memory; the test covers FSDP's code path for offloading and its checkpoints."""
    model = {"stack": {"dropout": NO_DROPOUT}} if family == "text" else None
    changes = None if model is None else {"model": model}

    def run(out: str, **settings: Any) -> None:
        settings = {"exact": False, "schedule": "constant", "max_steps": 6, **settings}
        start(tmp_path, family, "fsdp on 2", tmp_path / out, changes=changes, **settings).finish()

    run("kept")
    run("later", max_steps=4)
    run("later", cpu_offload=True)
    plain_weights, offloaded_weights = (
        load_model(tmp_path / out / "last").model.state_dict() for out in ("kept", "later")
    )
    for name in plain_weights:
        torch.testing.assert_close(offloaded_weights[name], plain_weights[name], atol=1e-6, rtol=1e-5)
