"""What is hidden from a masked language model, as settings."""

import math
from typing import Annotated, Literal

from tercet.spec import Interval, Share, spec


@spec
class Masking:
    """How much is hidden, and how.

    Args:
        rate: the share of a row's tokens, special ones aside, that is to be predicted.
        unit: what is drawn: tokens, whole words, or runs of whole words.
        span: the mean length of a run, in words.
        masked, random: shares of the predicted tokens that become the mask token, and any token; the rest stay.
    """

    rate: Share = 0.3
    unit: Literal["tokens", "words", "spans"] = "tokens"
    span: Annotated[float, Interval(ge=1, le=1000)] = 3.0
    masked: Share = 0.8
    random: Share = 0.1

    def __post_init__(self) -> None:
        if self.unit not in ("tokens", "words", "spans"):
            raise ValueError(f"unit={self.unit!r} must be tokens, words or spans")
        if self.masked + self.random > 1 + 1e-9:
            raise ValueError(
                f"masked={self.masked} and random={self.random} must be shares that add up to at most 1; "
                f"BERT's are 0.8 and 0.1"
            )

    def max_predictions(self, length: int) -> int:
        """The most positions that a row of `length` tokens can need: the static share of N."""
        return min(length, math.ceil(self.rate * length - 1e-9))  # 0.1 · 30 is a little more than 3 in floats
