"""Results of the checks of a custom part."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from tercet.messages import describe_error
from tercet.notebook import Summary
from tercet.spec import ProblemType


class Fault(Exception):
    """A condition that a part does not satisfy, with what was observed."""


@dataclass(frozen=True, kw_only=True)
class PartCheck:
    """Result of one check.

    Attributes:
        name: Condition that the part must satisfy.
        passed: If True, it does.
        problem: Remedy and error if the check failed, else empty.
    """

    name: str
    passed: bool
    problem: str


@dataclass(frozen=True, kw_only=True, repr=False)
class PartChecks(Summary):
    """Results of all checks of a custom part.

    Attributes:
        part: Import path of the part.
        parameters: Number of its parameters in the small model, all of them for an optimizer, and 0 for an objective
            or dataset.
        checks: Results in order.
        targets: Kinds of targets that an objective supports, which were checked; empty for other parts.
        contents: Number of examples of a dataset, and the fields of the first one; empty for other parts.
    """

    part: str
    parameters: int
    checks: tuple[PartCheck, ...]
    targets: tuple[ProblemType, ...] = ()
    contents: str = ""


def run_check(name: str, check: Callable[[], bool | None], remedy: str) -> PartCheck:
    """Run one check. It has failed if it returns False or raises any error, whose message follows the remedy."""
    try:
        passed, observed = check() is not False, ""
    except Exception as error:  # the code is the user's, and may raise anything
        passed, observed = False, f" ({describe_error(error)})"
    return PartCheck(name=name, passed=passed, problem="" if passed else f"{remedy}{observed}")


def choose_remedy(remedy: str, causes: Iterable[str], checks: Iterable[PartCheck]) -> str:
    """Return the remedy, or a reference to an earlier check that failed and is among the causes."""
    failed = {check.name for check in checks if not check.passed}
    cause = next((cause for cause in causes if cause in failed), None)
    return remedy if cause is None else f'may follow from the failure of "{cause}"; correct that first, and check again'
