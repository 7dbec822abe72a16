"""Parsing of `--vary key=v1,v2` and `--seeds`, and all combinations of their values, with names.

The name of a combination, such as `placement=pre,position=rotary,seed=1`, is shown to users and is also the name of a
folder. There, characters that are unsafe in file names become dashes, and a name that was changed or shortened ends in
a hash of the full name.
"""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from tercet.config import Plain, UserError, merge, nest
from tercet.settings_yaml import parse_assignment

MAX_RUNS = 1000  # per comparison, because all runs are checked before the first is trained
MAX_NAME_LENGTH = 120  # characters of a folder name; file systems allow 255 bytes
UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+\-]+")
CLOSING = {"[": "]", "{": "}"}
SEED = "training.seed"


@dataclass(frozen=True, kw_only=True)
class VariedKey:
    """A key of the recipe, and the values that it takes in a sweep.

    Attributes:
        key: Full key with dots, such as model.stack.placement.
        values: Values of the key.
        labels: Text of each value, for tables and folder names.
    """

    key: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, key: str, values: Sequence[Any]) -> "VariedKey":
        """Return a varied key with Python values.

        Raises:
            UserError: If there are no values, or one is repeated.
        """
        return cls._validated(key, tuple(values), tuple(map(format_label, values)))

    @classmethod
    def read(cls, text: str) -> "VariedKey":
        """Parse `key=v1,v2` from the command line. Each value is YAML.

        Raises:
            UserError: If the text has another form, or a value is invalid, empty or repeated.
        """
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            raise UserError(f"--vary {text!r}: expected key=value,value, such as model.stack.placement=pre,post")
        pieces = split_values(values) if values.strip() else []
        if len(pieces) > MAX_RUNS:
            raise UserError(f"--vary {key}: {len(pieces):,} values are more than {MAX_RUNS:,}; pass fewer")
        if "" in pieces:
            raise UserError(f"--vary {text!r}: a value is empty; remove the comma, or write null or ''")
        read = [_leaf(parse_assignment(f"{key}={piece}"), key) for piece in pieces]
        labels = [
            format_label(value) if isinstance(value, Mapping | list | str) else piece
            for value, piece in zip(read, pieces, strict=True)
        ]
        return cls._validated(key, tuple(read), tuple(labels))

    @classmethod
    def _validated(cls, key: str, values: tuple[Any, ...], labels: tuple[str, ...]) -> "VariedKey":
        if not values:
            raise UserError(f"--vary {key}: no values; pass some, such as --vary {key}=first,second")
        duplicates = [labels[i] for i, value in enumerate(values) if value in values[:i] or labels[i] in labels[:i]]
        if duplicates:
            raise UserError(f"--vary {key}: the value {duplicates[0]} is repeated; remove one")
        return cls(key=key, values=values, labels=labels)


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One combination of the values of all varied keys.

    Attributes:
        settings: Label of each value by short key, for tables and folder names.
        changes: Changes to a recipe, with the values and the fixed changes, as nested mappings.
    """

    settings: dict[str, str]
    changes: Plain

    @property
    def label(self) -> str:
        """The settings as text, such as "placement=pre, position=rotary"."""
        return ", ".join(f"{key}={value}" for key, value in self.settings.items())


def grid_points(varied_keys: Sequence[VariedKey], *, fixed_changes: Mapping[str, Any] | None = None) -> list[GridPoint]:
    """Return all combinations of values, with the last key changing fastest.

    Without keys, the result is a single point without settings.

    Args:
        varied_keys: Keys and their values.
        fixed_changes: Changes that all points share, as nested mappings.

    Raises:
        UserError: If two keys conflict with each other or with a fixed change, one is the seed, or there are too many
            combinations.
    """
    fixed_changes, keys = fixed_changes or {}, [choice.key for choice in varied_keys]
    for number, key in enumerate(keys):
        if key == SEED:
            raise UserError(f"--vary {SEED}: seeds are not variants; pass --seeds 1,2,3 instead")
        for other_key in keys[:number]:
            if key == other_key:
                raise UserError(f"--vary {key} is given twice; put all its values into one list")
            if key.startswith(f"{other_key}.") or other_key.startswith(f"{key}."):
                raise UserError(
                    f"--vary {other_key} and --vary {key} conflict: one contains the other; vary only one of them"
                )
        if _contains(fixed_changes, key):
            raise UserError(f"{key} is both in --set and in --vary; remove it from one")
    if (count := math.prod(len(choice.values) for choice in varied_keys)) > MAX_RUNS:
        raise UserError(f"--vary: {count:,} variants are more than {MAX_RUNS:,}; pass fewer values")
    names = short_keys(keys)
    choices = (list(zip(choice.values, choice.labels, strict=True)) for choice in varied_keys)
    points: list[GridPoint] = []
    for combination in product(*choices):
        changes = dict(fixed_changes)
        for key, (value, _) in zip(keys, combination, strict=True):
            changes = merge(changes, nest(key, value))
        settings = {name: label for name, (_, label) in zip(names, combination, strict=True)}
        points.append(GridPoint(settings=settings, changes=changes))
    return points


def read_seeds(text: str) -> tuple[int, ...]:
    """Parse `1,2,3` as a list of seeds, or `3` as a number of seeds counted from 1.

    Raises:
        UserError: If the text has another form, there are no seeds or too many, or one is repeated.
    """
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", piece) for piece in pieces):
        raise UserError(f"--seeds {text!r}: expected seeds such as 1,2,3, or their number, such as 3")
    return check_seeds([int(piece) for piece in pieces] if len(pieces) > 1 else int(pieces[0]))


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """Return the seeds of a list, or for a number n the seeds from 1 to n.

    Raises:
        UserError: If there are no seeds or too many, or one is negative or repeated.
    """
    count = seeds if isinstance(seeds, int) else len(seeds)
    if count > MAX_RUNS:
        raise UserError(f"--seeds: {count:,} seeds are more than the {MAX_RUNS:,} runs of a comparison; pass fewer")
    numbers = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise UserError("--seeds: no seeds; pass at least one")
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise UserError(f"--seeds {','.join(map(str, numbers))}: seeds must be distinct and not negative")
    return numbers


def split_values(text: str) -> list[str]:
    """Split `text` at the commas outside brackets and quotes, and strip each piece.

    Raises:
        UserError: If a bracket or a quote is not closed, or a closing bracket does not match.
    """
    pieces, start, quote, is_escaped, open_brackets = list[str](), 0, "", False, list[str]()
    previous = ","  # last non-blank character; it shows whether a quote starts a value or is an apostrophe in a word
    for place, character in enumerate(text):
        if quote:
            if is_escaped:
                is_escaped = False
            elif character == "\\" and quote == '"':
                is_escaped = True
            elif character == quote:
                quote = ""
        elif character in "'\"" and (previous in ",:[{" or text[place - 1] == character):
            quote = character
        elif character in CLOSING:
            open_brackets.append(CLOSING[character])
        elif character in CLOSING.values():
            if not open_brackets or open_brackets.pop() != character:
                raise UserError(f"--vary: unmatched closing {character} in {text!r}; put the value in quotes")
        elif character == "," and not open_brackets:
            pieces.append(text[start:place].strip())
            start = place + 1
        previous = previous if character.isspace() else character
    if quote or open_brackets:
        raise UserError(f"--vary: {quote or open_brackets[-1]} is missing at the end of {text!r}; close it")
    return [*pieces, text[start:].strip()]


def format_label(value: Any) -> str:
    """Return the label of a value, such as `rotary+base=5000` for `{kind: rotary, base: 5000}`."""
    if isinstance(value, Mapping):
        kind = [format_label(value["kind"])] if "kind" in value else []
        return (
            "+".join([*kind, *(f"{key}={format_label(item)}" for key, item in value.items() if key != "kind")]) or "{}"
        )
    if isinstance(value, list | tuple):
        return "+".join(map(format_label, value)) or "[]"
    if isinstance(value, bool):
        return str(value).lower()
    return "null" if value is None else str(value) or "''"


def short_keys(keys: Sequence[str]) -> list[str]:
    """Return a short name for each key: its last words, as few as make the name unique.

    A key with more words is not shortened to `seed` or `recipe`, which name the seed and the recipe of a run.
    """
    reserved = ("seed", "recipe")
    words, max_words = 1, max((key.count(".") + 1 for key in keys), default=1)
    names = [_last_words(key, 1) for key in keys]
    while words < max_words and any(count > 1 or name in reserved for name, count in Counter(names).items()):
        words += 1
        counts = Counter(names)
        names = [
            _last_words(key, words) if counts[name] > 1 or name in reserved else name
            for key, name in zip(keys, names, strict=True)
        ]
    return names


def folder_names(labels: Sequence[str]) -> list[str]:
    """Return a folder name for each label, unique and safe on every file system."""
    safe = [UNSAFE.sub("-", label) for label in labels]
    counts = Counter(name.casefold() for name in safe)
    return [
        name
        if name == label and len(name) <= MAX_NAME_LENGTH and counts[name.casefold()] == 1 and not name.startswith(".")
        else f"{name[:MAX_NAME_LENGTH].lstrip('.')}-{hashlib.sha256(label.encode()).hexdigest()[:10]}"
        for name, label in zip(safe, labels, strict=True)
    ]


def _last_words(key: str, words: int) -> str:
    return ".".join(key.split(".")[-words:])


def _leaf(changes: Plain, key: str) -> Any:
    value: Any = changes
    for part in key.split("."):
        value = value[part]
    return value


def _contains(changes: Mapping[str, Any], key: str) -> bool:
    """Return whether the changes set the key, a part of it, or a section that contains it."""
    value: Any = changes
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return True
        if part not in value:
            return False
        value = value[part]
    return True
