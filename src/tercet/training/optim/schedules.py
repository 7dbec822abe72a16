"""Learning-rate schedules: a factor on the rate of every parameter group, as a pure function of the step.

All schedules start with a linear warm-up of W steps, in which no rate is zero. Afterwards, the factor at step s of S
steps, counted from 0, is as follows, with f = `final`, c = `cooldown` and d = `d_model`:

                          factor                                         at the last step
    constant              1                                              1
    linear                1 - (1 - f) p,    p = (s - W) / (S - 1 - W)    f
    cosine                f + (1 - f) (1 + cos(pi p)) / 2                f
    wsd                   f + (1 - f) min(1, (S - s) / (c S))            f + (1 - f) min(1, 1 / (c S))
    noam                  1 / sqrt(d (s + 1))                            1 / sqrt(d S)
    inverse_square_root   sqrt(W / (s + 1))                              sqrt(W / S)

Linear and cosine reach `final` at the last step if at least two steps follow the warm-up. With `final: 0`, that step
does not change the weights. Wsd ends one step before it would reach `final`. The other schedules have no `final`:
constant does not decay, and noam and inverse_square_root are proportional to the inverse square root of the step. The
largest factor is that of the last warm-up step, or of step 0 without a warm-up.
"""

import math
from typing import Literal

from tercet.spec import Custom, Share, ShareAboveZero, Width, spec


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
    """A cosine decay from the end of the warm-up to the last step (Loshchilov and Hutter 2017).

    Args:
        final: Final learning rate, as a fraction of the peak.
    """

    kind: Literal["cosine"] = "cosine"
    final: Share = 0.1

    def decay(self, step: int, warmup: int, total: int) -> float:
        return self.final + (1.0 - self.final) * 0.5 * (1.0 + math.cos(math.pi * _progress(step, warmup, total)))


@spec
class WSD:
    """Warm-up, stable, decay (Hu et al. 2024): a constant rate, then a linear decay at the end of the run.

    Args:
        cooldown: Fraction of the run's steps, at its end, in which the rate decays.
        final: Final learning rate, as a fraction of the peak.
    """

    kind: Literal["wsd"] = "wsd"
    cooldown: ShareAboveZero = 0.6
    final: Share = 0.0

    def decay(self, step: int, warmup: int, total: int) -> float:
        left = max(1, total - step) / (self.cooldown * total)  # not 0 at the last step, so that it still trains
        return self.final + (1.0 - self.final) * min(1.0, left)


@spec
class Noam:
    """d_model^-0.5 min(step^-0.5, step warmup^-1.5), steps counted from 1 (Vaswani et al. 2017, 5.3).

    This factor is multiplied by the learning rate of the optimizer; a rate of 1 gives the rates of the paper. Requires
    `training.warmup_steps`.

    Args:
        d_model: Width of the model, as it enters the formula.
    """

    kind: Literal["noam"] = "noam"
    d_model: Width = 512

    def decay(self, step: int, warmup: int, total: int) -> float:
        return self.d_model**-0.5 * (step + 1) ** -0.5


@spec
class InverseSquareRoot:
    """sqrt(warmup / step) after the warm-up, with steps counted from 1.

    The curve has the shape of Noam, but its maximum is the learning rate of the optimizer. Requires
    `training.warmup_steps`.
    """

    kind: Literal["inverse_square_root"] = "inverse_square_root"

    def decay(self, step: int, warmup: int, total: int) -> float:
        return math.sqrt(warmup / (step + 1))


class CustomSchedule(Custom):
    """Base class of the specs of schedules in other packages."""

    def decay(self, step: int, warmup: int, total: int) -> float:
        """Return the factor on the learning rate after the warm-up; the arguments are those of `rate_factor`."""
        raise NotImplementedError(f"{self.kind} has no method decay")


Schedule = Constant | LinearDecay | Cosine | WSD | Noam | InverseSquareRoot | CustomSchedule


def rate_factor(schedule: Schedule, *, step: int, warmup: int, total: int) -> float:
    """Return the factor on the learning rate at a step.

    Args:
        schedule: Schedule after the warm-up.
        step: Step, counted from 0.
        warmup: Number of warm-up steps.
        total: Number of steps of the run.
    """
    rise = (step + 1) / warmup if step < warmup else 1.0
    return rise * schedule.decay(max(step, warmup - 1), warmup, total)


def _progress(step: int, warmup: int, total: int) -> float:
    return min(1.0, max(0, step - warmup) / max(1, total - 1 - warmup))
