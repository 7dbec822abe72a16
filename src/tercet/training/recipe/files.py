"""Recipes as files: the packaged ones by their names, one's own by its path, and nothing of what a key means."""

from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

from tercet.config import Plain, UserError, merge, suggest
from tercet.training.recipe.other_data import REQUIRED, replace_data

LENGTHS = ("max_steps", "max_epochs", "max_hours")  # of a run, of which one is said


def read_settings(name: str, changes: Mapping[str, Any] | None = None) -> Plain:
    """The YAML of a recipe, packaged or one's own, with `changes` laid over it: not parsed yet.

    Raises:
        UserError: where there is no such recipe, or it is no YAML.
    """
    if name.endswith((".yaml", ".yml")):
        from tercet.settings_yaml import read_yaml

        return change_settings(read_yaml(Path(name)), changes or {})
    text = recipe_text(name)

    from tercet.settings_yaml import parse_yaml

    return change_settings(parse_yaml(text, name=f"recipe {name}"), changes or {})


def change_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """A recipe's settings with `changes` laid over them. A length in the changes takes back the one in the settings,
    whatever that is said in: `training.max_steps=500` means so where the recipe counts epochs. Other data in the
    changes takes back the settings that belong to the recipe's own (`other_data`)."""
    new_training, training = changes.get("training"), settings.get("training")
    if (
        isinstance(new_training, Mapping)
        and isinstance(training, Mapping)
        and any(new_training.get(k) is not None for k in LENGTHS)
    ):
        settings = {**settings, "training": {key: x for key, x in training.items() if key not in LENGTHS}}
    return merge(replace_data(settings, changes), changes)


def recipe_names() -> dict[str, str]:
    """The packaged recipes, each with the comment on its first line."""
    files = (file for file in _recipe_folder().iterdir() if file.name.endswith(".yaml"))
    texts = {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}
    return {name: texts[name].splitlines()[0].removeprefix("#").strip() for name in sorted(texts)}


def recipes_from_scratch() -> list[str]:
    """The packaged recipes that make a model of their own, where others go on from one that exists."""
    return [name for name in recipe_names() if f"\npretrained: {REQUIRED}" not in recipe_text(name)]


def recipe_text(name: str) -> str:
    """The YAML of a packaged recipe, comments and all."""
    if name not in recipe_names():
        if Path(name).name != name or Path(name).suffix:
            raise UserError(
                f"unknown recipe {name!r}, and no such file or folder; `tercet recipes` lists what there is"
            )
        raise UserError(f"unknown recipe {name!r}{suggest(name, recipe_names())}")
    return (_recipe_folder() / f"{name}.yaml").read_text(encoding="utf-8")


def _recipe_folder() -> Any:
    return resources.files("tercet") / "recipes"
