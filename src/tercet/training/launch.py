"""How many processes a launcher has started: torchrun and srun know it, and then the recipe need not say it."""

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from tercet.config import UserError
from tercet.training.recipe import Recipe


class Launch(NamedTuple):
    """What a launcher has started: a process for each device of a node, on so many nodes."""

    launcher: str
    devices: int
    nodes: int


def launched(environment: Mapping[str, str]) -> Launch | None:
    """What the environment of this process says; None where it was started by itself.

    Raises:
        UserError: where a SLURM job has several tasks and this is none of them, or nodes have not equally many.
    """
    if "TORCHELASTIC_RUN_ID" in environment:
        launcher, tasks, devices = "torchrun", int(environment["WORLD_SIZE"]), int(environment["LOCAL_WORLD_SIZE"])
    elif tasks := int(environment.get("SLURM_NTASKS", 0)):
        if "SLURM_STEP_ID" not in environment:  # the job's script, not a task of it
            if tasks == 1:
                return None
            raise UserError(f"this SLURM job has {tasks} tasks, and srun starts them: srun tercet train ...")
        launcher, devices = "srun", max(1, tasks // int(environment.get("SLURM_NNODES", 1)))
    else:
        return None
    if tasks % devices:
        raise UserError(f"{launcher} has started {tasks} processes, {devices} on this node; start equally many on each")
    return Launch(launcher, devices, tasks // devices)


def as_launched(recipe: Recipe) -> Recipe:
    """The recipe for as many devices as a launcher has started processes.

    Raises:
        UserError: where that does not go with the recipe.
    """
    launch = launched(os.environ)
    if launch is None or (launch.devices, launch.nodes) == (recipe.training.devices, recipe.training.nodes):
        return recipe
    try:
        training = replace(recipe.training, devices=launch.devices, nodes=launch.nodes)
        return replace(recipe, training=training)
    except ValueError as error:
        raise UserError(f"{launch.launcher} has started {launch.devices * launch.nodes} processes: {error}") from None
