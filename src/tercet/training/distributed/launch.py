"""How many processes a launcher has started: torchrun and srun know it, and then the recipe need not say it."""

import os
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tercet.config import UserError
from tercet.training.recipe.recipe import Recipe


class RankLost(UserError):
    """Another of the run's processes has died, or the network between them."""


class Launch(NamedTuple):
    """What a launcher has started: a process for each device of a node, on so many nodes."""

    launcher: str
    devices: int
    nodes: int


def detect_launch(environment: Mapping[str, str]) -> Launch | None:
    """What the environment of this process says; None where it was started by itself, as a lone task is.

    Raises:
        UserError: where a SLURM job has several tasks and this is none of them, or nodes have not equally many.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        tasks, devices = int(environment["WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"])
        if tasks % devices:
            raise _uneven("torchrun", tasks, f"{devices} on this node")
        return Launch("torchrun", devices, tasks // devices)
    # The job's SLURM_NTASKS is in its script too, and in salloc's shell, which is a step of one task.
    tasks, job_tasks = (int(environment.get(name, 1)) for name in ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"))
    if tasks == 1 < job_tasks:
        raise UserError(f"this SLURM job has {job_tasks} tasks, and srun starts them: srun tercet train ...")
    if tasks == 1:
        return None
    per_node = environment["SLURM_STEP_TASKS_PER_NODE"]  # such as 4, 2(x3), or 3,2(x2)
    uniform = re.fullmatch(r"(\d+)(?:\(x\d+\))?", per_node)
    if uniform is None:
        raise _uneven("srun", tasks, f"{per_node} on its nodes")
    return Launch("srun", int(uniform[1]), tasks // int(uniform[1]))


def _uneven(launcher: str, tasks: int, count: str) -> UserError:
    return UserError(f"{launcher} has started {tasks} processes, {count}; start equally many on each")


def adapt_to_launch(recipe: Recipe) -> Recipe:
    """The recipe for as many devices as a launcher has started processes.

    Raises:
        UserError: where that does not go with the recipe.
    """
    launch = detect_launch(os.environ)
    if launch is None or (launch.devices, launch.nodes) == (recipe.training.devices, recipe.training.nodes):
        return recipe
    try:
        training = replace(recipe.training, devices=launch.devices, nodes=launch.nodes)
        return replace(recipe, training=training)
    except ValueError as error:
        raise UserError(f"{launch.launcher} has started {launch.devices * launch.nodes} processes: {error}") from None
