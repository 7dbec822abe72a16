"""How fast this machine trains, by doing the work of some steps."""

import copy
import itertools
import statistics
from dataclasses import dataclass
from math import ceil

import torch
from lightning_fabric.utilities import move_data_to_device

from tercet.models import AnyModel
from tercet.training.compute.compiling import Compiled, compiled_loss
from tercet.training.compute.timing import autocast, clock, timed
from tercet.training.distributed.devices import accelerator
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.tasks.plan import Plan
from tercet.training.tasks.task import Task

MEASURED = 5.0  # seconds for which steps are timed, at least
FIRST = 2  # passes that do not count


@dataclass(frozen=True)
class Speed:
    """Seconds, as measured: of a unit of rows, of a step besides, of validating, saving aside."""

    a_unit: float
    a_step: float
    a_validation: float

    def plan(self, plan: Plan, spec: TrainingSpec) -> Plan:
        """The longest plan within the hours of the recipe."""
        assert spec.max_hours is not None
        # The validation at the end comes anyway; the others are shared out over the steps between them.
        left = 3600 * spec.max_hours - self.a_validation
        return plan.for_hours(
            left, unit_seconds=self.a_unit, step_seconds=self.a_step + self.a_validation / spec.validate_every
        )

    def describe(self, plan: Plan, spec: TrainingSpec) -> str:
        full_step = self.a_unit * plan.units + self.a_step
        others = "; what devices wait for each other is not in it" if spec.world_size > 1 else ""
        return (
            f"{spec.max_hours:g} hours at {full_step:.3g} s a full step and {self.a_validation:.3g} s a validation, as "
            f"measured now, make {plan.steps:,} steps; the run ends with the last of them, early or late where the "
            f"machine turns out faster or slower{others}"
        )


def speed(task: Task, model: AnyModel, *, precision: str, compiled: Compiled) -> Speed:
    """How fast this machine trains, by doing the work of some steps on a copy of the model: reading rows, going there
    and back, the optimizer's step, and a validation batch."""
    spec, plan = task.recipe.training, task.plan
    world = spec.data_parallel_size
    device = torch.device(accelerator(spec))
    trial = copy.deepcopy(model).to(device)
    loss_of = compiled_loss(task, trial, device.type, compiled)
    optimizer = build_optimizer(spec.optimizer, trial)
    reduced = autocast(device, precision)
    reading, passes, updating = list[float](), list[float](), list[float]()
    started = clock()
    for step in itertools.count():
        (batches, took) = timed(lambda step=step: task.batches(step, 0, world))
        reading.append(took / plan.units)
        for batch in batches:
            moved = move_data_to_device(batch, device)
            with reduced:
                loss, forward = timed(lambda moved=moved: loss_of(trial, moved, smoothing=spec.label_smoothing).mean)
            passes.append(forward + timed(loss.backward)[1])
            if clock() - started > MEASURED and len(passes) > FIRST:
                break
        updating.append(timed(optimizer.step)[1])
        optimizer.zero_grad()
        if clock() - started > MEASURED and len(passes) > FIRST + 1 and len(updating) > 1:
            break
    groups = task.validation_groups()
    with torch.no_grad(), reduced, torch.compiler.set_stance("force_eager"):
        trial.eval()
        batch = move_data_to_device(task.validation_batch(groups[len(groups) // 2]), device)
        a_batch = min(timed(lambda: task.validate_batch(trial, batch))[1] for _ in range(2))
    torch.compiler.reset()
    per_unit = len(task.batches(0, 0, world)) // plan.units  # micro-batches of a device in a unit
    # What came first, compiled or found its kernels; of the rest the mean, for shapes may differ. Reading takes the
    # median, because a step that opens a shard for the first time also hashes it.
    return Speed(
        a_unit=statistics.median(reading) + per_unit * statistics.fmean(passes[FIRST:]),
        a_step=statistics.fmean(updating[1:]),
        a_validation=a_batch * ceil(len(groups) / world),
    )
