"""Construct the task of a recipe."""

from tercet.checkpoint import TrainedModel
from tercet.training.recipe.recipe import (
    ChatRecipe,
    LabelsRecipe,
    LanguageRecipe,
    MaskedRecipe,
    Recipe,
    TranslationRecipe,
    VectorsRecipe,
)
from tercet.training.tasks.task import Task


def task_of(recipe: Recipe, *, pretrained: TrainedModel | None = None, progress: bool) -> Task:
    """Return the task of a recipe, with its data read, tokenized and checked against the settings.

    Args:
        recipe: Recipe.
        pretrained: Pretrained model, whose tokenizer is used; None to use that of the recipe.
        progress: If True, report progress on stderr.

    Raises:
        UserError: If data and settings do not fit together.
    """
    match recipe:
        case LanguageRecipe():
            from tercet.training.tasks.language import LanguageTask

            return LanguageTask(recipe, pretrained=pretrained, progress=progress)
        case MaskedRecipe():
            from tercet.training.tasks.masked import MaskedTask

            return MaskedTask(recipe, pretrained=pretrained, progress=progress)
        case TranslationRecipe():
            from tercet.training.tasks.translation import TranslationTask

            return TranslationTask(recipe, pretrained=pretrained, progress=progress)
        case LabelsRecipe():
            from tercet.training.tasks.labels import LabelsTask

            return LabelsTask(recipe, pretrained=pretrained, progress=progress)
        case ChatRecipe():
            from tercet.training.tasks.chat import ChatTask

            return ChatTask(recipe, pretrained=pretrained, progress=progress)
        case VectorsRecipe():
            from tercet.training.tasks.vectors import VectorsTask

            return VectorsTask(recipe, pretrained=pretrained, progress=progress)
        case _:
            raise TypeError(f"no task for a {type(recipe).__name__}")
