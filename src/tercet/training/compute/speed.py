"""Measurement of the training speed of this machine, from a few steps."""

import copy
import itertools
import statistics
from dataclasses import dataclass
from math import ceil

import torch
from lightning_fabric.utilities import move_data_to_device

from tercet.models import AnyModel
from tercet.training.compute.compiling import CompileMode, compiled_loss
from tercet.training.compute.timing import autocast, clock, time_call
from tercet.training.distributed.devices import accelerator
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.tasks.plan import Plan
from tercet.training.tasks.task import Task

MIN_SECONDS = 5.0  # minimum total time of the timed steps
WARMUP_PASSES = 2  # number of first passes that are not counted


@dataclass(frozen=True)
class Speed:
    """Measured durations of the parts of a run.

    Attributes:
        unit_seconds: Seconds of reading and of the forward and backward passes, per unit of rows (see `Plan`).
        step_seconds: Additional seconds per step, for the optimizer.
        validation_seconds: Seconds per computation of the validation loss, without scores such as BLEU and without
            saving.
    """

    unit_seconds: float
    step_seconds: float
    validation_seconds: float

    def plan(self, plan: Plan, spec: TrainingSpec) -> Plan:
        """Return the longest plan that fits into the hours of the recipe, of at least one step.

        Args:
            plan: Plan without a length.
            spec: Training settings with `max_hours`.
        """
        assert spec.max_hours is not None
        # One validation at the end is always needed. The time of the others is divided among the steps.
        left = 3600 * spec.max_hours - self.validation_seconds
        return plan.for_hours(
            left,
            unit_seconds=self.unit_seconds,
            step_seconds=self.step_seconds + self.validation_seconds / spec.validate_every,
        )

    def describe(self, plan: Plan, spec: TrainingSpec) -> str:
        """Describe the result of `plan` and the measured times in one line, for the user."""
        full_step = self.unit_seconds * plan.units + self.step_seconds
        remark = "; waiting times between devices are not included" if spec.world_size > 1 else ""
        return (
            f"{plan.steps:,} steps in {spec.max_hours:g} hours, at {full_step:.3g} s per full step and "
            f"{self.validation_seconds:.3g} s per validation as measured now; the run ends after the last step, "
            f"earlier or later if the machine turns out faster or slower{remark}"
        )


def speed(task: Task, model: AnyModel, *, precision: str, compile_mode: CompileMode) -> Speed:
    """Measure the training speed on a copy of the model, with a few steps.

    The steps take at least `MIN_SECONDS` in total. The times of reading rows, of the forward and backward passes, of
    the optimizer step and of a validation batch are measured separately.

    Args:
        task: Data and objective.
        model: Model to train, which is not changed.
        precision: fp32, bf16 or fp16.
        compile_mode: How the steps of the run are compiled.
    """
    spec, plan = task.recipe.training, task.plan
    world = spec.data_parallel_size
    device = torch.device(accelerator(spec))
    trial = copy.deepcopy(model).to(device)
    loss_function = compiled_loss(task, trial, device.type, compile_mode)
    optimizer = build_optimizer(spec.optimizer, trial)
    autocast_context = autocast(device, precision)
    reading, passes, updating = list[float](), list[float](), list[float]()
    start = clock()
    for step in itertools.count():
        (batches, took) = time_call(lambda step=step: task.batches(step, 0, world))
        reading.append(took / plan.units)
        for batch in batches:
            device_batch = move_data_to_device(batch, device)
            with autocast_context:
                loss, forward = time_call(
                    lambda device_batch=device_batch: (
                        loss_function(trial, device_batch, smoothing=spec.label_smoothing).mean
                    )
                )
            passes.append(forward + time_call(loss.backward)[1])
            if clock() - start > MIN_SECONDS and len(passes) > WARMUP_PASSES:
                break
        updating.append(time_call(optimizer.step)[1])
        optimizer.zero_grad()
        if clock() - start > MIN_SECONDS and len(passes) > WARMUP_PASSES + 1 and len(updating) > 1:
            break
    groups = task.validation_groups()
    with torch.no_grad(), autocast_context, torch.compiler.set_stance("force_eager"):
        trial.eval()
        batch = move_data_to_device(task.validation_batch(groups[len(groups) // 2]), device)
        batch_seconds = min(time_call(lambda: task.validate_batch(trial, batch))[1] for _ in range(2))
    torch.compiler.reset()
    per_unit = len(task.batches(0, 0, world)) // plan.units  # micro-batches per device and unit
    # The first passes are excluded, because they compile or choose kernels. The others are averaged, because shapes may
    # differ. For reading, the median is used, because a step that opens a shard for the first time also hashes it.
    return Speed(
        unit_seconds=statistics.median(reading) + per_unit * statistics.fmean(passes[WARMUP_PASSES:]),
        step_seconds=statistics.fmean(updating[1:]),
        validation_seconds=batch_seconds * ceil(len(groups) / world),
    )
