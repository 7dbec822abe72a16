"""Every combination of position, heads and placement.

Without exhaustive tests: each position with two kinds of heads and two placements, and all pairs of these.
"""

from itertools import product
from typing import Any

import pytest
from small import GROUPS, PLACEMENTS, POSITIONS


def name(point: dict[str, Any]) -> str:
    heads = next(heads for heads, groups in GROUPS.items() if groups == point["n_kv_heads"])
    return f"{point['position'].kind}-{heads}-{point['placement']}"


AXES = {"position": POSITIONS, "n_kv_heads": tuple(GROUPS.values()), "placement": PLACEMENTS}
SAMPLE = [
    {"position": POSITIONS[i % 6], "n_kv_heads": AXES["n_kv_heads"][i // 4], "placement": PLACEMENTS[i % 4]}
    for i in range(12)
]
GRID = [
    pytest.param(point, id=name(point), marks=() if point in SAMPLE else pytest.mark.exhaustive)
    for point in (dict(zip(AXES, values, strict=True)) for values in product(*AXES.values()))
]
