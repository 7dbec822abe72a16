"""A step that a device's memory does not hold is done again in micro-batches of half the size.

Its batch is the same, and all that follows from (seed, step) but for the dropout of each micro-batch and the order of
sums. The optimizer has not moved when memory runs out in the passes, so nothing is lost but the step's time. Several
processes would wait for each other in the middle of it: there the smaller size is noted, the run ends, and goes on
with it when it is started again.
"""

from collections.abc import Callable
from math import ceil

import torch

from tercet.config import UserError
from tercet.messages import print_note
from tercet.training.planning.micro_batch import format_with_unit, smallest_micro_batch, unit_of
from tercet.training.recipe.recipe import Recipe, TranslationRecipe
from tercet.training.tasks.task import Task

CPU_ALLOCATOR = (
    "DefaultCPUAllocator"  # in what PyTorch raises where the system gives no memory: a RuntimeError of no kind
)


class OutOfMemory(UserError):
    """A device's memory does not hold a step, and this process cannot do it in smaller parts."""


class MicroBatchHalving:
    """Args:
    task: whose micro-batches are halved.
    exact: their size must stay, for the run is to end as it would have to the last bit.
    save: called with the step, counted from 0, and the size that its micro-batches have from now on.
    """

    def __init__(self, task: Task, *, exact: bool, save: Callable[[int, int], None]) -> None:
        self.task, self.exact, self.save = task, exact, save

    def halve(self, step: int) -> None:
        """Hold less of `step`, counted from 0, at once.

        Raises:
            OutOfMemory: where that cannot be, or other processes wait.
        """
        task, recipe = self.task, self.task.recipe
        spec, unit, smallest = recipe.training, unit_of(recipe), smallest_micro_batch(recipe)
        problem = f"step {step + 1:,} is out of memory with {format_with_unit(task.micro, unit)} at once"
        if self.exact:
            raise OutOfMemory(f"{problem}, and to end exactly it must stay so many: {remedies(recipe)}")
        if isinstance(recipe, TranslationRecipe) and spec.strategy == "fsdp" and spec.world_size > 1:
            raise OutOfMemory(f"{problem}: {remedies(recipe)}, or with a smaller task.micro_batch_tokens")
        if task.micro <= smallest:
            raise OutOfMemory(f"{problem}: {remedies(recipe)}")
        micro = max(smallest, ceil(task.micro / 2))
        self.save(step, micro)
        if spec.world_size > 1:
            raise OutOfMemory(
                f"{problem}; when it is started again, the run goes on with {format_with_unit(micro, unit)}"
            )
        print_note(f"{problem}; from here on {format_with_unit(micro, unit)}")
        task.micro = micro


def is_out_of_memory(error: RuntimeError) -> bool:
    return isinstance(error, torch.OutOfMemoryError) or CPU_ALLOCATOR in str(error)


def remedies(recipe: Recipe) -> str:
    """What takes less memory whatever the size of a micro-batch."""
    spec = recipe.training
    settings = [
        *([] if spec.activation_checkpointing else ["training.activation_checkpointing=true"]),
        *([] if spec.is_sharded else ["training.strategy=fsdp on several devices"]),
        *([] if spec.reshard_after_forward else ["training.reshard_after_forward=true"]),
        *(["training.cpu_offload=true"] if spec.strategy == "fsdp" and not spec.cpu_offload else []),
    ]
    resume_hint = f"set {' or '.join(settings)}, and the run goes on; or " if settings else ""
    return f"{resume_hint}begin anew with a smaller model or model.max_len"
