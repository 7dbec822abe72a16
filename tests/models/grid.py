"""Every combination of position, heads and placement; without exhaustive tests a pairwise sample of them."""

from itertools import product
from typing import Any

import pytest
from small import GROUPS, PLACEMENTS, POSITIONS

from pairwise import pairwise


def name(point: dict[str, Any]) -> str:
    heads = next(heads for heads, groups in GROUPS.items() if groups == point["n_kv_heads"])
    return f"{point['position'].kind}-{heads}-{point['placement']}"


AXES = {"position": POSITIONS, "n_kv_heads": tuple(GROUPS.values()), "placement": PLACEMENTS}
SAMPLE = pairwise(**AXES)
GRID = [
    pytest.param(point, id=name(point), marks=() if point in SAMPLE else pytest.mark.exhaustive)
    for point in (dict(zip(AXES, values, strict=True)) for values in product(*AXES.values()))
]
