"""Keys of all recipes, with the possible values of keys that accept only certain values."""

import dataclasses
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from tercet.training.recipe.recipe import RECIPES

WORDS = {True: "true", False: "false", None: "null"}


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

    choices_by_key: dict[str, dict[str, None]] = {"model.preset": dict.fromkeys(PRESETS)}
    for spec in RECIPES.values() if task is None else [RECIPES[task]]:
        for key, choices in _walk(spec, ""):
            choices_by_key.setdefault(key, {}).update(dict.fromkeys(choices))
    return {key: tuple(choices_by_key[key]) for key in sorted(choices_by_key)}


def spec_modules(spec: type) -> set[str]:
    """Return the names of the modules that define a spec and all specs within it."""
    modules = {spec.__module__}
    for hint in get_type_hints(spec).values():
        for member in union_members(hint):
            if dataclasses.is_dataclass(member) and isinstance(member, type):
                modules |= spec_modules(member)
    return modules


def _walk(spec: type, path: str) -> Iterator[tuple[str, list[str]]]:
    for name, hint in get_type_hints(spec, include_extras=False).items():
        key, choices = f"{path}{name}", list[str]()
        for member in union_members(hint):
            if get_origin(member) is Literal:
                choices += [WORDS.get(word, str(word)) for word in get_args(member)]
            elif member is bool:
                choices += ["true", "false"]
            elif dataclasses.is_dataclass(member) and isinstance(member, type):
                kind = get_type_hints(member).get("kind")
                choices += get_args(kind) if get_origin(kind) is Literal else ()
                yield from _walk(member, f"{key}.")
        yield key, choices


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the member types of a union, or the type itself; `Annotated` types are unwrapped."""
    if get_origin(hint) is Annotated:
        return union_members(hint.__origin__)
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(member for part in get_args(hint) for member in union_members(part))
    return (hint,)
