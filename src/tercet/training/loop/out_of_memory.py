"""Halving of micro-batches: a step that runs out of memory is repeated with smaller micro-batches.

The batch of the step stays the same. Only the dropout of each micro-batch and the order of sums change. Memory runs out
before the optimizer updates weights, so only the time of the step is lost. With several processes the step cannot be
repeated, because the other processes are waiting in it. Instead, the smaller size is recorded and the run ends; when it
is resumed, it uses the new size.
"""

from collections.abc import Callable
from math import ceil

import torch

from tercet.config import UserError
from tercet.messages import print_note
from tercet.training.planning.micro_batch import format_with_unit, smallest_micro_batch, unit_of
from tercet.training.recipe.recipe import Recipe, TranslationRecipe, VectorsRecipe
from tercet.training.tasks.task import Task

CPU_ALLOCATOR = "DefaultCPUAllocator"  # in the message of the RuntimeError that PyTorch raises for the CPU


class OutOfMemory(UserError):
    """A step does not fit into the memory of a device, and cannot be repeated with smaller micro-batches."""


class MicroBatchHalving:
    """Halves the micro-batches of a task.

    Args:
        task: Task whose micro-batches are halved.
        exact: If True, the size must not change, because the result must be bitwise identical.
        save: Function called with the step, counted from 0, and the size of micro-batches from this step on.
    """

    def __init__(self, task: Task, *, exact: bool, save: Callable[[int, int], None]) -> None:
        self.task, self.exact, self.save = task, exact, save

    def halve(self, step: int) -> None:
        """Halve the micro-batches from `step` on, counted from 0.

        Raises:
            OutOfMemory: If the micro-batches cannot be halved, or if the run has several processes. In the second case,
                the new size is recorded, and used when the run is resumed.
        """
        task, recipe = self.task, self.task.recipe
        spec, unit, smallest = recipe.training, unit_of(recipe), smallest_micro_batch(recipe)
        problem = f"step {step + 1:,} is out of memory with {format_with_unit(task.micro, unit)} per micro-batch"
        if self.exact:
            raise OutOfMemory(f"{problem}, which an exact run must not change: {remedies(recipe)}")
        if isinstance(recipe, TranslationRecipe) and spec.strategy == "fsdp" and spec.world_size > 1:
            raise OutOfMemory(f"{problem}: {remedies(recipe)}, or task.micro_batch_tokens")
        if task.micro <= smallest:
            raise OutOfMemory(f"{problem}: {remedies(recipe)}")
        micro = max(smallest, ceil(task.micro / 2))
        self.save(step, micro)
        if spec.world_size > 1:
            raise OutOfMemory(f"{problem}; start the run again to resume it with {format_with_unit(micro, unit)}")
        print_note(f"{problem}; continuing with {format_with_unit(micro, unit)}")
        task.micro = micro


def is_out_of_memory(error: RuntimeError) -> bool:
    """Return whether an error of PyTorch reports that memory of a device or of the CPU could not be allocated."""
    return isinstance(error, torch.OutOfMemoryError) or CPU_ALLOCATOR in str(error)


def remedies(recipe: Recipe) -> str:
    """Return the remedy of an error message: changes, other than smaller micro-batches, that reduce memory use."""
    spec = recipe.training
    settings = [
        *([] if spec.activation_checkpointing else ["training.activation_checkpointing=true"]),
        *([] if spec.is_sharded else ["training.strategy=fsdp on several devices"]),
        *([] if spec.reshard_after_forward else ["training.reshard_after_forward=true"]),
        *(["training.cpu_offload=true"] if spec.strategy == "fsdp" and not spec.cpu_offload else []),
    ]
    resume_hint = f"set {' or '.join(settings)} and resume the run; or " if settings else ""
    batch = "task.micro_batch_size, " if isinstance(recipe, VectorsRecipe) else ""
    return f"{resume_hint}start again with a smaller {batch}model or task.max_len"
