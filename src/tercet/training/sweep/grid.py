"""What varies: `--vary key=v1,v2` and `--seeds`, their product, and names for each of its points.

A name is read by people and is a folder's name too: `placement=pre,position=rotary,seed=1`. What a file system may not
take becomes a dash; a name that lost something by that, or is long, ends in a hash of all that it stands for.
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

MAX_RUNS = 1000  # of a comparison: each is looked at before the first is trained
MAX_NAME_LENGTH = 120  # characters of a folder's name; file systems take 255 bytes
UNSAFE = re.compile(r"[^A-Za-z0-9_.,=+\-]+")
CLOSING = {"[": "]", "{": "}"}
SEED = "training.seed"


@dataclass(frozen=True, kw_only=True)
class VariedKey:
    """A key of the recipe, such as model.stack.placement, and the values that it takes one after another.

    Attributes:
        labels: of each value what people read.
    """

    key: str
    values: tuple[Any, ...]
    labels: tuple[str, ...]

    @classmethod
    def of(cls, key: str, values: Sequence[Any]) -> "VariedKey":
        """Of values as Python has them.

        Raises:
            UserError: where there are none, or one stands there twice.
        """
        return cls._validated(key, tuple(values), tuple(map(format_label, values)))

    @classmethod
    def read(cls, text: str) -> "VariedKey":
        """Of the command line's `key=v1,v2`, each value read as YAML.

        Raises:
            UserError: for what is no such list.
        """
        key, equals, values = text.partition("=")
        key = key.strip()
        if not equals or not all(key.split(".")):
            raise UserError(f"--vary {text!r}: expected key=value,value, such as model.stack.placement=pre,post")
        pieces = split_values(values) if values.strip() else []
        if len(pieces) > MAX_RUNS:
            raise UserError(f"--vary {key}: {len(pieces):,} values are more than {MAX_RUNS:,}; give fewer")
        if "" in pieces:
            raise UserError(f"--vary {text!r}: a value is empty; take the comma out, or write null or '' for none")
        read = [_leaf(parse_assignment(f"{key}={piece}"), key) for piece in pieces]
        labels = [
            format_label(value) if isinstance(value, Mapping | list | str) else piece
            for value, piece in zip(read, pieces, strict=True)
        ]
        return cls._validated(key, tuple(read), tuple(labels))

    @classmethod
    def _validated(cls, key: str, values: tuple[Any, ...], labels: tuple[str, ...]) -> "VariedKey":
        if not values:
            raise UserError(f"--vary {key}: there is no value; give some, as in --vary {key}=first,second")
        duplicates = [labels[i] for i, value in enumerate(values) if value in values[:i] or labels[i] in labels[:i]]
        if duplicates:
            raise UserError(f"--vary {key}: the value {duplicates[0]} stands there twice; take one out")
        return cls(key=key, values=values, labels=labels)


@dataclass(frozen=True, kw_only=True)
class GridPoint:
    """One choice of all values.

    Attributes:
        settings: what people read: the short key of each, and its value's label.
        changes: the same for a recipe, as nested mappings.
    """

    settings: dict[str, str]
    changes: Plain


def grid_points(varied_keys: Sequence[VariedKey], *, fixed_changes: Mapping[str, Any] | None = None) -> list[GridPoint]:
    """The product of all values, the last key's changing fastest; one point without settings where nothing varies.

    Args:
        fixed_changes: changes that hold for all of them, as nested mappings.

    Raises:
        UserError: where two keys clash, or one is the seed.
    """
    fixed_changes, keys = fixed_changes or {}, [choice.key for choice in varied_keys]
    for number, key in enumerate(keys):
        if key == SEED:
            raise UserError(f"--vary {SEED}: seeds are no variants; give --seeds 1,2,3 in its place")
        for other_key in keys[:number]:
            if key == other_key:
                raise UserError(f"--vary {key} is given twice; put all its values into one")
            if key.startswith(f"{other_key}.") or other_key.startswith(f"{key}."):
                raise UserError(f"--vary {other_key} and --vary {key} clash: one holds the other; vary one of them")
        if _contains(fixed_changes, key):
            raise UserError(f"{key} is both in --set and in --vary; leave it out of one")
    if (count := math.prod(len(choice.values) for choice in varied_keys)) > MAX_RUNS:
        raise UserError(f"--vary: {count:,} variants are more than {MAX_RUNS:,}; give fewer values")
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
    """`1,2,3` as it is; `3` as so many seeds, from 1 on.

    Raises:
        UserError: for anything else, none, or one twice.
    """
    pieces = [piece.strip() for piece in text.split(",")]
    if not all(re.fullmatch(r"[0-9]{1,9}", piece) for piece in pieces):
        raise UserError(f"--seeds {text!r}: expected numbers such as 1,2,3, or how many there are to be, such as 3")
    return check_seeds([int(piece) for piece in pieces] if len(pieces) > 1 else int(pieces[0]))


def check_seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds of a list, or as many as a count says, from 1 on.

    Raises:
        UserError: where there are none, one is negative or stands there twice.
    """
    count = seeds if isinstance(seeds, int) else len(seeds)
    if count > MAX_RUNS:
        raise UserError(f"--seeds: {count:,} are more than the {MAX_RUNS:,} runs of a comparison; give fewer")
    numbers = tuple(range(1, seeds + 1)) if isinstance(seeds, int) else tuple(seeds)
    if not numbers:
        raise UserError("--seeds: there is no seed; give at least 1")
    if min(numbers) < 0 or len(set(numbers)) < len(numbers):
        raise UserError(f"--seeds {','.join(map(str, numbers))}: give each once, and none below 0")
    return numbers


def split_values(text: str) -> list[str]:
    """`text` cut at the commas that stand outside of brackets and quotes; blanks around a piece go.

    Raises:
        UserError: where a bracket or a quote is not closed.
    """
    pieces, start, quote, is_escaped, open_brackets = list[str](), 0, "", False, list[str]()
    previous = ","  # the last character that was not blank: a quote in the middle of a word is an apostrophe
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
                raise UserError(f"--vary: {character} closes nothing in {text!r}; put the value in quotes")
        elif character == "," and not open_brackets:
            pieces.append(text[start:place].strip())
            start = place + 1
        previous = previous if character.isspace() else character
    if quote or open_brackets:
        raise UserError(f"--vary: {quote or open_brackets[-1]} is missing at the end of {text!r}; close it")
    return [*pieces, text[start:].strip()]


def format_label(value: Any) -> str:
    """A value as people read it: `{kind: rotary, base: 5000}` is `rotary+base=5000`."""
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
    """Each key's last words, as few as tell it from the others, and from `seed` and `recipe`."""
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
    """A name of a folder for each of several labels: safe on every file system, and no two alike."""
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
    """Whether the changes set the key, something in it, or something that it is in."""
    value: Any = changes
    for part in key.split("."):
        if not isinstance(value, Mapping):
            return True
        if part not in value:
            return False
        value = value[part]
    return True
