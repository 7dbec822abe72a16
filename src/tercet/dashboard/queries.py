"""Queries of the dashboard: frozen dataclasses that are parsed strictly."""

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from annotated_types import Interval

from tercet.config import UserError, parse
from tercet.spec import spec

RunIndex = Annotated[int, Interval(ge=0, le=1000)]
Coordinate = Annotated[float, Interval(ge=-1e18, le=1e18)]


@spec
class RunsQuery:
    """Query for the state of each run."""


@spec
class CurvesQuery:
    """Query for all curves of all runs in a range of the axis.

    Attributes:
        x: Quantity on the axis.
        log: If True, the axis is logarithmic.
        start, end: Range of the axis; None for the first and the last value of all runs.
        buckets: Maximum number of points per curve within the range.
    """

    x: Literal["step", "tokens", "seconds"] = "step"
    log: bool = False
    start: Coordinate | None = None
    end: Coordinate | None = None
    buckets: Annotated[int, Interval(ge=2, le=4000)] = 400


@spec
class RunSampleQuery:
    """Query for the samples that run number `run`, counted from 0, wrote at a step."""

    run: RunIndex
    step: Annotated[int, Interval(ge=0, le=10**18)]


@spec
class SettingsQuery:
    """Query for the recipes of all runs."""


QUERIES: dict[str, type] = {
    "runs": RunsQuery, "curves": CurvesQuery, "sample": RunSampleQuery, "settings": SettingsQuery,
}  # fmt: skip
T = TypeVar("T")


def parse_query(kind: type[T], body: Any) -> T:
    """Parse the JSON body of a query.

    Args:
        kind: Class of the query.
        body: Parsed JSON; must be an object.

    Raises:
        UserError: If the body is not an object, has an unknown key, or has an invalid value.
    """
    if not isinstance(body, Mapping):
        raise UserError("a query must be a JSON object")
    return parse(kind, body, name="query")
