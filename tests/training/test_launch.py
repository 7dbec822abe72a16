"""The launcher of a process and its number of ranks are detected from environment variables."""

from collections.abc import Mapping
from pathlib import Path

import pytest
from tiny_runs import tiny_recipe

from tercet.config import UserError
from tercet.training.distributed.launch import Launch, adapt_to_launch, detect_launch

TORCHRUN = {"TORCHELASTIC_RUN_ID": "x", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}
SRUN = {"SLURM_NTASKS": "6", "SLURM_STEP_NUM_TASKS": "6", "SLURM_STEP_TASKS_PER_NODE": "2(x3)"}
LONE = {"SLURM_STEP_NUM_TASKS": "1", "SLURM_STEP_TASKS_PER_NODE": "1"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, None),  # of an unknown launcher
        (TORCHRUN, Launch("torchrun", 4, 2)),
        (SRUN, Launch("srun", 2, 3)),
        ({**SRUN, "SLURM_STEP_TASKS_PER_NODE": "6"}, Launch("srun", 6, 1)),
        (
            {**SRUN, "SLURM_NTASKS_PER_NODE": "4", "SLURM_NNODES": "9"},
            Launch("srun", 2, 3),
        ),  # of the job, not of the step
        ({"SLURM_NTASKS": "1"}, None),  # the script of a job
        ({"SLURM_NTASKS": "1", **LONE}, None),  # srun --pty bash
        ({**SRUN, **TORCHRUN}, Launch("torchrun", 4, 2)),  # srun starts torchrun
    ],
)
def test_launcher_is_detected(environment: Mapping[str, str], expected: Launch | None) -> None:
    assert detect_launch(environment) == expected


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"SLURM_NTASKS": "4"}, "this SLURM job has 4 tasks, which must be started by srun"),
        ({"SLURM_NTASKS": "4", **LONE}, "this SLURM job has 4 tasks, which must be started by srun"),  # salloc's shell
        (
            {**SRUN, "SLURM_STEP_TASKS_PER_NODE": "2(x2),1"},
            r"srun has started 6 processes, 2\(x2\),1 on its nodes; start",
        ),
        (
            {**TORCHRUN, "WORLD_SIZE": "7"},
            "torchrun has started 7 processes, 4 on this node; start the same number on each node",
        ),
    ],
)
def test_impossible_launch_is_rejected(environment: Mapping[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        detect_launch(environment)


def test_number_of_devices_is_that_of_the_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    assert adapt_to_launch(recipe) is recipe
    for name, value in TORCHRUN.items():
        monkeypatch.setenv(name, value)
    training = adapt_to_launch(recipe).training
    assert (training.devices, training.nodes) == (4, 2)
    with pytest.raises(UserError, match=r"torchrun has started 8 processes: strategy=single: expected one device"):
        adapt_to_launch(tiny_recipe(tmp_path, strategy="single"))
