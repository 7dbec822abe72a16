"""How much is taken in, and what those get who ask for more."""

import math
from typing import Annotated

from tercet.spec import Interval, spec


@spec
class Limits:
    """What one model's worker takes."""

    slots: Annotated[int, Interval(ge=1, le=4096)] = 8  # rows that are generated at once
    waiting: Annotated[int, Interval(ge=0, le=1 << 62)] = 64  # requests that may wait beside them; more are refused
    max_new_tokens: Annotated[int, Interval(ge=1, le=1 << 62)] = 1024  # the most that one request may ask for
    seconds: Annotated[float, Interval(gt=0, le=math.inf)] = 120.0  # the most that a request may take, waiting included


class QueueFull(Exception):
    """As many requests wait as may.

    Attributes:
        retry_after: seconds after which there is likely to be room, at least 1.
    """

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"{waiting} requests wait already; try again in {retry_after} s")
        self.retry_after = retry_after


class ShuttingDown(Exception):
    """The server is going down."""

    def __init__(self, message: str = "the server is going down and takes no more requests") -> None:
        super().__init__(message)
