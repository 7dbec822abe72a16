"""Every key that a recipe can have, with the words that may stand behind it where only certain ones will do."""

import dataclasses
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tercet.training.recipe.recipe import RECIPES

WORDS = {True: "true", False: "false", None: "null"}


def recipe_keys(task: str | None = None) -> dict[str, tuple[str, ...]]:
    """Keys as `--set` has them, such as "model.stack.position", each with its choices; of one task's recipes, or of
    all. A slot that takes one of several specs offers their kinds."""
    from tercet.models import PRESETS

    choices_by_key: dict[str, dict[str, None]] = {"model.preset": dict.fromkeys(PRESETS)}
    for spec in RECIPES.values() if task is None else [RECIPES[task]]:
        for key, choices in _walk(spec, ""):
            choices_by_key.setdefault(key, {}).update(dict.fromkeys(choices))
    return {key: tuple(choices_by_key[key]) for key in sorted(choices_by_key)}


def spec_files(spec: type) -> set[str]:
    """The names of the modules that define the spec and all within it."""
    modules = {spec.__module__}
    for hint in get_type_hints(spec).values():
        for member in _members(hint):
            if dataclasses.is_dataclass(member) and isinstance(member, type):
                modules |= spec_files(member)
    return modules


def _walk(spec: type, path: str) -> Iterator[tuple[str, list[str]]]:
    for name, hint in get_type_hints(spec, include_extras=False).items():
        key, choices = f"{path}{name}", list[str]()
        for member in _members(hint):
            if get_origin(member) is Literal:
                choices += [WORDS.get(word, str(word)) for word in get_args(member)]
            elif member is bool:
                choices += ["true", "false"]
            elif dataclasses.is_dataclass(member) and isinstance(member, type):
                kind = get_type_hints(member).get("kind")
                choices += get_args(kind) if get_origin(kind) is Literal else ()
                yield from _walk(member, f"{key}.")
        yield key, choices


def _members(hint: Any) -> tuple[Any, ...]:
    """The types of a union, or the only one; what stands in an `Annotated` is that type."""
    if get_origin(hint) is Annotated:
        return _members(hint.__origin__)
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(member for part in get_args(hint) for member in _members(part))
    return (hint,)
