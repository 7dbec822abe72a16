"""Changes of the frequencies of rotary positions for a longer context; see the specs `LinearScaling` and so on.

A pair with the frequency f turns f c / 2π times within the original context of c tokens. Pairs that turn often express
short distances, which a longer context has too. Pairs that do not complete a turn would reach angles that were never
trained, so they are slowed down.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.nn.scaling_specs import DynamicScaling, LinearScaling, Llama3Scaling, Scaling, YaRNScaling


def dynamic_base(
    scaling: DynamicScaling, base: float, width: int, positions: Int[Tensor, "#B T"]
) -> Float[Tensor, "#B 1 1"]:
    """Return the base of the frequencies of each row, which depends on the last position of the row.

    Args:
        scaling: Settings of the scaling.
        base: Base within the original context.
        width: Number of rotated elements of a head, at least 4.
        positions: Positions of the tokens of this forward pass.
    """
    length = (positions.amax(-1) + 1).clamp(min=scaling.original_max_len)[:, None, None]
    growth = scaling.factor * length / scaling.original_max_len - (scaling.factor - 1)
    return base * growth ** (width / (width - 2))


def scale_frequencies(
    scaling: Scaling | None, frequencies: Float[Tensor, "*B R"], *, base: float
) -> Float[Tensor, "*B R"]:
    """Return the frequencies after scaling. Those of `DynamicScaling` already contain it, in their base.

    Args:
        scaling: Settings of the scaling; None for no change.
        frequencies: Frequencies of the pairs, in radians per token.
        base: Base of the frequencies.
    """
    match scaling:
        case LinearScaling():
            return frequencies / scaling.factor
        case Llama3Scaling():
            return _interpolate(frequencies, scaling.factor, _llama3_ramp(scaling, frequencies))
        case YaRNScaling():
            return _interpolate(frequencies, scaling.factor, _yarn_ramp(scaling, frequencies, base))
        case _:
            return frequencies


def attention_factor(scaling: Scaling | None) -> float:
    """Return the number that rotated queries and keys are multiplied by, which only YaRN has."""
    if not isinstance(scaling, YaRNScaling):
        return 1.0
    return 0.1 * math.log(scaling.factor) + 1 if scaling.attention_factor is None else scaling.attention_factor


def _interpolate(frequencies: Tensor, factor: float, kept: Float[Tensor, " R"]) -> Tensor:
    """Divide frequencies by the factor where `kept` is 0, keep them where it is 1, and interpolate in between."""
    return frequencies / factor * (1 - kept) + frequencies * kept


def _llama3_ramp(scaling: Llama3Scaling, frequencies: Tensor) -> Float[Tensor, " R"]:
    turns = scaling.original_max_len * frequencies / (2 * math.pi)
    low, high = scaling.low_freq_factor, scaling.high_freq_factor
    return ((turns - low) / (high - low)).clamp(0, 1)


def _yarn_ramp(scaling: YaRNScaling, frequencies: Tensor, base: float) -> Float[Tensor, " R"]:
    width = 2 * len(frequencies)

    def pair(turns: float) -> float:
        """Return the number of the pair, as a fraction, that turns so often within the original context."""
        return width * math.log(scaling.original_max_len / (turns * 2 * math.pi)) / (2 * math.log(base))

    first, last = pair(scaling.beta_fast), pair(scaling.beta_slow)
    if scaling.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, width - 1)
    last = last if first != last else first + 0.001  # a step instead of a ramp
    numbers = torch.arange(len(frequencies), device=frequencies.device, dtype=torch.float32)
    return 1 - ((numbers - first) / (last - first)).clamp(0, 1)
