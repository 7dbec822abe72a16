"""Cases of a parametrized test, of which `make test` runs representatives and `make test-exhaustive` the others."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def sampled(cases: Iterable[Any], keep: Collection[int] = (0,)) -> list[Any]:
    """Return the cases as parameters; all but the representatives are exhaustive.

    Args:
        cases: Values of the parameters: a tuple per case, or single values.
        keep: Places of the representatives in `cases`.
    """
    parameters = [
        pytest.param(
            *(case if isinstance(case, tuple) else (case,)), marks=() if place in keep else pytest.mark.exhaustive
        )
        for place, case in enumerate(cases)
    ]
    assert max(keep) < len(parameters), f"there are only {len(parameters)} cases"
    return parameters
