"""Decoding settings: sampling and beam search."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from tercet.spec import (
    BeamSize,
    CoverageWeight,
    LengthPenaltyPower,
    LengthRatio,
    NewTokens,
    RepetitionPenalty,
    Seed,
    Share,
    ShareAboveZero,
    Temperature,
    TopK,
    spec,
)

LengthPenalty = Literal["average", "gnmt", "none"]


@spec
class TokenSampling:
    """Settings for the choice of one token. With the defaults, tokens are drawn from the model's own distribution."""

    temperature: Temperature = (
        1.0  # 0 takes the most likely token; values below 1 sharpen the distribution, values above 1 flatten it
    )
    top_k: TopK | None = None
    top_p: ShareAboveZero | None = None
    min_p: Share | None = None
    seed: Seed = 0


@spec
class Sampling(TokenSampling):
    """Settings for the sampling of a text."""

    max_new_tokens: NewTokens = 200
    repetition_penalty: RepetitionPenalty = 1.0  # applies to all tokens of the row so far, including the prompt
    stop: tuple[str, ...] = ()  # stop strings: they end the completion and are not part of it
    # The completion is a JSON value that this schema accepts. A mapping is stored as the text of the JSON object, since
    # settings are hashable.
    json_schema: str | Mapping[str, Any] | None = None
    regex: str | None = None  # regular expression that the whole completion matches

    def __post_init__(self) -> None:
        if isinstance(self.stop, str) or "" in self.stop:
            raise ValueError(f"stop={self.stop!r} must be a tuple of strings that are not empty, such as ('END',)")
        if isinstance(self.json_schema, Mapping):
            object.__setattr__(self, "json_schema", json.dumps(self.json_schema))
        if self.json_schema is not None and self.regex is not None:
            raise ValueError("json_schema and regex exclude each other; pass one of them")


class SamplingOptions(TypedDict, total=False):
    """The fields of `Sampling`, as keyword arguments of other functions."""

    max_new_tokens: int
    temperature: float
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float
    seed: int
    stop: tuple[str, ...]
    json_schema: str | Mapping[str, Any] | None
    regex: str | None


@spec
class Beam:
    """Settings of a beam search. Size 1 is greedy search."""

    size: BeamSize = 5
    n_best: BeamSize = 1  # hypotheses returned
    length_penalty: LengthPenalty = "average"
    alpha: LengthPenaltyPower = 1.0  # 0 compares plain log-probabilities
    coverage: CoverageWeight = (
        0.0  # if above 0, penalize hypotheses that leave source tokens unattended (beta of Wu et al.)
    )
    # Maximum number of tokens of a hypothesis: max_ratio * source length + max_extra. Both include the end token.
    max_ratio: LengthRatio = 2.0
    max_extra: NewTokens = 10
    # Minimum number of tokens before the end token: min_ratio * source length + min_extra.
    min_ratio: LengthRatio = 0.0
    min_extra: NewTokens = 0

    def __post_init__(self) -> None:
        if self.n_best > self.size:
            raise ValueError(f"n_best={self.n_best} must be at most size={self.size}; try size={self.n_best}")
        if self.length_penalty not in ("average", "gnmt", "none"):
            raise ValueError(f"length_penalty={self.length_penalty!r} must be average, gnmt or none")
        if self.max_ratio == self.max_extra == 0:
            raise ValueError("max_ratio=0 and max_extra=0 allow no tokens; try max_ratio=2.0")
        if self.min_ratio > self.max_ratio or self.min_extra > self.max_extra:
            raise ValueError(
                f"min_ratio={self.min_ratio:g} and min_extra={self.min_extra} must not be above "
                f"max_ratio={self.max_ratio:g} and max_extra={self.max_extra}"
            )

    @property
    def name(self) -> str:
        """Short description of the search, reported with every score."""
        search = "greedy" if self.size == 1 else f"beam {self.size}"
        plain = self.length_penalty == "none" or self.alpha == 0
        penalty = "no length penalty" if plain else f"{self.length_penalty} length penalty {self.alpha:g}"
        return f"{search}, {penalty}" + (f", coverage {self.coverage:g}" if self.coverage else "")

    def longest(self, source_tokens: int) -> int:
        """Return the maximum number of tokens of a hypothesis, including its end token."""
        return max(1, int(self.max_ratio * source_tokens) + self.max_extra)

    def shortest(self, source_tokens: int) -> int:
        """Return the minimum number of tokens of a hypothesis before its end token."""
        return int(self.min_ratio * source_tokens) + self.min_extra

    def score(self, logprob: float, length: int) -> float:
        """Return the score of a hypothesis of `length` tokens with this log-probability, without coverage."""
        match self.length_penalty:
            case "average":
                return logprob / length**self.alpha
            case "gnmt":
                return logprob / ((5 + length) / 6) ** self.alpha
            case "none":
                return logprob


class BeamOptions(TypedDict, total=False):
    """The fields of `Beam`, as keyword arguments of other functions."""

    size: int
    n_best: int
    length_penalty: LengthPenalty
    alpha: float
    coverage: float
    max_ratio: float
    max_extra: int
    min_ratio: float
    min_extra: int


class TranslationOptions(BeamOptions, total=False):
    """Keyword arguments of `Run.translations`."""

    search: Beam | Sampling | None
    prefixes: Sequence[str] | None
    batch_tokens: int
