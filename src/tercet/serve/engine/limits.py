"""How much is taken in, and what those get who ask for more."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one model's worker takes."""

    slots: int = 8  # rows that are generated at once
    waiting: int = 64  # requests that may wait beside them; more are refused
    max_new_tokens: int = 1024  # the most that one request may ask for
    seconds: float = 120.0  # the most that a request may take, waiting included

    def __post_init__(self) -> None:
        if self.slots < 1:
            raise ValueError(f"slots={self.slots} must be 1 or more")
        if self.waiting < 0:
            raise ValueError(f"waiting={self.waiting} must be 0 or more; 0 refuses what cannot begin at once")
        if self.max_new_tokens < 1:
            raise ValueError(f"max_new_tokens={self.max_new_tokens} must be 1 or more")
        if not self.seconds > 0:
            raise ValueError(f"seconds={self.seconds} must be above 0")


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
