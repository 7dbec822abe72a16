"""Pairwise samples of grids: few combinations that contain every pair of values of two axes.

Most faults depend on one or two options of a grid, so a sample finds them at a fraction of the cost.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import pytest


def pairwise(**axes: Sequence[Any]) -> list[dict[str, Any]]:
    """Return combinations of one value per axis that contain every pair of values of two axes.

    The result is the same in each run.
    """
    names, sizes = list(axes), [len(values) for values in axes.values()]
    return [
        {name: axes[name][place] for name, place in zip(names, row, strict=True)}
        for row in (_cover_pairs(sizes) if len(sizes) > 1 else [(place,) for place in range(sizes[0])])
    ]


def parametrize_pairs(**axes: Sequence[Any]) -> pytest.MarkDecorator:
    """Parametrize a test over a grid: the pairwise sample always, the other combinations as exhaustive tests."""
    sizes = [len(values) for values in axes.values()]
    sample = set(_cover_pairs(sizes))
    cases = [
        pytest.param(
            *(values[place] for values, place in zip(axes.values(), row, strict=True)),
            marks=() if row in sample else pytest.mark.exhaustive,
        )
        for row in itertools.product(*map(range, sizes))
    ]
    return pytest.mark.parametrize(tuple(axes), cases)


def _cover_pairs(sizes: Sequence[int]) -> list[tuple[int, ...]]:
    """Choose rows of indices below `sizes` greedily: each row starts with the first missing pair."""
    axes = range(len(sizes))
    missing = {
        ((a, i), (b, j)): None  # a dictionary, because it is ordered
        for a, b in itertools.combinations(axes, 2)
        for i in range(sizes[a])
        for j in range(sizes[b])
    }
    rows = list[tuple[int, ...]]()
    while missing:
        row = dict(next(iter(missing)))
        for axis in axes:
            if axis not in row:
                row[axis] = max(
                    range(sizes[axis]),
                    key=lambda place: (
                        sum(tuple(sorted([item, (axis, place)])) in missing for item in row.items()),
                        -sum(previous[axis] == place for previous in rows),
                    ),
                )
        for pair in itertools.combinations(sorted(row.items()), 2):
            missing.pop(pair, None)
        rows.append(tuple(row[axis] for axis in axes))
    return rows
