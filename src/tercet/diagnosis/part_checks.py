"""Results of the checks of a custom part."""

from dataclasses import dataclass

from tercet.notebook import Summary
from tercet.spec import ProblemType


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
        parameters: Number of its parameters in the small model; 0 for an objective or dataset.
        checks: Results in order.
        targets: Kinds of targets that an objective supports, which were checked; empty for other parts.
        contents: Number of examples of a dataset, and the fields of the first one; empty for other parts.
    """

    part: str
    parameters: int
    checks: tuple[PartCheck, ...]
    targets: tuple[ProblemType, ...] = ()
    contents: str = ""
