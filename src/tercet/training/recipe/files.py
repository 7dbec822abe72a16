"""Read recipes from YAML: packaged recipes by name, other recipes by path.

This module does not interpret the keys; `recipe.py` parses them.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from tercet.config import Plain, UserError, merge, suggest
from tercet.custom_code import is_import_path
from tercet.training.recipe.other_data import REQUIRED, replace_data

LENGTHS = ("max_steps", "max_epochs", "max_hours")  # of a run; exactly one of them is set


def read_settings(name: str, changes: Mapping[str, Any] | None = None) -> Plain:
    """Return the unparsed settings of a packaged recipe or a YAML file, merged with `changes`.

    Args:
        name: Name of a packaged recipe, or path of a YAML file.
        changes: Changed keys, as nested mappings; None for none.

    Raises:
        UserError: If the recipe does not exist, or is not valid YAML.
    """
    if name.endswith((".yaml", ".yml")):
        from tercet.settings_yaml import read_yaml

        if not os.path.exists(name):
            raise UserError(f"no such file: {name}{_suggest_path(name)}")
        return change_settings(read_yaml(Path(name)), changes or {})
    text = recipe_text(name)

    from tercet.settings_yaml import parse_yaml

    return change_settings(parse_yaml(text, name=f"recipe {name}"), changes or {})


def change_settings(settings: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """Return the settings of a recipe, merged with `changes`.

    A run length in `changes` replaces the length of the recipe even if its key differs: `training.max_steps=500`
    replaces `training.max_epochs`. If `changes` set another source of data, settings that only fit the recipe's own
    data are removed (see `other_data.replace_data`).
    """
    new_training, training = changes.get("training"), settings.get("training")
    if (
        isinstance(new_training, Mapping)
        and isinstance(training, Mapping)
        and any(new_training.get(k) is not None for k in LENGTHS)
    ):
        settings = {**settings, "training": {key: x for key, x in training.items() if key not in LENGTHS}}
    return merge(replace_data(settings, changes), changes)


def recipe_names() -> dict[str, str]:
    """Return the names of the packaged recipes, each with the comment on the first line of its file."""
    return {name: text.splitlines()[0].removeprefix("#").strip() for name, text in _recipe_texts().items()}


def recipes_from_scratch() -> list[str]:
    """Return the names of the packaged recipes that do not require a pretrained model."""
    return [name for name, text in _recipe_texts().items() if f"\npretrained: {REQUIRED}" not in text]


def recipe_text(name: str) -> str:
    """Return the YAML text of a packaged recipe, with its comments.

    Raises:
        UserError: If there is no such recipe.
    """
    texts = _recipe_texts()
    if name not in texts:
        if Path(name).name != name or Path(name).suffix:
            hint = _suggest_path(name)
            if name.startswith("{") or is_import_path(name):
                hint = "; a dataset follows a recipe: tercet train RECIPE --data DATASET"
            elif not hint.startswith("; did you mean"):
                hint = "; run `tercet recipes` to list the recipes"
            raise UserError(f"unknown recipe {name!r}, and no such file or folder{hint}")
        raise UserError(f"unknown recipe {name!r}{suggest(name, texts)}")
    return texts[name]


def _suggest_path(name: str) -> str:
    from tercet.data.sources.files import suggest_path

    with suppress(OSError, ValueError):  # a name that no file can have
        return suggest_path(Path(name))
    return ""


@cache
def _recipe_texts() -> Mapping[str, str]:
    """Return the texts of the packaged recipes, by their sorted names."""
    files = (file for file in (resources.files("tercet") / "recipes").iterdir() if file.name.endswith(".yaml"))
    texts = {file.name.removesuffix(".yaml"): file.read_text(encoding="utf-8") for file in files}
    return dict(sorted(texts.items()))
