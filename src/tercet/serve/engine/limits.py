"""Limits of a model's workers, and the errors for requests that exceed them."""

import math
from typing import Annotated

from tercet.spec import Interval, spec


@spec
class Limits:
    """Limits of the workers of one model."""

    slots: Annotated[int, Interval(ge=1, le=4096)] = 8  # rows in the batch
    waiting: Annotated[int, Interval(ge=0, le=1 << 62)] = 64  # length of the queue; further requests are rejected
    max_new_tokens: Annotated[int, Interval(ge=1, le=1 << 62)] = 1024  # maximum per request
    seconds: Annotated[float, Interval(gt=0, le=math.inf)] = (
        120.0  # maximum duration of a request, including the time in the queue
    )


class QueueFull(Exception):
    """The queue is full.

    Attributes:
        retry_after: Estimated seconds until a slot is free, at least 1.
    """

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"the queue is full ({waiting} requests); try again in {retry_after} s")
        self.retry_after = retry_after


class ShuttingDown(Exception):
    """The server is shutting down."""

    def __init__(self, message: str = "the server is shutting down and accepts no more requests") -> None:
        super().__init__(message)
