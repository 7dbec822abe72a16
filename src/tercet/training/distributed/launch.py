"""Detection of torchrun and srun, whose processes determine `devices` and `nodes` of a recipe."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tercet.config import UserError
from tercet.training.recipe.recipe import Recipe


class RankLost(UserError):
    """An exchange with another rank failed: the rank has died, or the network to it is down."""


class Launch(NamedTuple):
    """The processes that a launcher has started.

    Attributes:
        launcher: Name of the launcher, torchrun or srun.
        devices: Number of processes on each node, one per device.
        nodes: Number of nodes.
    """

    launcher: str
    devices: int
    nodes: int


def detect_launch(environment: Mapping[str, str]) -> Launch | None:
    """Return the launch that this process belongs to, or None.

    It is None if neither torchrun nor srun with several tasks has started the process.

    Args:
        environment: Environment variables of this process.

    Raises:
        UserError: If this process belongs to a SLURM job of several tasks but was not started by srun, or if nodes have
            different numbers of processes.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        tasks, devices = int(environment["WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"])
        if tasks % devices:
            raise _uneven("torchrun", tasks, f"{devices} on this node")
        return Launch("torchrun", devices, tasks // devices)
    # SLURM_NTASKS, of the job, is also set in the job script and in the shell of salloc, which is a step of one task.
    tasks, job_tasks = (int(environment.get(name, 1)) for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    if tasks == 1 < job_tasks:
        raise UserError(f"this SLURM job has {job_tasks} tasks, which must be started by srun: srun tercet train ...")
    if tasks == 1:
        return None
    per_node = environment["SLURM_STEP_TASKS_PER_NODE"]  # such as 4, 2(x3), or 3,2(x2)
    uniform = re.fullmatch(r"(\d+)(?:\(x\d+\))?", per_node)
    if uniform is None:
        raise _uneven("srun", tasks, f"{per_node} on its nodes")
    return Launch("srun", int(uniform[1]), tasks // int(uniform[1]))


def _uneven(launcher: str, tasks: int, count: str) -> UserError:
    return UserError(f"{launcher} has started {tasks} processes, {count}; start the same number on each node")


def adapt_to_launch(recipe: Recipe) -> Recipe:
    """Return the recipe with the devices and nodes of the launcher; unchanged if there is no launcher.

    Raises:
        UserError: If the recipe does not allow these numbers, or `detect_launch` fails.
    """
    launch = detect_launch(os.environ)
    if launch is None or (launch.devices, launch.nodes) == (recipe.training.devices, recipe.training.nodes):
        return recipe
    try:
        training = replace(recipe.training, devices=launch.devices, nodes=launch.nodes)
        return replace(recipe, training=training)
    except ValueError as error:
        raise UserError(f"{launch.launcher} has started {launch.devices * launch.nodes} processes: {error}") from None
