"""Which errors are listed: how many, in which order, and of which texts."""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from tercet.config import UserError

Ranking = Literal["mean", "total", "chrf"]


@dataclass(frozen=True, kw_only=True)
class ErrorSelection:
    """The errors to list.

    Attributes:
        top: Maximum length of each list.
        min_length, max_length: Range of the lengths of texts in tokens, without special tokens that the model adds.
            For sentence pairs, it applies to the references.
        rare: If set, list only errors with a token that occurs at most this many times in the training data.
        rank_by: Order of texts: by loss per token ("mean"), by the sum of their losses ("total"), or, for translators,
            by the chrF of the model's translation ("chrf").

    Raises:
        UserError: If a number is out of range.
    """

    top: int = 10
    min_length: int | None = None
    max_length: int | None = None
    rare: int | None = None
    rank_by: Ranking = "mean"

    def __post_init__(self) -> None:
        for name, lowest in {"top": 1, "min_length": 0, "max_length": 0, "rare": 0}.items():
            value = getattr(self, name)
            if value is not None and value < lowest:
                raise UserError(f"{name}={value} must be at least {lowest}")
        if self.min_length is not None and self.max_length is not None and self.min_length > self.max_length:
            raise UserError(
                f"the minimum length {self.min_length} exceeds the maximum length {self.max_length}; swap them"
            )

    def select(
        self, lengths: Int[np.ndarray, " N"], rare_tokens: Int[np.ndarray, " N"] | None
    ) -> Bool[np.ndarray, " N"]:
        """Return which texts may be listed.

        Args:
            lengths: Length of each text in tokens.
            rare_tokens: Number of rare tokens of each text; None if `rare` is not set.

        Raises:
            UserError: If there is no such text.
        """
        selected = np.ones(len(lengths), bool)
        if self.min_length is not None:
            selected &= lengths >= self.min_length
        if self.max_length is not None:
            selected &= lengths <= self.max_length
        if not selected.any():
            shortest, longest = (int(lengths.min()), int(lengths.max())) if len(lengths) else (0, 0)
            raise UserError(
                f"no text has a length in the range; the {len(lengths):,} texts have {shortest:,} to {longest:,} tokens"
            )
        if rare_tokens is not None:
            selected &= rare_tokens > 0
            if not selected.any():
                raise UserError(
                    f"no text has a token that occurs at most {self.rare:,} times in the training data; allow more"
                )
        return selected

    def rank(self, badness: Float[np.ndarray, " N"]) -> Int[np.ndarray, " K"]:
        """Return the numbers of the `top` largest values, the largest first, equal ones in their order.

        Values of -inf are left out.
        """
        order = np.argsort(-badness, kind="stable")[: self.top]
        return order[badness[order] > -np.inf]


def count_marked(marked: Bool[np.ndarray, " M"], starts: Int[np.ndarray, " N+1"]) -> Int[np.ndarray, " N"]:
    """Return how many tokens of each text are marked.

    Args:
        marked: True at marked tokens.
        starts: Start of each text, and the end of the last one.
    """
    return np.diff(np.append(0, np.cumsum(marked))[starts])
