"""Pairwise samples contain every pair of values in few rows."""

import itertools

from pairwise import pairwise, parametrize_pairs

AXES = {"position": "abcde", "norm": [1, 2], "placement": [None, [0]], "cache": (True, False), "family": "xyz"}


def test_pairwise_sample_contains_every_pair_in_few_rows() -> None:
    rows = pairwise(**AXES)
    for first, second in itertools.combinations(AXES, 2):
        expected = itertools.product(AXES[first], AXES[second])
        assert [pair for pair in expected if pair not in [(row[first], row[second]) for row in rows]] == []
    assert len(rows) <= 17  # of 120; 15 pairs of position and family need 15 rows


def test_pairwise_of_one_axis_is_the_axis() -> None:
    assert pairwise(norm=[1, 2]) == [{"norm": 1}, {"norm": 2}]


def test_parametrized_grid_is_complete_and_marks_all_but_the_sample_exhaustive() -> None:
    names, cases = parametrize_pairs(**AXES).args
    assert names == tuple(AXES)
    assert len(cases) == 120
    sample = [dict(zip(AXES, case.values, strict=True)) for case in cases if not case.marks]
    assert len(sample) == len(pairwise(**AXES))
    assert all(row in sample for row in pairwise(**AXES))
    assert {mark.name for case in cases for mark in case.marks} == {"exhaustive"}
