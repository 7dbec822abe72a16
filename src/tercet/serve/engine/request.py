"""What the engine is asked for, and what it answers: an event a token."""

import time
from dataclasses import dataclass, field
from typing import Literal

from tercet.generation.specs import Sampling
from tercet.serve.engine.sampling import SampledToken

Finish = Literal["stop", "eos", "length", "time"]


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A prompt's tokens and how to go on with it."""

    ids: tuple[int, ...]
    sampling: Sampling
    top_logprobs: int = 0  # how many of the likeliest tokens come beside each that is sampled


@dataclass(frozen=True, kw_only=True)
class TokenEvent:
    """What is new in a text since the last event."""

    text: str  # may be "" while a character or a possible stop text is unfinished
    token: SampledToken | None = None  # None where nothing was sampled: no token was asked for, or time is over
    finish: Finish | None = None  # with the last event; "time" where `limits.seconds` are over
    at: float = field(default_factory=time.perf_counter, compare=False)  # when the engine made it
