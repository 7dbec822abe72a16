"""Settings as frozen dataclasses (specs), parsed strictly from JSON and YAML data.

A field that can contain one of several specs is a union of dataclasses, each with a literal field `kind`. In a recipe,
such a field is written `position: {kind: rotary, base: 500000}`, or `position: rotary` for the defaults. If one value
can stand for all keys of a mapping, the field is a union with the type of that value, such as `bias: bool | Biases`.
If a union contains a subclass of `Custom`, such as `CustomPosition`, the kind may also be the import path of a class of
another package, which inherits from this subclass.
Pydantic checks the types of single values. This module adds the location of an error and the nearest valid name.
"""

import dataclasses
import difflib
import math
import types
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from tercet.custom_code import is_import_path, load_class, suggest_import_path
from tercet.messages import one_line, show
from tercet.spec import Custom, check_range, field_annotations, literal_choices

if TYPE_CHECKING:
    import pydantic

Spec = TypeVar("Spec")
Plain = dict[str, Any]

MAX_KEYS = 16  # maximum number of keys in a path such as model.stack.position.base
TAGS = ("kind", "family")  # names of the literal field that identifies a member of a union; models use `family`
# Values of settings in other programs and papers, separated by spaces, and the value of the same meaning.
OTHER_WORDS = {
    "lm clm gpt causal_lm causal-lm": "language", "mlm masked_lm": "masked", "embedding embeddings": "vectors",
    "classification classifier sequence_classification": "labels", "seq2seq nmt mt": "translation",
    "rope": "rotary", "t5": "relative_bias", "absolute": "learned", "sine": "sinusoidal", "nope": "none",
    "layernorm ln": "layer", "swish swiglu": "silu", "relu2": "relu_squared", "prenorm": "pre", "postnorm": "post",
    "char character byte": "characters", "sentencepiece": "unigram", "cls": "first", "avg average": "mean",
}  # fmt: skip


class UserError(Exception):
    """An error that the user can correct. The command line prints the message and exits with code 2.

    The message contains the problem and the remedy. It is converted to one line of bounded length, and its control
    characters are escaped.
    """

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(str(message)))


class UnknownKey(UserError):
    """A key that a spec does not have.

    Attributes:
        problem: The message without a suggestion.
        key: Path of the key in the parsed data, such as "training.max_step".
    """

    def __init__(self, problem: str, suggestion: str, key: str) -> None:
        super().__init__(problem + suggestion)
        self.problem = problem
        self.key = key


class MarkedKey(str):
    """A key of a mapping, with the number of its line in a YAML file.

    Attributes:
        line: Number of the line, from 1.
    """

    line: int

    @classmethod
    def at(cls, key: str, line: int) -> "MarkedKey":
        result = cls(key)
        result.line = line
        return result


def parse(spec: type[Spec], data: Mapping[str, Any], *, name: str = "") -> Spec:
    """Build the frozen dataclass `spec` from nested mappings.

    Args:
        spec: Dataclass whose fields are numbers, strings, literals, other dataclasses, tuples, or unions of these. The
            key `kind` selects the dataclass of a union.
        data: Content of a YAML or JSON file.
        name: Source of `data` for error messages, such as the path of the file.

    Raises:
        UserError: If a key is unknown (with the nearest valid one) or missing, a value has the wrong type or is out of
            range, or values do not fit together.
    """
    try:
        return _build(spec, data, "", None)
    except _InvalidValue as error:
        location = f"{name} line {error.line}" if name and error.line is not None else name
        problem = f"{location}: {error}" if location else str(error)
        if isinstance(error, _UnknownKey):
            raise UnknownKey(problem, error.suggestion, error.key) from None
        raise UserError(problem) from None


