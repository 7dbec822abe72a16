"""Vocabulary sizes of a recipe before its data is read, as upper limits from the tokenizer settings."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.data import LabelsSpec
from tercet.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    from tercet.tokens import TokenizerSpec
    from tercet.training.tasks.task import Task

GPT2_VOCABULARY_SIZE = 50_257  # tokens


@dataclass(frozen=True)
class SizedRecipe:
    """A recipe with its vocabulary sizes.

    Args:
        recipe: Recipe with the sizes of its vocabularies; 0 if they are unknown.
        vocabulary_limits: Maximum sizes of vocabularies that are not yet trained, by `vocab_size` and
            `source_vocab_size`; None if there are none.
        task: Task of the recipe if its data was read, else None.
    """

    recipe: Recipe
    vocabulary_limits: dict[str, int] | None = None
    task: "Task | None" = None


def size_recipe(recipe: Recipe, *, read_data: bool = True, progress: bool = False) -> SizedRecipe:
    """Return the recipe with its vocabulary sizes.

    Args:
        recipe: Recipe.
        read_data: If True, read and tokenize the data if the vocabulary size or the labels depend on it. If False, an
            unknown vocabulary size is 0, and there are no labels.
        progress: If True, report progress of reading the data on stderr.

    Raises:
        UserError: If the data cannot be read.
    """
    tokenizer, source_tokenizer = recipe.data.tokenizer, getattr(recipe.data, "source_tokenizer", None)
    size, source_size = (
        vocabulary_size(tokenizer),
        None if source_tokenizer is None else vocabulary_size(source_tokenizer),
    )
    has_labels = isinstance(recipe.data, LabelsSpec)
    if recipe.pretrained is not None and not has_labels:
        return SizedRecipe(recipe)  # with the vocabulary of the pretrained model
    if size is None or (source_tokenizer is not None and source_size is None):
        size, source_size = 0, None
    if read_data and (has_labels or not size):  # the sizes depend on the data
        task = read_task(recipe, progress=progress)
        return SizedRecipe(task.recipe, task=task)
    tokenizers = {"source_vocab_size": source_tokenizer, "vocab_size": tokenizer}
    limits = {
        side: vocabulary_size(settings)
        for side, settings in tokenizers.items()
        if settings is not None and settings.kind != "gpt2"
    }
    sized_recipe = recipe.with_vocabulary(size, source_size=source_size)
    known_limits = {
        side: count for side, count in limits.items() if count is not None and sized_recipe.model.vocab_size
    }
    return SizedRecipe(sized_recipe, known_limits or None)


def read_task(recipe: Recipe, *, progress: bool) -> "Task":
    """Read and tokenize the data of a recipe as at the start of a run, and return its task.

    Raises:
        UserError: If the data is missing or cannot be read, or data and settings do not fit together.
    """
    from tercet.checkpoint import load_model
    from tercet.data.corpora.find_sources import check_sources
    from tercet.training.tasks.open_task import task_of

    check_sources(recipe.data)
    old = None if recipe.pretrained is None else load_model(Path(recipe.pretrained))
    return task_of(recipe, pretrained=old, progress=progress)


def vocabulary_size(tokenizer: "TokenizerSpec") -> int | None:
    """Return the maximum vocabulary size of a tokenizer in tokens, or None if only the data determines it."""
    return GPT2_VOCABULARY_SIZE if tokenizer.kind == "gpt2" else getattr(tokenizer, "vocab_size", None)
