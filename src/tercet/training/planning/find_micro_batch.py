"""What `auto` comes to as the size of a micro-batch, before the first step."""

from functools import cache, partial

from tercet.training.distributed.devices import accelerator
from tercet.training.planning.micro_batch import auto_micro_batch, micro_batches, unit_of
from tercet.training.planning.plan_run import count_step
from tercet.training.planning.ranks import rank_part
from tercet.training.planning.this_machine import free_memory, usable_memory
from tercet.training.recipe.recipe import Recipe


def find_micro_batch(recipe: Recipe, precision: str) -> int:
    """A device's share of a step in as few equal parts as its free memory is counted to hold (`planning`), but for some
    headroom. What the count does not know of, a step that runs out of memory makes up for (`out_of_memory.py`).

    Args:
        recipe: with the vocabulary's size.
        precision: fp32, bf16 or fp16.

    Returns:
        rows; of a translator tokens a side.
    """
    spec = recipe.training
    device = accelerator(spec)
    count = cache(partial(count_step, rank_part(recipe), "cpu" if device == "cpu" else "cuda", precision))
    available_bytes = usable_memory(free_memory(device, spec.devices))
    return auto_micro_batch(recipe, count, checkpointing=spec.activation_checkpointing, available_bytes=available_bytes)


def describe_micro_batch(recipe: Recipe, micro: int) -> str:
    """How a device takes its share of a step."""
    n = micro_batches(recipe, micro)
    return f"{n:,} micro-batch{'es' if n > 1 else ''} of {micro:,} {unit_of(recipe)} a step on each device"