def to_plain(spec: Any) -> Any:
    """Return a spec as nested dictionaries and lists for JSON and YAML, from which `parse` restores it."""
    if dataclasses.is_dataclass(spec) and not isinstance(spec, type):
        kind = {"kind": spec.kind} if isinstance(spec, Custom) else {}
        return kind | {field.name: to_plain(getattr(spec, field.name)) for field in dataclasses.fields(spec)}
    if isinstance(spec, list | tuple):
        return [to_plain(item) for item in spec]
    return spec


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> Plain:
    """Return `base` with `changes` merged recursively; neither argument is changed.

    If `changes` sets another `kind` for a mapping, the mapping of `base` is dropped entirely.
    """
    merged = dict(base)
    for key, value in changes.items():
        old = merged.pop(key, None)  # also removes the old key: the new one has the line of the new value
        if isinstance(old, str) and isinstance(value, Mapping) and "kind" not in value:
            old = {"kind": old}  # `position: rotary` in the base, `position.base=5` on top
        same_kind = isinstance(value, Mapping) and isinstance(old, Mapping) and value.get("kind", old.get("kind"))
        if isinstance(value, Mapping) and isinstance(old, Mapping) and same_kind == old.get("kind"):
            merged[key] = merge(old, value)
        else:
            merged[key] = merge({}, value) if isinstance(value, Mapping) else value
    return merged


def nest(path: str, value: Any) -> Plain:
    """Return nested mappings with one value: `nest("a.b", 1)` is {"a": {"b": 1}}.

    Raises:
        UserError: If the path has an empty key, or more than `MAX_KEYS` keys.
    """
    keys = path.split(".")
    if not all(keys) or len(keys) > MAX_KEYS:
        raise UserError(f"{show(path)} is not a recipe key; use one such as training.max_steps")
    for key in reversed(keys):
        value = {key: value}
    return value


def find_differences(old: Any, new: Any, path: str = "") -> list[str]:
    """Return the leaves in which two plain values differ, one line each, such as `training.seed: 1 -> 2`.

    A key that only one of them contains counts as None in the other. `path` is the key of both values, for recursion.
    """
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        return [
            line
            for key in keys
            for line in find_differences(old.get(key), new.get(key), f"{path}.{key}" if path else str(key))
        ]
    return [] if old == new else [f"{path}: {show(old)} -> {show(new)}"]


def suggest(word: object, choices: Iterable[str], *, similar: float = 0.5) -> str:
    """Return the end of an error message about an unknown word.

    It suggests the choice that `OTHER_WORDS` contains for the word, or the most similar choice ("; did you mean
    'base'?"), or lists all choices if none is similar.

    Args:
        word: The unknown word.
        choices: The known words.
        similar: Minimum similarity of a suggested choice, from 0 to 1 (equal except for case).
    """
    names = sorted(choices)
    text = word if isinstance(word, str) else show(word)
    by_lower_case = {name.lower(): name for name in reversed(names)}
    other = next((name for names, name in OTHER_WORDS.items() if text.lower() in names.split()), None)
    close = difflib.get_close_matches(text.lower(), by_lower_case, n=1, cutoff=similar)
    guess = other if other in names else by_lower_case[close[0]] if close else None
    return f"; known: {', '.join(names)}" if guess is None else f"; did you mean {guess!r}?"


class _InvalidValue(Exception):
    """An invalid value.

    Attributes:
        line: Line of the value in the file, or None if it is not known.
    """

    def __init__(self, message: str, line: int | None) -> None:
        super().__init__(message)
        self.line = line


class _UnknownKey(_InvalidValue):
    """An unknown key, with the attributes of `UnknownKey` and the suggestion for the end of the message."""

    def __init__(self, problem: str, suggestion: str, key: str, line: int | None) -> None:
        super().__init__(problem, line)
        self.suggestion = suggestion
        self.key = key


