"""The micro-batch size of a recipe on one device, and the largest size that fits into memory.

All sizes are rows, or tokens per side for translation.
"""

from collections.abc import Callable
from math import ceil
from typing import Literal

from tercet.messages import counted
from tercet.training.planning.ranks import estimate_rank
from tercet.training.planning.step_memory import StepMemory
from tercet.training.recipe.recipe import Recipe, TranslationRecipe, VectorsRecipe
from tercet.training.recipe.task_specs import RowBatchSpec
from tercet.training.tasks.plan import Plan, plan_of

SINGULAR = {"rows": "row", "tokens per side": "token per side"}
TRIES = 8  # maximum iterations of the search for the largest size


def micro_batch(recipe: Recipe) -> int:
    """Return the micro-batch size that a recipe sets, or the device's whole share for `auto` and null."""
    world = recipe.training.data_parallel_size
    if isinstance(recipe, TranslationRecipe):
        return min(recipe.task.bucket_tokens(world), device_share(recipe))
    return min(_row_task(recipe).micro_batch(world), device_share(recipe))


def unit_of(recipe: Recipe) -> Literal["rows", "tokens per side"]:
    """Return the unit of the batch sizes of a recipe."""
    return "tokens per side" if isinstance(recipe, TranslationRecipe) else "rows"


def format_with_unit(number: int, unit: str) -> str:
    """Format a size with its unit, such as `1 row`, `64 rows`, `4,096 tokens per side`."""
    return counted(number, SINGULAR[unit], unit)


def device_share(recipe: Recipe) -> int:
    """Return one device's share of the batch of a step."""
    world = recipe.training.data_parallel_size
    if isinstance(recipe, TranslationRecipe):
        return recipe.task.batch_tokens // world
    return _row_task(recipe).batch_size // world


def micro_batches(recipe: Recipe, micro: int) -> int:
    """Return the number of micro-batches of at most `micro` per device and step."""
    return ceil(device_share(recipe) / micro)


def largest_micro_batch(
    recipe: Recipe, count: Callable[[int, bool], StepMemory], *, checkpointing: bool, available_bytes: int
) -> int | None:
    """Return the largest micro-batch size with which a step fits into a device, or None if none fits.

    Args:
        recipe: Recipe with its vocabulary sizes.
        count: Function from a micro-batch size and a value of `checkpointing` to the memory of a step of the recipe's
            `rank_part`.
        checkpointing: If True, activations are recomputed in the backward pass.
        available_bytes: Memory of the device that a run may use, in bytes.
    """

    def needed_bytes(micro: int) -> int:
        return estimate_rank(
            recipe, count(micro, checkpointing), checkpointing=checkpointing, available_bytes=available_bytes
        ).total

    return largest_that_fits(
        needed_bytes, available_bytes, maximum=device_share(recipe), minimum=smallest_micro_batch(recipe)
    )


def auto_micro_batch(
    recipe: Recipe, count: Callable[[int, bool], StepMemory], *, checkpointing: bool, available_bytes: int | None
) -> int:
    """Return the micro-batch size of a recipe on a device with some memory.

    For `auto` this splits the device's share into the smallest number of equal parts that each fit into the memory, but
    is at least `smallest_micro_batch`, also if that does not fit. If the recipe does not set `auto`, or the memory is
    unknown, the result is that of `micro_batch`.

    The arguments are those of `largest_micro_batch`; `available_bytes` is None if the memory is unknown.
    """
    if available_bytes is None or not recipe.task.finds_micro_batch:
        return micro_batch(recipe)
    largest = largest_micro_batch(recipe, count, checkpointing=checkpointing, available_bytes=available_bytes)
    smallest = smallest_micro_batch(recipe)
    return max(smallest, ceil(device_share(recipe) / micro_batches(recipe, largest or smallest)))


def smallest_micro_batch(recipe: Recipe) -> int:
    """Return the smallest possible size: one row, or for translation the tokens of the longest sentence.

    The latter is at most the device's share of a step. For vectors it is the size of the recipe, because smaller
    micro-batches have fewer negatives.
    """
    if isinstance(recipe, VectorsRecipe):
        return recipe.task.micro_batch(recipe.training.data_parallel_size)
    return min(recipe.row_len, device_share(recipe)) if isinstance(recipe, TranslationRecipe) else 1


def tokens_of_row(recipe: Recipe) -> int:
    """Return the maximum tokens per row of a `Plan`; for translation, per side of a bucket."""
    if isinstance(recipe, TranslationRecipe):
        return recipe.task.bucket_tokens(recipe.training.data_parallel_size)
    if isinstance(recipe, VectorsRecipe):
        return recipe.row_len * (2 if recipe.data.negative_field is None else 3)
    return recipe.row_len


def plan_without_data(recipe: Recipe) -> Plan:
    """Return the plan of a run whose data is not read.

    Its steps and the sizes of their batches are valid, its epochs and the order of its rows are not.
    """
    world = recipe.training.data_parallel_size
    if isinstance(recipe, TranslationRecipe):
        return plan_of(recipe.training, 1, batch=recipe.task.buckets_per_step(world), micro=1)
    task = _row_task(recipe)
    return plan_of(recipe.training, 1, batch=task.batch_size, micro=task.micro_batch(world))


def largest_that_fits(
    needed_bytes: Callable[[int], int], available_bytes: int, *, maximum: int, minimum: int = 1
) -> int | None:
    """Return the largest micro-batch size whose memory fits, or None if none fits.

    The search interpolates linearly between the largest size known to fit and the smallest known not to fit, and takes
    at most `TRIES` steps. If these do not suffice, the result is the largest size that was found to fit.

    Args:
        needed_bytes: Increasing function from micro-batch size to bytes.
        available_bytes: Memory of the device that a run may use, in bytes.
        maximum, minimum: Largest and smallest possible size.
    """
    low, high = minimum, maximum
    if (high_bytes := needed_bytes(high)) <= available_bytes:
        return high
    if high == low or (low_bytes := needed_bytes(low)) > available_bytes:
        return None
    for _ in range(TRIES):
        if high - low <= 1:
            break
        guess = low + int((available_bytes - low_bytes) / max(1, high_bytes - low_bytes) * (high - low))
        guess = min(max(guess, low + 1), high - 1)
        if (guess_bytes := needed_bytes(guess)) <= available_bytes:
            low, low_bytes = guess, guess_bytes
            if high - guess > 1 and needed_bytes(guess + 1) > available_bytes:
                break
        else:
            high, high_bytes = guess, guess_bytes
    return low


def _row_task(recipe: Recipe) -> RowBatchSpec:
    assert isinstance(recipe.task, RowBatchSpec)
    return recipe.task
