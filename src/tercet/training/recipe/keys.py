"""Keys of all recipes, with the possible values of keys that accept only certain values."""

from contextlib import suppress
from pathlib import Path

from tercet.checkpoint.run_record import RECIPE
from tercet.config import UserError
from tercet.training.recipe.files import read_settings
from tercet.training.recipe.for_data import choose_recipe, is_data
from tercet.training.recipe.recipe import RECIPES, task_kind
from tercet.training.recipe.spec_keys import walk_keys


def recipe_keys(task: str | None = None) -> dict[str, tuple[str, ...]]:
    """Return all recipe keys with their choices.

    Args:
        task: Task whose keys are returned; None for the keys of all tasks.

    Returns:
        Possible values of each key as words, by the name of the key as in `--set`, such as "model.stack.position". For
        a key that accepts one of several specs, these are the kinds of the specs. A key that accepts other values, such
        as any number, may have no choices.
    """
    from tercet.models import PRESETS

    choices_by_key: dict[str, dict[str, None]] = {"model.preset": dict.fromkeys(PRESETS), "model.size": {}}
    for spec in RECIPES.values() if task is None else [RECIPES[task]]:
        for key, choices in walk_keys(spec):
            choices_by_key.setdefault(key, {}).update(dict.fromkeys(choices))
    return {key: tuple(choices_by_key[key]) for key in sorted(choices_by_key)}


def task_of(name: str) -> str:
    """Return the task of a packaged recipe, a YAML file, a run folder or data, and "language" if it is unknown."""
    with suppress(UserError, OSError):
        recipe = choose_recipe(name, None, {}, pretrained=False).recipe if is_data(name) else name
        path = Path(name) / RECIPE
        return task_kind(read_settings(str(path) if path.is_file() else recipe), name=name)
    return "language"
