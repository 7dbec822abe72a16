"""Settings of scaled rotary positions, as `scaling` of `Rotary`; `rotary_scaling.py` computes the frequencies."""

from typing import Annotated, Literal

from tercet.spec import Context, Interval, spec

Factor = Annotated[float, Interval(ge=1, le=10**4)]  # by how much a context becomes longer
Turns = Annotated[float, Interval(gt=0, le=10**6)]  # number of turns of a pair within a context


@spec
class LinearScaling:
    """Position interpolation: all frequencies are divided by the factor.

    Chen et al., "Extending Context Window of Large Language Models via Positional Interpolation" (2023).

    Args:
        factor: Factor by which the context becomes longer.
    """

    kind: Literal["linear"] = "linear"
    factor: Factor


@spec
class DynamicScaling:
    """Dynamic NTK scaling: the base grows with the length n of a text that is longer than the original context c.

        base * (factor * n / c - (factor - 1))^(R / (R - 1)), with R rotated pairs

    bloc97 and emozilla (2023); appendix A of Peng et al. (2023). The length of a text is the number of tokens up to the
    last one in the same forward pass. Keys in a KV cache keep the angles of the pass that stored them, so beyond the
    original context the result depends on how the text is divided into passes.

    Args:
        factor: Factor by which the context becomes longer.
        original_max_len: Length c of the original context, in tokens.
    """

    kind: Literal["dynamic"] = "dynamic"
    factor: Factor
    original_max_len: Context


@spec
class Llama3Scaling:
    """Scaling of Llama 3.1: only low frequencies are divided by the factor.

    A pair that turns at least `high_freq_factor` times within the original context keeps its frequency. One that turns
    less than `low_freq_factor` times is slowed down by the factor. In between, the frequency is interpolated.

    Dubey et al., "The Llama 3 Herd of Models" (2024). The defaults are those of Llama 3.1.

    Args:
        factor: Factor by which the context becomes longer.
        low_freq_factor, high_freq_factor: Turns within the original context, which limit the interpolated range.
        original_max_len: Length of the original context, in tokens.
    """

    kind: Literal["llama3"] = "llama3"
    factor: Factor = 8.0
    low_freq_factor: Turns = 1.0
    high_freq_factor: Turns = 4.0
    original_max_len: Context = 8192

    def __post_init__(self) -> None:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor={self.low_freq_factor} must be below high_freq_factor={self.high_freq_factor}"
            )


@spec
class YaRNScaling:
    """YaRN: low frequencies are divided by the factor, and queries and keys are multiplied by a number.

    A pair that turns at least `beta_fast` times within the original context keeps its frequency. One that turns at most
    `beta_slow` times is slowed down by the factor. In between, the frequency changes linearly with the number of the
    pair.

    Peng et al., "YaRN: Efficient Context Window Extension of Large Language Models" (2023).

    Args:
        factor: Factor by which the context becomes longer.
        original_max_len: Length of the original context, in tokens.
        beta_fast, beta_slow: Turns within the original context, which limit the interpolated range.
        attention_factor: Number that rotated queries and keys are multiplied by (default: 0.1 ln(factor) + 1).
        truncate: If True, the first and last interpolated pair are rounded to whole numbers, outwards.
    """

    kind: Literal["yarn"] = "yarn"
    factor: Factor
    original_max_len: Context
    beta_fast: Turns = 32.0
    beta_slow: Turns = 1.0
    attention_factor: Annotated[float, Interval(gt=0, le=10**4)] | None = None
    truncate: bool = True

    def __post_init__(self) -> None:
        if self.beta_slow >= self.beta_fast:
            raise ValueError(f"beta_slow={self.beta_slow} must be below beta_fast={self.beta_fast}")


Scaling = LinearScaling | DynamicScaling | Llama3Scaling | YaRNScaling
