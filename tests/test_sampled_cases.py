"""`sampled` marks all cases but the representatives."""

from collections.abc import Collection
from typing import Any

import pytest

from sampled_cases import sampled


def marked(cases: list[Any], keep: Collection[int] = (0,)) -> list[tuple[tuple[Any, ...], list[str]]]:
    return [(case.values, [mark.name for mark in case.marks]) for case in sampled(cases, keep)]


def test_all_but_the_representatives_are_exhaustive() -> None:
    assert marked(["a", "b"]) == [(("a",), []), (("b",), ["exhaustive"])]
    assert marked([("a", 1), ("b", 2), ("c", 3)], (1, 2)) == [
        (("a", 1), ["exhaustive"]),
        (("b", 2), []),
        (("c", 3), []),
    ]


def test_missing_representative_is_rejected() -> None:
    with pytest.raises(AssertionError, match="only 2 cases"):
        sampled(["a", "b"], keep=(2,))
