"""What one device holds at once: the micro-batch that a recipe comes to, and the largest that fits."""

from collections.abc import Callable

from tercet.training.plan import Plan, plan_of
from tercet.training.recipe import Recipe, TranslationRecipe
from tercet.training.tasks.specs import RowBatchSpec

TRIES = 8  # steps that are counted in looking for the largest


def micro_batch(recipe: Recipe) -> int:
    """Rows that a device holds at once; of a translator tokens a side."""
    world = recipe.training.data_parallel_size
    if isinstance(recipe, TranslationRecipe):
        return min(recipe.task.bucket_tokens(world), device_share(recipe))
    return min(_row_task(recipe).micro_batch(world), device_share(recipe))


def device_share(recipe: Recipe) -> int:
    """Rows of a step that fall to one device; of a translator tokens a side."""
    world = recipe.training.data_parallel_size
    if isinstance(recipe, TranslationRecipe):
        return recipe.task.batch_tokens // world
    return _row_task(recipe).batch_size // world


def micro_batches(recipe: Recipe) -> int:
    """How many of them a device takes in a step."""
    return -(-device_share(recipe) // micro_batch(recipe))


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


def largest_that_fits(takes: Callable[[int], int], room: int, *, most: int, least: int = 1) -> int | None:
    """The largest micro-batch, from `least` to `most`, that takes no more than `room` bytes; None where none does. It
    is looked for on the line through the two known ones around it, within a few tries: where those end early, it is
    the largest that was seen to fit.

    Args:
        takes: the bytes of a micro-batch, which grow with it.
    """
    low, high = least, most
    if (at_high := takes(high)) <= room:
        return high
    if high == low or (at_low := takes(low)) > room:
        return None
    for _ in range(TRIES):
        if high - low <= 1:
            break
        guess = low + int((room - at_low) / max(1, at_high - at_low) * (high - low))
        guess = min(max(guess, low + 1), high - 1)
        if (at_guess := takes(guess)) <= room:
            low, at_low = guess, at_guess
            if high - guess > 1 and takes(guess + 1) > room:
                break
        else:
            high, at_high = guess, at_guess
    return low


def _row_task(recipe: Recipe) -> RowBatchSpec:
    assert isinstance(recipe.task, RowBatchSpec)
    return recipe.task
