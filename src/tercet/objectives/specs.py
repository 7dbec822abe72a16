"""Settings of masked language modeling, and the base class of objectives in other packages."""

import math
from typing import TYPE_CHECKING, Annotated, Literal

from tercet.spec import Custom, Interval, Share, spec

if TYPE_CHECKING:
    from torch import Tensor


@spec
class Masking:
    """Share of tokens to mask, and how to mask them.

    Args:
        rate: Share of a row's tokens to predict; special tokens do not count.
        unit: Unit of the selection: tokens, whole words, or spans of whole words.
        span: Mean length of a span in words.
        masked, random: Shares of the predicted tokens that become the mask token and a random token. The rest is
            unchanged.
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
        """Return the maximum number of predictions in a row of `length` tokens, its static share of N."""
        return min(length, math.ceil(self.rate * length - 1e-9))  # 0.1 · 30 is slightly more than 3 in floating point


class CustomObjective(Custom):
    """Base class of the specs of training objectives in other packages."""

    def loss(self, logits: "Tensor", targets: "Tensor") -> "Tensor":
        """Return the loss of each target, (N,), from the logits of its row only.

        The sum over all targets is minimized. The method is called several times per step, each time with a part of the
        rows. The logits must not be changed in place.

        Args:
            logits: (N, V) Logits in float32, of all tokens or all labels. For numbers: (N,) predictions.
            targets: (N,) Index of the correct token or label. For several labels per text: (N, V) float32, 1 for each
                label of the text. For numbers: (N,). Predictions and numbers are in standard deviations from the mean.
                IGNORE_INDEX does not occur: such a target is replaced by 0, and its loss is not counted.
        """
        raise NotImplementedError(f"{self.kind} has no method loss")
