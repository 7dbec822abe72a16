"""The choice of pilot runs, and of the size of a run from their results."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tercet.checkpoint.forecast import COVERAGE, Pilot, SizeForecast
from tercet.training.budget.law import Law, Point, Prior, fit
from tercet.training.budget.pilots import step_seconds
from tercet.training.budget.settings import TextSize, overfitting

VALIDATIONS = 10  # of the run
VALIDATION_COST = 1 / 3  # time of a validated token, relative to a trained one
MIN_STEPS, MIN_PILOT_STEPS = 250, 50
LENGTHS = tuple(2 ** (-step / 2) for step in range(17))  # considered lengths, as shares of the longest


@dataclass(frozen=True, kw_only=True)
class Work:
    """The text, and the work of a step of each size.

    Attributes:
        task: Kind of the task, such as "language".
        unit: Unit of the losses, such as "nats per token".
        text: Tokens of the training text and of a step.
        unigram_loss: Validation loss of counting tokens, in nats per target.
        ngram_loss: Validation loss of the best n-gram model, in the same unit.
        validation_tokens: Tokens of a validation.
        flops: FLOPs per step of each size that is considered.
        multiplied: Elements of the matrices that are multiplied for each token, by size.
    """

    task: str
    unit: str
    text: TextSize
    unigram_loss: float
    ngram_loss: float
    validation_tokens: int
    flops: Mapping[int, float]
    multiplied: Mapping[int, int]

    def steps_in(self, seconds: float, per_step: float, *, validations: int = VALIDATIONS) -> int:
        """Return the number of steps of `per_step` seconds that fit into a duration, with validations."""
        validation_steps = validations * VALIDATION_COST * self.validation_tokens / self.text.step_tokens
        return max(0, int(seconds / per_step - validation_steps))

    def point(self, size: int, tokens: int, loss: float = 0.0) -> Point:
        """Return a training of a size, and its validation loss if it is known, as the law describes it."""
        ngram, ratio = self.ngram_loss / self.unigram_loss, loss / self.unigram_loss
        return Point(self.multiplied[size], tokens, self.text.unique_tokens, ngram, ratio)

    def law(self, pilots: Sequence[Pilot], prior: Prior) -> Law:
        """Return the law of the text, given the results of pilot runs."""
        return fit([self.point(pilot.size, pilot.tokens, pilot.loss) for pilot in pilots], prior)


def candidates(
    work: Work, pilots: Sequence[Pilot], prior: Prior, seconds: float, *, flops_per_second: float | None = None
) -> list[SizeForecast]:
    """Return what each size would reach within a duration, by size, with its best length.

    Sizes with fewer than `MIN_STEPS` steps are left out, and, on this machine, those that are more than one place
    larger than all sizes of the pilot runs. A run that is shorter than the duration is better if the text is so small
    that further passes make the model worse; otherwise, only the longest is considered.

    Args:
        work: Text and work of a step.
        pilots: Results of pilot runs.
        prior: Prior distribution of the law.
        seconds: Duration of the run.
        flops_per_second: Speed of another machine, for which all sizes are considered; None for that of the pilot runs.
    """
    law, found = work.law(pilots, prior), list[SizeForecast]()
    sizes = list(work.flops)
    largest = neighbor(max(pilot.size for pilot in pilots), 1, sizes) or sizes[-1]
    for size in sizes:
        if size > largest and flops_per_second is None:
            continue
        per_step = work.flops[size] / flops_per_second if flops_per_second else step_seconds(pilots, work.flops, size)
        longest = work.steps_in(seconds, per_step)
        passes = work.text.passes(longest)
        shares = LENGTHS if overfitting(work.multiplied[size], passes, work.text.unique_tokens) else (1.0,)
        lengths = [int(share * longest) for share in shares if share * longest >= MIN_STEPS]
        if not lengths:
            continue
        points = {steps: work.point(size, steps * work.text.step_tokens) for steps in lengths}
        steps = min(lengths, key=lambda steps: law.expect(points[steps]))
        losses = work.unigram_loss * law.draw(points[steps])
        tail = (1 - COVERAGE) / 2
        low, middle, high = np.quantile(losses, [tail, 0.5, 1 - tail]).tolist()
        found.append(
            SizeForecast(
                size=size, steps=steps, tokens=steps * work.text.step_tokens, passes=work.text.passes(steps),
                seconds=seconds * steps / longest, loss=middle, low=low, high=high,
            )
        )  # fmt: skip
    return found


def best_of(found: Sequence[SizeForecast]) -> SizeForecast:
    """Return the candidate with the lowest expected loss."""
    return min(found, key=lambda candidate: candidate.loss)


def pilot_of(work: Work, pilots: Sequence[Pilot], size: int, seconds: float) -> tuple[int, int] | None:
    """Return the size and steps of a pilot run of a duration.

    The size is the largest, up to `size`, that has `MIN_PILOT_STEPS` steps in this time; None if no size has.
    """
    for smaller in sorted((one for one in work.flops if one <= size), reverse=True):
        steps = work.steps_in(seconds, step_seconds(pilots, work.flops, smaller), validations=1)
        if steps >= MIN_PILOT_STEPS:
            return smaller, steps
    return None


def neighbor(size: int, distance: int, sizes: Sequence[int]) -> int | None:
    """Return the size that is `distance` places larger than `size`; None if there is none."""
    place = sizes.index(size) + distance
    return sizes[place] if 0 <= place < len(sizes) else None
