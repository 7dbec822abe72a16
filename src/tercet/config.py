"""Settings as frozen dataclasses, read strictly from JSON and YAML.

A spec is a plain frozen dataclass. A slot that can hold one of several specs is a union of dataclasses, each with a
literal `kind`; in a recipe it is written `position: {kind: rotary, base: 500000}`, or `position: rotary` where the
defaults will do; where one value may stand for all keys of a mapping, the slot is a union with that value's type,
`bias: bool | Biases`. Pydantic does the checking; this file says where a mistake is, and what was probably meant.
"""

import dataclasses
import difflib
import types
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

import pydantic
import yaml

Spec = TypeVar("Spec")
Plain = dict[str, Any]

TAGS = ("kind", "family")  # the literal field that tells the members of a union apart; a model's is its family


class UserError(Exception):
    """A mistake of the user's, told in one line with its remedy. The command line ends with exit code 2."""


def parse(spec: type[Spec], data: Mapping[str, Any], *, name: str = "") -> Spec:
    """Build the frozen dataclass `spec` from nested mappings.

    Args:
        spec: a dataclass whose fields are numbers, strings, literals, other dataclasses or unions of them by `kind`.
        data: what a YAML or JSON file held.
        name: where `data` comes from, put before every message.

    Raises:
        UserError: on an unknown key (with the nearest known one), a missing key or a value of the wrong type.
    """
    try:
        return _build(spec, data, "")
    except UserError as error:
        raise UserError(f"{name}: {error}" if name else str(error)) from None


def to_plain(spec: Any) -> Any:
    """The inverse of `parse`: dataclasses become dictionaries that JSON and YAML can hold."""
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        return {field.name: to_plain(getattr(spec, field.name)) for field in dataclasses.fields(spec)}
    if isinstance(spec, list | tuple):
        return [to_plain(item) for item in spec]
    return spec


def check_at_least(spec: Any, least: int, *names: str) -> None:
    """For a spec's `__post_init__`: those of its numbers that are not None.

    Raises:
        ValueError: for the first that is below `least`.
    """
    for name in names:
        value = getattr(spec, name)
        if value is not None and value < least:
            raise ValueError(f"{name}={value} must {f'be at least {least}' if least else 'not be negative'}")


def read_yaml(path: Path) -> Plain:
    """A YAML file whose top level is a mapping.

    Raises:
        UserError: where the file is missing or is not such YAML, with the line.
    """
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), name=str(path))
    except FileNotFoundError:
        raise UserError(f"no such file: {path}") from None
    except (IsADirectoryError, UnicodeDecodeError):
        raise UserError(f"{path} is not a YAML file") from None


def parse_yaml(text: str, *, name: str) -> Plain:
    try:
        data = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" line {mark.line + 1}" if mark else ""
        raise UserError(f"{name}{where}: not valid YAML: {getattr(error, 'problem', None) or error}") from None
    if not isinstance(data, dict):
        raise UserError(f"{name}: expected `key: value` lines at the top level")
    return data


def write_yaml(spec: Any) -> str:
    return yaml.safe_dump(to_plain(spec), sort_keys=False, allow_unicode=True)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """`base` with `changes` laid over it, mapping by mapping; where the `kind` changes, the old mapping goes whole."""
    merged = dict(base)
    for key, value in changes.items():
        old = merged.get(key)
        if isinstance(old, str) and isinstance(value, Mapping) and "kind" not in value:
            old = {"kind": old}  # `position: rotary` in the base, `position.base=5` on top
        same_kind = isinstance(value, Mapping) and isinstance(old, Mapping) and value.get("kind", old.get("kind"))
        if isinstance(value, Mapping) and isinstance(old, Mapping) and same_kind == old.get("kind"):
            merged[key] = merge(old, value)
        else:
            merged[key] = merge({}, value) if isinstance(value, Mapping) else value
    return merged


