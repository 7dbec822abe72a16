"""Search spaces: the keys that a search of settings varies, and the values that they may take.

    key=a,b,c           a choice of values, as in a comparison
    key=low..high       numbers between two bounds; whole numbers if both bounds are whole numbers
    key=log:low..high   the same on a logarithmic scale, which is also used if low > 0 and high / low >= 10

Settings are points of the space. A point has one coordinate per key: the number itself, or the place of a choice.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from random import Random
from typing import Any

from tercet.config import Plain, UserError
from tercet.training.recipe.files import LENGTHS
from tercet.training.sweep.grid import MAX_RUNS, GridPoint, VariedKey, grid_points

NUMBER = r"[+-]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][+-]?\d{1,3})?"
RANGE = re.compile(rf"\s*(log:)?\s*({NUMBER})\.\.({NUMBER})\s*")
LOG_RATIO = 10  # of the bounds of a range, from which its scale is logarithmic
DIGITS = 4  # significant digits of drawn numbers
MAX_CORNERS = 32  # combinations of bounds and choices that are all checked
# Keys that change what a step or the validation loss is, so that the losses of two trials could not be compared.
NOT_COMPARABLE = ("data", "task.kind", "task.masking", "task.validation_tokens")
FIXED = (*(f"training.{key}" for key in LENGTHS), "training.validate_every")

Coordinates = tuple[int | float, ...]


@dataclass(frozen=True, kw_only=True)
class Range:
    """A key of the recipe, and the bounds of its values.

    Attributes:
        key: Full key with dots, such as training.optimizer.lr.
        low, high: Bounds, both included. If both are int, so are the values.
        log: If True, the logarithm of the value is drawn uniformly, instead of the value.
    """

    key: str
    low: int | float
    high: int | float
    log: bool

    @property
    def label(self) -> str:
        return f"{'log:' if self.log else ''}{self.low}..{self.high}"

    @property
    def is_whole(self) -> bool:
        return isinstance(self.low, int)

    def draw(self, rng: Random) -> int | float:
        low, high = (self.low - 0.5, self.high + 0.5) if self.is_whole else (self.low, self.high)
        if self.log:
            return self.round(math.exp(rng.uniform(math.log(low), math.log(high))))
        return self.round(rng.uniform(low, high))

    def round(self, value: float) -> int | float:
        """Return the nearest whole number, or the nearest number with few digits, within the bounds."""
        if self.is_whole:
            return min(self.high, max(self.low, round(value)))
        scale = abs(value) if self.log else self.high - self.low
        decimals = DIGITS - 1 - math.floor(math.log10(scale))
        return min(self.high, max(self.low, round(value, decimals)))


SearchKey = VariedKey | Range


def read_key(text: str) -> SearchKey:
    """Parse `key=a,b,c`, `key=low..high` or `key=log:low..high`.

    Raises:
        UserError: If the text has another form, or the bounds are invalid.
    """
    key, equals, values = text.partition("=")
    if not equals or (match := RANGE.fullmatch(values)) is None:
        return VariedKey.read(text)
    low, high = map(_number, match.groups()[1:])
    if isinstance(low, float) or isinstance(high, float):
        low, high = float(low), float(high)
    name = f"--vary {key.strip()}"
    if not low < high < math.inf or low == -math.inf:
        raise UserError(f"{name}: expected low..high with finite numbers and low < high, got {values.strip()}")
    if match[1] and low <= 0:
        raise UserError(f"{name}: a logarithmic range requires positive bounds, got {values.strip()}")
    return Range(key=key.strip(), low=low, high=high, log=bool(match[1]) or (low > 0 and high >= LOG_RATIO * low))


def search_key(key: str, values: str | Sequence[Any]) -> SearchKey:
    """Return the key for values in Python: a sequence of choices, or text as after `key=` on the command line.

    Raises:
        UserError: If there are no values, or the text is invalid, as in `read_key`.
    """
    return read_key(f"{key}={values}") if isinstance(values, str) else VariedKey.of(key, values)


def _number(text: str) -> int | float:
    return int(text) if re.fullmatch(r"[+-]?\d+", text) else float(text)


@dataclass(frozen=True)
class SearchSpace:
    """The settings that a search may choose.

    Args:
        keys: Varied keys, at least one.
        fixed_changes: Changes to the recipe that all trials share, as nested mappings.
    """

    keys: tuple[SearchKey, ...]
    fixed_changes: Mapping[str, Any]

    def check(self) -> None:
        """Check the keys, without reading the recipe.

        Raises:
            UserError: If there is nothing to vary, keys conflict, or a key would make the losses incomparable.
        """
        for key in (one.key for one in self.keys):
            if any(f"{key}.".startswith(f"{other}.") for other in NOT_COMPARABLE):
                raise UserError(
                    f"--vary {key}: the validation losses of different values are not comparable; use `tercet compare`"
                )
            if any(f"{other}.".startswith(f"{key}.") for other in (*FIXED, *NOT_COMPARABLE)):
                raise UserError(f"--vary {key}: all trials have the same length and validation; set it with --set")
        self.point(tuple(0 if isinstance(one, VariedKey) else one.low for one in self.keys))
        if self.size == 1:
            raise UserError("--vary: nothing to choose from; pass at least two values, or a range such as 0.001..0.1")

    @property
    def size(self) -> int | None:
        """Number of points; None if a range is continuous."""
        counts = [
            len(one.values) if isinstance(one, VariedKey) else int(one.high - one.low) + 1 if one.is_whole else 0
            for one in self.keys
        ]
        return math.prod(counts) or None

    def point(self, coordinates: Coordinates) -> GridPoint:
        """Return the settings at a point.

        Raises:
            UserError: If two keys conflict with each other or with a fixed change, or one is the seed.
        """
        single = list[VariedKey]()
        for one, place in zip(self.keys, coordinates, strict=True):
            if isinstance(one, VariedKey):
                value, label = one.values[int(place)], one.labels[int(place)]
            else:
                value, label = place, format_number(place)
            single.append(VariedKey(key=one.key, values=(value,), labels=(label,)))
        return grid_points(single, fixed_changes=self.fixed_changes)[0]

    def draw(self, rng: Random) -> Coordinates:
        """Return a random point."""
        return tuple(
            rng.randrange(len(one.values)) if isinstance(one, VariedKey) else one.draw(rng) for one in self.keys
        )

    def points(self) -> Iterator[Coordinates]:
        """Yield all points of a space without continuous ranges, with the last key changing fastest."""
        return product(
            *(
                range(len(one.values)) if isinstance(one, VariedKey) else range(int(one.low), int(one.high) + 1)
                for one in self.keys
            )
        )

    def corners(self) -> list[Coordinates]:
        """Return points that contain each choice and both bounds of each range.

        These are all combinations if there are few.
        """
        ends = [
            tuple(range(len(one.values))) if isinstance(one, VariedKey) else (one.low, one.high) for one in self.keys
        ]
        if math.prod(map(len, ends)) <= MAX_CORNERS:
            return list(product(*ends))
        return list(dict.fromkeys(tuple(end[min(n, len(end) - 1)] for end in ends) for n in range(max(map(len, ends)))))

    def to_plain(self) -> Plain:
        """Return the values of each key as text."""
        return {one.key: list(one.labels) if isinstance(one, VariedKey) else one.label for one in self.keys}

    def grid(self) -> list[Coordinates]:
        """Return all points, for a search that tries all of them.

        Raises:
            UserError: If a key is a range, or there are too many points.
        """
        if ranges := [one.key for one in self.keys if isinstance(one, Range)]:
            raise UserError(f"--vary {ranges[0]}: --sampler grid requires a list of values, such as 0.01,0.03,0.1")
        if (size := self.size or 0) > MAX_RUNS:
            raise UserError(f"--vary: {size:,} combinations are more than {MAX_RUNS:,}; pass fewer values")
        return list(self.points())


def format_number(value: int | float) -> str:
    """Return a number as text that YAML reads as a number: `1e-05` would be text."""
    text = repr(value)
    return text.replace("e", ".0e") if "e" in text and "." not in text else text
