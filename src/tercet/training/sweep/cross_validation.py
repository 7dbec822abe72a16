"""Cross-validation: recipes whose validation part is one fold of their data."""

from collections.abc import Iterable
from dataclasses import replace

from tercet.config import UserError
from tercet.data import (
    LABEL_DATASETS,
    PAIR_DATASETS,
    QUERY_DATASETS,
    Fold,
    HeldOut,
    HeldOutLabels,
    HeldOutPairs,
    TextSpec,
)
from tercet.spec import check_range, field_annotations
from tercet.training.recipe.recipe import Recipe

VALIDATION = "data.validation"


def make_folds(folds: int | None, seed: int) -> list[Fold | None]:
    """Return the folds of a division; [None] without folds."""
    if folds is None:
        return [None]
    return [Fold(folds=folds, fold=number, seed=seed) for number in range(1, folds + 1)]


def set_fold(recipe: Recipe, fold: Fold | None) -> Recipe:
    """Return the recipe with a fold as its validation part; None leaves the recipe unchanged."""
    return recipe if fold is None else replace(recipe, data=replace(recipe.data, validation=fold))


def check_folds(folds: int, varied_keys: Iterable[str], finished_runs: Iterable[str]) -> None:
    """Check that a comparison can be repeated for each fold.

    Args:
        folds: Number of folds.
        varied_keys: Varied keys of the recipes.
        finished_runs: Folders of finished runs in the comparison.

    Raises:
        UserError: If there are fewer than two folds or too many, a key varies the validation part, or there is a
            finished run, whose validation part cannot change.
    """
    try:
        check_range("folds", folds, field_annotations(Fold)["folds"])
    except ValueError as error:
        raise UserError(f"--folds: {error}") from None
    if key := next((key for key in varied_keys if f"{key}.".startswith(f"{VALIDATION}.")), ""):
        raise UserError(f"--vary {key} and --folds both set the validation part; remove one of them")
    if run := next(iter(finished_runs), ""):
        raise UserError(f"--folds applies only to recipes, and {run} is a finished run; leave it out")


def check_division(name: str, recipe: Recipe) -> None:
    """Check that the validation part of a recipe is not a separate source.

    Args:
        name: Name of the recipe in the message.
        recipe: Recipe before its validation part is replaced by a fold.

    Raises:
        UserError: If it is a separate source.
    """
    validation = recipe.data.validation
    if not isinstance(validation, HeldOut | HeldOutLabels | HeldOutPairs):
        return
    rule = "documents" if isinstance(recipe.data, TextSpec) else "drawn"
    raise UserError(
        f"{name} has a separate validation source, {validation.source}, which --folds would not use; to divide only "
        f"{recipe.data.source}, pass --set {VALIDATION}={rule}; to divide both, join them into one data.source"
    )


def describe_division(recipe: Recipe) -> str | None:
    """Return a note if the recipe has the validation part of a named dataset, which folds do not use; else None."""
    source = recipe.data.source
    if recipe.data.validation is not None or source not in {*LABEL_DATASETS, *PAIR_DATASETS, *QUERY_DATASETS}:
        return None
    return f"{source}: the folds divide its training part; its validation part is not used"
