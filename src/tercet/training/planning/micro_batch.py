"""What one device holds at once: the micro-batch that a recipe comes to, and the largest that fits.

The unit of all of them is rows; of a translator tokens a side.
"""

from collections.abc import Callable
from math import ceil
from typing import Literal

from tercet.training.planning.ranks import estimate_rank
from tercet.training.planning.step_memory import StepMemory
from tercet.training.recipe.recipe import Recipe, TranslationRecipe
from tercet.training.recipe.task_specs import RowBatchSpec
from tercet.training.tasks.plan import Plan, plan_of

SINGULAR = {"rows": "row", "tokens a side": "token a side"}
TRIES = 8  # steps that are counted in looking for the largest


def micro_batch(recipe: Recipe) -> int:
    """What a device holds at once; its whole share where that is to be found."""
    world = recipe.training.data_parallel_size
    if isinstance(recipe, TranslationRecipe):
        return min(recipe.task.bucket_tokens(world), device_share(recipe))
    return min(_row_task(recipe).micro_batch(world), device_share(recipe))


def unit_of(recipe: Recipe) -> Literal["rows", "tokens a side"]:
    return "tokens a side" if isinstance(recipe, TranslationRecipe) else "rows"


def format_with_unit(number: int, unit: str) -> str:
    """Such as `1 row`, `64 rows`, `4,096 tokens a side`."""
    return f"{number:,} {SINGULAR[unit] if number == 1 else unit}"


def device_share(recipe: Recipe) -> int:
    """What of a step falls to one device."""
    world = recipe.training.data_parallel_size
    if isinstance(recipe, TranslationRecipe):
        return recipe.task.batch_tokens // world
    return _row_task(recipe).batch_size // world


def micro_batches(recipe: Recipe, micro: int) -> int:
    """How many micro-batches of at most `micro` a device takes in a step."""
    return ceil(device_share(recipe) / micro)


def largest_micro_batch(
    recipe: Recipe, count: Callable[[int, bool], StepMemory], *, checkpointing: bool, available_bytes: int
) -> int | None:
    """The largest that fits into `available_bytes` bytes of a device; None where none does.

    Args:
        count: a step of a micro-batch, with activations kept or not, of the recipe's `rank_part`.
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
    """What `auto` comes to: a device's share in as few equal parts as fit into `available_bytes`, where that is
    known; the smallest there is, where none fits. Else `micro_batch`. Arguments as in `largest_micro_batch`."""
    if available_bytes is None or not recipe.task.finds_micro_batch:
        return micro_batch(recipe)
    largest = largest_micro_batch(recipe, count, checkpointing=checkpointing, available_bytes=available_bytes)
    return ceil(device_share(recipe) / micro_batches(recipe, largest or smallest_micro_batch(recipe)))


def smallest_micro_batch(recipe: Recipe) -> int:
    """One row; of a translator one of the longest."""
    return min(recipe.model.max_len, device_share(recipe)) if isinstance(recipe, TranslationRecipe) else 1


def tokens_of_row(recipe: Recipe) -> int:
    """Tokens, at the most, of what a plan counts as a row; of a bucket of pairs the tokens of a side."""
    if isinstance(recipe, TranslationRecipe):
        return recipe.task.bucket_tokens(recipe.training.data_parallel_size)
    return recipe.model.max_len


def plan_without_data(recipe: Recipe) -> Plan:
    """The plan of a run whose data nobody has looked at: epochs and orders mean nothing in it."""
    world = recipe.training.data_parallel_size
    if isinstance(recipe, TranslationRecipe):
        return plan_of(recipe.training, 1, batch=recipe.task.buckets_per_step(world), micro=1)
    task = _row_task(recipe)
    return plan_of(recipe.training, 1, batch=task.batch_size, micro=task.micro_batch(world))


def largest_that_fits(
    needed_bytes: Callable[[int], int], available_bytes: int, *, maximum: int, minimum: int = 1
) -> int | None:
    """The largest micro-batch, from `minimum` to `maximum`, that takes no more than `available_bytes`; None where
    none does. It
    is looked for on the line through the two known ones around it, within a few tries: where those end early, it is
    the largest that was seen to fit.

    Args:
        needed_bytes: the bytes of a micro-batch, which grow with it.
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
