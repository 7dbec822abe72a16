"""Problems of a training that its metrics show: divergence, overfitting, a wrong learning rate, an easy validation.

Each check compares measured numbers with a limit. The limits are wide, because a warning about a healthy run costs more
attention than it saves; `tests/checkpoint/test_training_problems.py` has healthy runs of all tasks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

WINDOW = 5  # logged training losses in a median, which removes the noise of single batches
IN_A_ROW = 3  # validations in a row that must show a problem
MIN_TOKENS_PER_PARAMETER, MAX_TOKENS_PER_PARAMETER = 0.1, 10_000.0


@dataclass(frozen=True, kw_only=True)
class TrainingProblem:
    """A problem of a training.

    Attributes:
        name: Name of the check.
        step: Step up to which the metrics were read.
        text: One line with the figures and the remedy.
    """

    name: str
    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class TrainingFacts:
    """The metrics of a run up to now, and the settings that the checks need.

    Args:
        points: Function that returns the steps and values of a column of metrics.csv as (N, 2), such as
            `MetricsFile.points`.
        warmup_steps: Steps in which the learning rate grows.
        total_steps: Steps of the whole run.
        best_by: Metric that selects the best model, such as "loss".
        parameters: Number of parameters that are trained from random weights; None if the model was pretrained or the
            number is unknown.
    """

    points: Callable[[str], np.ndarray]
    warmup_steps: int
    total_steps: int
    best_by: str = "loss"
    parameters: int | None = None

    def training_losses(self) -> np.ndarray:
        """Return the steps and values (N, 2) of the logged training losses, without label smoothing."""
        plain = self.points("train/nll")
        return plain if len(plain) else self.points("train/loss")

    def smooth_losses(self, *, after: int = 0) -> np.ndarray:
        """Return the medians of WINDOW consecutive training losses after a step, at their last steps, (N, 2)."""
        points = self.training_losses()
        points = points[points[:, 0] > after]
        if len(points) < WINDOW:
            return np.empty((0, 2))
        medians = np.median(np.lib.stride_tricks.sliding_window_view(points[:, 1], WINDOW), axis=1)
        return np.column_stack((points[WINDOW - 1 :, 0], medians))

    def validation_losses(self) -> np.ndarray:
        """Return the validation losses (N, 2) after the warm-up and a tenth of the run."""
        points = self.points("val/loss")
        return points[points[:, 0] > max(self.warmup_steps, self.total_steps / 10)]


def find_training_problems(facts: TrainingFacts) -> list[TrainingProblem]:
    """Return the problems that the metrics show at the last logged step, at most one per check."""
    training, validation = facts.smooth_losses(after=facts.warmup_steps), facts.validation_losses()
    return [
        TrainingProblem(name=name, step=int(facts.training_losses()[-1, 0]), text=text)
        for name, check in CHECKS.items()
        for text in check(facts, training, validation)
    ]  # fmt: skip


def _find_divergence(facts: TrainingFacts, training: np.ndarray, validation: np.ndarray) -> Iterator[str]:
    training = facts.smooth_losses()  # also in the warm-up
    if len(training) < 3 * WINDOW:
        return
    # Batches of translations differ by a nat, so even the lowest of the last losses must be higher.
    last = facts.training_losses()[-2 * WINDOW :, 1].min()
    best_step, best = training[training[:, 1].argmin()]
    if last > best + 0.3 and last > 1.2 * best:
        yield (
            f"the training loss rose from {best:.3f} (step {best_step:.0f}) to {training[-1, 1]:.3f}: training "
            "diverges; reduce training.optimizer.lr, increase training.warmup_steps, or set training.clip_norm"
        )


def _find_no_progress(facts: TrainingFacts, training: np.ndarray, validation: np.ndarray) -> Iterator[str]:
    if not len(training) or training[-1, 0] < facts.total_steps / 4:
        return
    first_step, first = facts.training_losses()[0]
    if training[:, 1].min() > 0.98 * first:
        yield (
            f"the training loss is {training[-1, 1]:.3f}, and was {first:.3f} at step {first_step:.0f}: the model "
            "learns nothing; reduce training.optimizer.lr or increase it tenfold, and check that inputs and targets "
            "belong together"
        )


def _find_small_rate(facts: TrainingFacts, training: np.ndarray, validation: np.ndarray) -> Iterator[str]:
    if len(training) < 3 * WINDOW or training[-1, 0] < facts.total_steps / 2:
        return
    levels = training[np.linspace(0, len(training) - 1, 5).round().astype(int), 1]
    drops = -np.diff(levels)
    mean = drops.mean()
    if 0.02 < mean < 0.05 * levels[0] and (0.6 * mean < drops).all() and (drops < 1.6 * mean).all():
        yield (
            f"the training loss falls slowly in a straight line ({levels[0]:.3f}, {levels[2]:.3f}, {levels[4]:.3f}), "
            "but usually falls fast at the start: training.optimizer.lr is probably far too small; try three times as "
            "much"
        )


def _find_overfitting(facts: TrainingFacts, training: np.ndarray, validation: np.ndarray) -> Iterator[str]:
    if len(validation) <= IN_A_ROW or not len(training):
        return
    (best_step, best), last = validation[validation[:, 1].argmin()], validation[-IN_A_ROW:]
    if best_step >= last[0, 0] or last[:, 1].min() < 1.02 * best + 0.02:
        return
    scores = facts.points(f"val/{facts.best_by}")
    if facts.best_by != "loss" and len(scores) and scores[scores[:, 1].argmax(), 0] >= last[0, 0]:
        return  # the metric that selects the model still improves
    before = training[training[:, 0] <= best_step]
    if len(before) and training[-1, 1] < before[-1, 1]:
        yield (
            f"the validation loss rose from {best:.3f} (step {best_step:.0f}) to {last[-1, 1]:.3f} and the training "
            f"loss fell to {training[-1, 1]:.3f}: the model memorizes its data; the best model is kept in best/; use "
            "more data, more dropout or a smaller model, or stop with training.patience"
        )


def _find_easy_validation(facts: TrainingFacts, training: np.ndarray, validation: np.ndarray) -> Iterator[str]:
    last = validation[-IN_A_ROW:]
    if len(last) < IN_A_ROW or not len(training):
        return
    nearest = training[np.abs(training[:, 0] - last[:, :1]).argmin(1), 1]
    if (last[:, 1] < np.minimum(0.7 * nearest, nearest - 0.3)).all():
        yield (
            f"the validation loss {last[-1, 1]:.3f} is far lower than the training loss {nearest[-1]:.3f}: the "
            "validation data is easier than the training data; check that it is a random part of the same data without "
            "repetitions"
        )


def _find_unigram_plateau(facts: TrainingFacts, training: np.ndarray, validation: np.ndarray) -> Iterator[str]:
    """Find a masked language model that is no better than unigram frequencies.

    Each masked language model stays at this loss for a while before it learns to use the context, and some never
    improve on it.
    """
    entropy = facts.points("val/unigram_entropy")
    if len(validation) and len(entropy) and not validation[-1, 1] < 0.98 * entropy[-1, 1]:
        yield (
            f"the validation loss {validation[-1, 1]:.3f} is no better than unigram frequencies "
            f"({entropy[-1, 1]:.3f} nats); train longer, reduce training.optimizer.lr or increase "
            "training.warmup_steps, and check the text for repeated lines"
        )


def _find_tokens_per_parameter(facts: TrainingFacts, training: np.ndarray, validation: np.ndarray) -> Iterator[str]:
    """Find a run whose length is far from the 20 tokens per parameter of Hoffmann et al. (2022).

    The limits are wide, since small models on small texts are often trained longer, and large ones shorter.
    """
    tokens = facts.points("tokens")
    if not facts.parameters or not len(validation) or not len(tokens):
        return
    step, read = tokens[-1]
    ratio = read / step * facts.total_steps / facts.parameters
    if MIN_TOKENS_PER_PARAMETER <= ratio <= MAX_TOKENS_PER_PARAMETER:
        return
    remedy = "use a smaller model, or train longer" if ratio < 1 else "a larger model would reach a lower loss"
    yield f"the whole run reads {ratio:,.2g} tokens per parameter, but about 20 are usual: {remedy}"


CHECKS: dict[str, Callable[[TrainingFacts, np.ndarray, np.ndarray], Iterator[str]]] = {
    "divergence": _find_divergence,
    "no_progress": _find_no_progress,
    "small_rate": _find_small_rate,
    "overfitting": _find_overfitting,
    "easy_validation": _find_easy_validation,
    "unigram_plateau": _find_unigram_plateau,
    "tokens_per_parameter": _find_tokens_per_parameter,
}
