"""Requests for generated text, and the answers to them: one event per token."""

import time
from dataclasses import dataclass, field
from typing import Literal

from tercet.generation.specs import Sampling
from tercet.serve.engine.sampling import SampledToken

Finish = Literal["stop", "eos", "length", "time"]


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """The token ids of a prompt, and the settings of its continuation."""

    ids: tuple[int, ...]
    sampling: Sampling
    top_logprobs: int = 0  # likeliest tokens to report with each sampled token


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """The new part of a text since the last event."""

    text: str  # may be "" if a character or a possible stop string is incomplete
    token: SampledToken | None = None  # None if nothing was sampled: no tokens were requested, or the time is over
    finish: Finish | None = None  # set in the last event; "time" if `limits.seconds` is exceeded
    at: float = field(default_factory=time.perf_counter, compare=False)  # time of `time.perf_counter`, in seconds
