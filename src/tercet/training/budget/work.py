"""The text of a run, and the work of a step of each size."""

from collections.abc import Sequence

from tercet.checkpoint.forecast import Pilot
from tercet.config import UserError
from tercet.training.budget.choose import Work
from tercet.training.budget.pilots import PilotRuns
from tercet.training.budget.settings import TextSize


def measure_work(pilots: PilotRuns, trained: Pilot, sizes: Sequence[int]) -> Work:
    """Return the text and the work of a step of each size.

    Args:
        pilots: Pilot runs of a request.
        trained: A finished pilot run.
        sizes: Sizes that are considered.

    Raises:
        UserError: If the task has no loss of counting tokens to compare with.
    """
    from tercet.checkpoint import read_card
    from tercet.training.planning.flops import training_flops
    from tercet.training.planning.micro_batch import tokens_of_row
    from tercet.training.run.judge import loss_unit, ngram_loss, unigram_loss
    from tercet.training.run_folder.changes import read_recipe
    from tercet.training.tasks.open_task import task_of

    folder = pilots.path(trained.size, trained.steps)
    task = task_of(read_recipe(folder), pretrained=None, progress=False)
    unigram = unigram_loss(task, read_card(folder).metrics)
    if unigram is None or unigram <= 0:
        raise UserError("--hours requires validation on more than one kind of token; set training.max_hours instead")
    row = tokens_of_row(task.recipe)
    flops, multiplied = dict[int, float](), dict[int, int]()
    for size in sizes:
        recipe = pilots.resolve(size, 1, folder, validations=1).recipe
        work = training_flops(recipe.with_vocabulary(task.recipe.model.vocab_size))
        flops[size] = work.per_token * row * task.plan.full_batch
        multiplied[size] = work.multiplied
    validated = sum(len(group) for group in task.validation_groups()) * row
    return Work(
        task=task.recipe.task.kind, unit=loss_unit(task),
        text=TextSize(task.plan.n_rows * row, row * task.plan.full_batch, task.recipe.model.vocab_size),
        unigram_loss=unigram,
        ngram_loss=ngram_loss(task),
        validation_tokens=validated, flops=flops, multiplied=multiplied,
    )  # fmt: skip