def _build(annotation: Any, data: Any, path: str, line: int | None) -> Any:
    """Convert `data`, which the file contains at the keys `path` and in `line`, to the type `annotation`.

    This function checks keys, kinds and ranges; `_value` checks the types of single values.

    Raises:
        _InvalidValue: If `data` does not match the type.
    """
    if (item := _item(annotation)) is not None:
        if not isinstance(data, list | tuple):
            raise _InvalidValue(f"{path}: expected a list, got {show(data)}", line)
        return tuple(
            element if isinstance(element, item) else _build(item, element, f"{path}[{number}]", line)
            for number, element in enumerate(data)
        )
    prefix = f"{path}: " if path else ""
    if (base := _custom_base(annotation)) is not None:
        kind = data.get("kind") if isinstance(data, Mapping) else data
        is_text = isinstance(data, str) and str in get_args(annotation)  # may be a path instead of an import path
        if isinstance(kind, str) and not is_text:
            if "." in kind and ":" not in kind:
                raise _InvalidValue(f"{prefix}{suggest_import_path(kind)}", line)
            if kind.startswith("kind:"):
                spaced = f"{kind[:5]} {kind[5:]}"
                raise _InvalidValue(f"{prefix}{show(kind)} has no space after its colon; write {spaced}", line)
        if isinstance(kind, str) and (is_import_path(kind) if is_text else ":" in kind):
            try:
                part = load_class(kind, base)
            except ValueError as error:
                hint = f"; if it is a file, write ./{kind}" if is_text else ""
                raise _InvalidValue(f"{prefix}{error}{hint}", line) from None
            settings = data if isinstance(data, Mapping) else {}
            return _build_variant(part, {key: settings[key] for key in settings if key != "kind"}, path, line)
    variants = _variants(annotation)
    if not variants or (data is None and type(None) in get_args(annotation)):
        return _value(annotation, data, path, line)
    scalar = _scalar(annotation)
    if scalar is not None and not isinstance(data, Mapping):
        return _value(scalar, data, path, line)
    if isinstance(data, str) and None not in variants:
        data = {"kind": data}
    if not isinstance(data, Mapping):
        known = "" if len(variants) > 1 else suggest("", get_type_hints(next(iter(variants.values()))))
        if isinstance(data, str) and ":" in data:
            known = "; write a space after the colon of each key"
        raise _InvalidValue(f"{prefix}expected a mapping of keys, got {show(data)}{known}", line)
    tag = next((tag for tag in TAGS if tag in data), "kind")
    default = next(iter(variants)) if len(variants) == 1 else None
    kind = default if [*variants] == [None] else data.get(tag, default)  # a dataclass without kinds has no such key
    if not isinstance(kind, str | None) or kind not in variants:
        names = [str(name) for name in variants]
        raise _InvalidValue(
            f"{prefix}unknown {tag} {show(kind)}{suggest(kind, names)}"
            if tag in data
            else f"{prefix}needs a `kind`{suggest('', names)}",
            line,
        )
    return _build_variant(variants[kind], data, path, line)


def _build_variant(variant: type, data: Mapping[str, Any], path: str, line: int | None) -> Any:
    """Convert a mapping to one dataclass; the other arguments and errors are those of `_build`."""
    prefix = f"{path}: " if path else ""
    all_hints, ranges = _hints(variant), field_annotations(variant)
    hints = {field.name: all_hints[field.name] for field in dataclasses.fields(variant)}
    for key in data:
        if key not in hints:
            raise _unknown_key(variant, key, hints, path, getattr(key, "line", line))
    for field in dataclasses.fields(variant):
        optional = field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING
        if field.name not in data and not optional:
            raise _InvalidValue(f"{prefix}the key {field.name!r} is missing", line)
    values: Plain = {}
    for key, value in data.items():
        value_path, value_line = f"{path}.{key}" if path else str(key), getattr(key, "line", line)
        values[key] = _build(hints[key], value, value_path, value_line)
        try:
            check_range(value_path, values[key], ranges[key])
        except ValueError as error:
            raise _InvalidValue(str(error), value_line) from None
    try:
        return variant(**values)
    except ValueError as error:  # __post_init__ rejects impossible combinations
        raise _InvalidValue(f"{prefix}{error}", line) from None


def _unknown_key(variant: type, key: str, known: Iterable[str], path: str, line: int | None) -> _InvalidValue:
    """Return the error for a key that a dataclass lacks: its new name, or a key with a similar name."""
    prefix = f"{path}: " if path else ""
    if new := getattr(variant, "renamed_keys", {}).get(key):
        return _InvalidValue(f"{prefix}the key {key} is now `{new}`", line)
    if key in ("type", "name") and "kind" in _hints(variant):
        return _InvalidValue(f"{prefix}unknown key {show(key)}; did you mean 'kind'?", line)
    nested = sorted(_nested_keys(variant, key), key=lambda name: name.count("."))
    suggestion = f"; did you mean {nested[0]!r}?" if nested else suggest(key, known)
    return _UnknownKey(f"{prefix}unknown key {show(key)}", suggestion, f"{path}.{key}" if path else str(key), line)


