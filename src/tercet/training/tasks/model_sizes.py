"""How large a recipe's vocabulary will be before its data is read: what the tokenizer's settings say, at the most."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.data import LabelsSpec
from tercet.training.recipe.recipe import Recipe

if TYPE_CHECKING:
    from tercet.tokens import TokenizerSpec
    from tercet.training.tasks.task import Task

GPT2_VOCABULARY_SIZE = 50_257  # tokens of GPT-2's own vocabulary


@dataclass(frozen=True)
class SizedRecipe:
    """Attributes:
    recipe: with the sizes of its vocabularies, as far as they are known.
    vocabulary_limits: by side the most tokens of a vocabulary that is still to be learnt, which the recipe has.
    task: where the data had to be read for it.
    """

    recipe: Recipe
    vocabulary_limits: dict[str, int] | None = None
    task: "Task | None" = None


def size_recipe(recipe: Recipe, *, read_data: bool = True, progress: bool = False) -> SizedRecipe:
    """The recipe with its vocabularies' sizes.

    Args:
        read_data: whether to prepare the data where they alone know how large the vocabulary is, or the labels;
            else these stay unknown: 0, and none.
        progress: say on stderr how far the data are.

    Raises:
        UserError: where the data cannot be read.
    """
    tokenizer, source_tokenizer = recipe.data.tokenizer, getattr(recipe.data, "source_tokenizer", None)
    size, source_size = (
        vocabulary_size(tokenizer),
        None if source_tokenizer is None else vocabulary_size(source_tokenizer),
    )
    has_labels = isinstance(recipe.data, LabelsSpec)
    if recipe.pretrained is not None and not has_labels:
        return SizedRecipe(recipe)  # whose vocabulary is kept
    if size is None or (source_tokenizer is not None and source_size is None):
        size, source_size = 0, None
    if read_data and (has_labels or not size):  # the data decides
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
    """The recipe's task, whose data is read and cut into tokens, as a run begins."""
    from tercet.checkpoint import load_model
    from tercet.data.corpora.find_sources import check_sources
    from tercet.training.tasks.open_task import task_of

    check_sources(recipe.data)
    old = None if recipe.pretrained is None else load_model(Path(recipe.pretrained))
    return task_of(recipe, pretrained=old, progress=progress)


def vocabulary_size(tokenizer: "TokenizerSpec") -> int | None:
    """At most; None where the data decides."""
    return GPT2_VOCABULARY_SIZE if tokenizer.kind == "gpt2" else getattr(tokenizer, "vocab_size", None)
