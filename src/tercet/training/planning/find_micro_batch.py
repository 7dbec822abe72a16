"""Choose the micro-batch size of `auto` before the first step."""

from functools import cache, partial

from tercet.training.distributed.devices import accelerator
from tercet.training.planning.micro_batch import auto_micro_batch, micro_batches, unit_of
from tercet.training.planning.plan_run import count_step
from tercet.training.planning.ranks import rank_part
from tercet.training.planning.this_machine import free_memory, usable_memory
from tercet.training.recipe.recipe import Recipe


def find_micro_batch(recipe: Recipe, precision: str) -> int:
    """Return the micro-batch size for `auto` on this machine.

    A device's share of a step is split into the smallest number of equal parts that are each estimated to fit into its
    free memory, except for some headroom. If a step runs out of memory nevertheless, `out_of_memory.py` reduces the
    size.

    Args:
        recipe: Recipe with its vocabulary sizes.
        precision: fp32, bf16 or fp16.

    Returns:
        Rows, or tokens per side for translation.
    """
    spec = recipe.training
    device = accelerator(spec)
    count = cache(partial(count_step, rank_part(recipe), "cpu" if device == "cpu" else "cuda", precision))
    available_bytes = usable_memory(free_memory(device, spec.devices))
    return auto_micro_batch(recipe, count, checkpointing=spec.activation_checkpointing, available_bytes=available_bytes)


def describe_micro_batch(recipe: Recipe, micro: int) -> str:
    """Describe the number and the size of the micro-batches per step on each device."""
    n = micro_batches(recipe, micro)
    return f"{n:,} micro-batch{'es' if n > 1 else ''} of {micro:,} {unit_of(recipe)} per step on each device"
