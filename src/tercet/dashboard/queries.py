"""What the page of runs may ask: frozen, and parsed strictly."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Interval

from tercet.config import UserError, parse
from tercet.spec import spec

RunIndex = Annotated[int, Interval(ge=0, le=1000)]
Coordinate = Annotated[float, Interval(ge=-1e18, le=1e18)]


@spec
class RunsQuery:
    """How far each run is."""


@spec
class CurvesQuery:
    """All curves of all runs, between two places of the axis.

    Attributes:
        x: what the axis counts.
        log: whether it is logarithmic.
        start, end: of what is shown; all by default.
        buckets: points of a curve at most.
    """

    x: Literal["step", "tokens", "seconds"] = "step"
    log: bool = False
    start: Coordinate | None = None
    end: Coordinate | None = None
    buckets: Annotated[int, Interval(ge=2, le=4000)] = 400


@spec
class RunSampleQuery:
    """What a run wrote after a step."""

    run: RunIndex
    step: Annotated[int, Interval(ge=0, le=10**18)]


@spec
class SettingsQuery:
    """The recipes, side by side."""


QUERIES: dict[str, type] = {
    "runs": RunsQuery, "curves": CurvesQuery, "sample": RunSampleQuery, "settings": SettingsQuery,
}  # fmt: skip
T = TypeVar("T")


def parse_query(kind: type[T], body: Any) -> T:
    """Raises:
    UserError: for what is no such query.
    """
    if not isinstance(body, Mapping):
        raise UserError("a question is a JSON object")
    return parse(kind, body, name="question")
