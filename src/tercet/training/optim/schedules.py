"""Learning-rate schedules: a factor on the rate of every group, as a pure function of the step.

All schedules start with a linear warm-up of W steps, whose first step is not zero. After it, at step s of S, counted
from 0, with f = `final`, c = `cooldown`, d = `d_model`:

                          factor                                         at the last step
    constant              1                                              1
    linear                1 - (1 - f) p,    p = (s - W) / (S - 1 - W)    f
    cosine                f + (1 - f) (1 + cos(pi p)) / 2                f
    wsd                   f + (1 - f) min(1, (S - s) / (c S))            f + (1 - f) min(1, 1 / (c S))
    noam                  1 / sqrt(d (s + 1))                            1 / sqrt(d S)
    inverse_square_root   sqrt(W / (s + 1))                              sqrt(W / S)

Linear and cosine reach `final` at the last step if at least two steps follow the warm-up; with `final: 0` that step
changes nothing. Wsd ends one step above `final`. The other schedules have no `final`: constant does not decay, and noam
and inverse_square_root decay with the square root of the step. The maximum is at the last warm-up step.
"""

import math
from typing import Literal

from tercet.spec import Share, ShareAboveZero, Width, spec


@spec
class Constant:
    """A constant learning rate after the warm-up."""

    kind: Literal["constant"] = "constant"

    def decay(self, step: int, warmup: int, total: int) -> float:
        return 1.0


@spec
class LinearDecay:
    """A linear decay from the end of the warm-up to the last step.

    Args:
        final: Final learning rate, as a fraction of the peak.
    """

    kind: Literal["linear"] = "linear"
    final: Share = 0.0

    def decay(self, step: int, warmup: int, total: int) -> float:
        return 1.0 - (1.0 - self.final) * _progress(step, warmup, total)


@spec
class Cosine:
    """A cosine decay (Loshchilov and Hutter 2017).

    Args:
        final: Final learning rate, as a fraction of the peak.
    """

    kind: Literal["cosine"] = "cosine"
    final: Share = 0.1

    def decay(self, step: int, warmup: int, total: int) -> float:
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * _progress(step, warmup, total)))


@spec
class WSD:
    """Warm-up, stable, decay (Hu et al. 2024): constant, then linear over the last `cooldown` of the run.

    Args:
        cooldown: Fraction of the run in which the rate falls.
        final: Final learning rate, as a fraction of the peak.
    """

    kind: Literal["wsd"] = "wsd"
    cooldown: ShareAboveZero = 0.6
    final: Share = 0.0

    def decay(self, step: int, warmup: int, total: int) -> float:
        left = max(1, total - step) / (self.cooldown * total)  # above `final` at the last step, so that it still trains
        return self.final + (1.0 - self.final) * min(1.0, left)


@spec
class Noam:
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5), steps from 1 (Vaswani et al. 2017, 5.3).

    The optimizer's rate is a factor on it: 1 gives the paper's rates. Requires `training.warmup_steps`.

    Args:
        d_model: Width in the formula.
    """

    kind: Literal["noam"] = "noam"
    d_model: Width = 512

    def decay(self, step: int, warmup: int, total: int) -> float:
        return self.d_model**-0.5 * (step + 1) ** -0.5


@spec
class InverseSquareRoot:
    """sqrt(warmup / step) after the warm-up: the shape of Noam, with the optimizer's rate as maximum.

    Requires `training.warmup_steps`.
    """

    kind: Literal["inverse_square_root"] = "inverse_square_root"

    def decay(self, step: int, warmup: int, total: int) -> float:
        return math.sqrt(warmup / (step + 1))


Schedule = Constant | LinearDecay | Cosine | WSD | Noam | InverseSquareRoot


def rate_factor(schedule: Schedule, *, step: int, warmup: int, total: int) -> float:
    """Return the factor on the learning rate at a step.

    Args:
        schedule: Schedule.
        step: Step from 0 to total - 1.
        warmup: Number of steps over which the rate rises to its maximum.
        total: Number of steps of the run.
    """
    rise = (step + 1) / warmup if step < warmup else 1.0
    return rise * schedule.decay(max(step, warmup - 1), warmup, total)


def _progress(step: int, warmup: int, total: int) -> float:
    return min(1.0, max(0, step - warmup) / max(1, total - 1 - warmup))
