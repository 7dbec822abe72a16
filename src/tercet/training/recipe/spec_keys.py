"""Keys of a spec and of all specs within it, with the possible values of keys that accept only certain values."""

import dataclasses
import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

WORDS = {True: "true", False: "false", None: "null"}


def spec_modules(spec: type) -> set[str]:
    """Return the names of the modules that define a spec and all specs within it."""
    modules = {spec.__module__}
    for hint in get_type_hints(spec).values():
        for member in union_members(hint):
            if dataclasses.is_dataclass(member) and isinstance(member, type):
                modules |= spec_modules(member)
    return modules


def walk_keys(spec: type, path: str = "") -> Iterator[tuple[str, list[str]]]:
    """Yield each key of a spec, such as "model.stack.position", and its possible values as words.

    Args:
        spec: Dataclass of the spec.
        path: Beginning of the keys, such as "model.".
    """
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
                yield from walk_keys(member, f"{key}.")
        yield key, choices


def union_members(hint: Any) -> tuple[Any, ...]:
    """Return the member types of a union, or the type itself; `Annotated` types are unwrapped."""
    if get_origin(hint) is Annotated:
        return union_members(hint.__origin__)
    if get_origin(hint) in (Union, types.UnionType):
        return tuple(member for part in get_args(hint) for member in union_members(part))
    return (hint,)