def _value(annotation: Any, data: Any, path: str, line: int | None) -> Any:
    if isinstance(data, bool) and annotation is not bool and "bool" not in str(annotation):
        choices = get_args(annotation) if get_origin(annotation) is Literal else ()
        expected = f"one of {', '.join(map(str, choices))}" if choices else "a number or text"
        raise _InvalidValue(f"{path}: expected {expected}, got {str(data).lower()}", line)
    if _is_of_type(annotation, data):
        return data
    if _custom_base(annotation) is not None:  # pydantic does not support a class without a schema
        if str in get_args(annotation):
            expected = "a text, or a mapping whose kind is an import path"
            raise _InvalidValue(f"{path}: expected {expected}, got {show(data)}", line)
        choices = [*literal_choices(annotation), "an import path such as my_package.parts:Part"]
        raise _InvalidValue(f"{path}: unknown value {show(data)}{suggest(data, choices)}", line)

    import pydantic  # imported late, since this takes 0.1 s

    try:
        return _adapter(annotation).validate_python(data)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        raise _InvalidValue(f"{path}: {first['msg'][:1].lower()}{first['msg'][1:]}, got {show(data)}", line) from None


def _is_of_type(annotation: Any, data: Any) -> bool:
    """Return whether a number, boolean or text already has exactly the annotated type.

    Pydantic would return such a value unchanged. If this is true of all values of a recipe, the import of pydantic is
    avoided, which takes 0.1 s.
    """
    if isinstance(data, float) and not math.isfinite(data):
        return False
    is_union = get_origin(annotation) in (Union, types.UnionType)
    for member in get_args(annotation) if is_union else (annotation,):
        if get_origin(member) is Literal:
            if any(type(data) is type(word) and data == word for word in get_args(member)):
                return True
        elif member in (bool, int, float, str, types.NoneType) and type(data) is member:
            return True
    return False


@cache
def _adapter(annotation: Any) -> "pydantic.TypeAdapter[Any]":
    import pydantic

    return pydantic.TypeAdapter(annotation, config=pydantic.ConfigDict(allow_inf_nan=False))


def _scalar(annotation: Any) -> Any:
    """Return the first of bool, int and float that a union contains; None if it contains none.

    A value of this type stands for all keys of the mapping.
    """
    plain_types = [member for member in get_args(annotation) if member in (bool, int, float)]
    return plain_types[0] if plain_types else None


def _item(annotation: Any) -> Any:
    """Return X if the annotation is `tuple[X, ...]` and X is a dataclass, else None."""
    members = get_args(annotation) if get_origin(annotation) is tuple else ()
    return members[0] if members and dataclasses.is_dataclass(members[0]) else None


def _nested_keys(spec: type, key: object, path: str = "") -> Iterator[str]:
    """Yield the paths of all settings within `spec` that have the name `key`, such as training.optimizer.lr."""
    for name, annotation in _hints(spec).items():
        if name == key:
            yield f"{path}{name}"
        for variant in _variants(annotation).values():
            yield from _nested_keys(variant, key, f"{path}{name}.")


@cache
def _hints(cls: type) -> dict[str, Any]:
    """Return the types of a dataclass's fields, without ranges."""
    return get_type_hints(cls)


def _variants(annotation: Any) -> dict[str | None, type]:
    """Return the dataclasses that an annotation allows, by the value of their tag; None for one without a tag."""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    variants: dict[str | None, type] = {}
    for member in members:
        if dataclasses.is_dataclass(member) and isinstance(member, type):
            hints = _hints(member)
            kind = next((hints[tag] for tag in TAGS if tag in hints), None)
            variants[get_args(kind)[0] if kind else None] = member
    return variants


def _custom_base(annotation: Any) -> type[Custom] | None:
    """Return the base class of the custom specs that a union accepts; None if it accepts none."""
    members = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else ()
    return next((member for member in members if isinstance(member, type) and issubclass(member, Custom)), None)