def parse_assignment(text: str) -> Plain:
    """`a.b=value` as nested mappings; the value is read as YAML, so `1e-3`, `true` and `{kind: alibi}` all work."""
    path, equals, value = text.partition("=")
    keys = path.strip().split(".")
    if not equals or not all(keys):
        raise UserError(f"--set {text!r}: expected key=value, such as training.max_steps=500")
    try:
        return nest(path.strip(), yaml.safe_load(value))
    except yaml.YAMLError:
        raise UserError(f"--set {text!r}: the value is not valid YAML; put it in quotes") from None


def nest(path: str, value: Any) -> Plain:
    """`a.b` and a value as {"a": {"b": value}}."""
    for key in reversed(path.split(".")):
        value = {key: value}
    return value


def find_differences(old: Any, new: Any, path: str = "") -> list[str]:
    """The leaves in which two plain values differ, one line each: `training.seed: 1 -> 2`."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            line
            for key in keys
            for line in find_differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if old == new else [f"{path}: {old!r} -> {new!r}"]


def suggest(word: str, known: Iterable[str]) -> str:
    """`"; did you mean 'base'?"`, or the list of what is known where nothing comes near."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=1, cutoff=0.5)
    return f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(names)}"


def _build(annotation: Any, data: Any, path: str) -> Any:
    """`data` as a value of type `annotation`: structure and names are checked here, single values by pydantic."""
    variants = _variants(annotation)
    if not variants or (data is None and type(None) in get_args(annotation)):
        return _value(annotation, data, path)
    where = f"{path}: " if path else ""
    scalar = _scalar(annotation)
    if scalar is not None and not isinstance(data, Mapping):
        return _value(scalar, data, path)
    if isinstance(data, str) and None not in variants:
        data = {"kind": data}
    if not isinstance(data, Mapping):
        raise UserError(f"{where}expected a mapping of keys, got {data!r}")
    tag = next((tag for tag in TAGS if tag in data), "kind")
    kind = data.get(tag, next(iter(variants)) if len(variants) == 1 else None)
    if kind not in variants:
        names = [str(name) for name in variants]
        raise UserError(
            f"{where}unknown {tag} {kind!r}{suggest(str(kind), names)}"
            if tag in data
            else f"{where}needs a `kind`{suggest('', names)}"
        )
    chosen = variants[kind]
    hints = get_type_hints(chosen, include_extras=True)
    for key in data:
        if key not in hints:
            raise UserError(f"{where}unknown key {key!r}{suggest(str(key), hints)}")
    for field in dataclasses.fields(chosen):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in data and not optional:
            raise UserError(f"{where}the key {field.name!r} is missing")
    below = {key: _build(hints[key], value, f"{path}.{key}" if path else key) for key, value in data.items()}
    try:
        return chosen(**below)
    except ValueError as error:  # a spec refuses an impossible combination in its __post_init__
        raise UserError(f"{where}{error}") from None


def _value(annotation: Any, data: Any, path: str) -> Any:
    try:
        if isinstance(data, bool) and annotation is not bool and "bool" not in str(annotation):
            raise UserError(f"{path}: expected a number or text, got {str(data).lower()}")
        return _adapter(annotation).validate_python(data)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise UserError(f"{path}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {data!r}") from None


@cache
def _adapter(annotation: Any) -> pydantic.TypeAdapter[Any]:
    return pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(allow_inf_nan=False))


def _scalar(annotation: Any) -> Any:
    """The number or switch that may stand in a slot in place of a mapping: one value for all of its keys."""
    plain_types = [member for member in get_args(annotation) if member in (bool, int, float)]
    return plain_types[0] if plain_types else None


def _variants(annotation: Any) -> dict[str | None, type]:
    """The dataclasses a slot can hold, by what their tag says; one without a tag stands alone, under None."""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    variants: dict[str | None, type] = {}
    for member in members:
        if dataclasses.is_dataclass(member) and isinstance(member, type):
            hints = get_type_hints(member)
            kind = next((hints[tag] for tag in TAGS if tag in hints), None)
            variants[get_args(kind)[0] if kind else None] = member
    return variants
