"""Limits of a model's workers, and the errors for rejected requests."""

import math
from typing import Annotated

from tercet.spec import Interval, spec


@spec
class Limits:
    """Limits of the workers of one model; each of them applies to each worker separately."""

    slots: Annotated[int, Interval(ge=1, le=4096)] = 8  # maximum number of rows in a batch
    waiting: Annotated[int, Interval(ge=0, le=1 << 62)] = 64  # requests that may wait while `slots` others run
    max_new_tokens: Annotated[int, Interval(ge=1, le=1 << 62)] = 1024  # maximum per generated text
    # Maximum duration of a request, including the time in the queue.
    seconds: Annotated[float, Interval(gt=0, le=math.inf)] = 120.0


class QueueFull(Exception):
    """The queue is full.

    Attributes:
        retry_after: Estimated seconds until a slot is free, at least 1.
    """

    def __init__(self, waiting: int, retry_after: int) -> None:
        super().__init__(f"the queue is full ({waiting} requests); try again in {retry_after} s")
        self.retry_after = retry_after


class ShuttingDown(Exception):
    """The worker of a model is shutting down: the request is rejected, or was not finished in time."""

    def __init__(self, message: str = "the server is shutting down and accepts no more requests") -> None:
        super().__init__(message)
