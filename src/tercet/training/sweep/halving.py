"""Successive halving: many trials are trained for a short time, and only the best third of them for longer.

    steps of the rungs    S / 9, S / 3, S        S steps of the recipe, rounded to steps with a validation
    trials                N, N / 3, N / 9        rounded down, at least 1

A trial continues from exactly the checkpoint with which it was paused at the rung before (Jamieson and Talwalkar 2016).
A trial that fails makes room for the next best one.
"""

from collections.abc import Callable, Mapping, Sequence

REDUCTION = 3  # ratio of the trials, and of the steps, of consecutive rungs
MAX_RUNGS = 3


def rung_shares(steps: int, interval: int) -> tuple[float, ...]:
    """Return the lengths of the rungs as shares of the run; the last is 1.

    There are fewer rungs if a run has few validations.

    Args:
        steps: Length of a run in steps.
        interval: Steps between two validations.
    """
    lengths = {rung_step(REDUCTION**-power, steps, interval) for power in range(MAX_RUNGS)}
    return tuple(length / steps for length in sorted(lengths))


def rung_step(share: float, steps: int, interval: int) -> int:
    """Return the step of a rung: that of the validation nearest to a share of the run.

    Args:
        share: Share of the run.
        steps: Length of the run in steps.
        interval: Steps between two validations.
    """
    return steps if share >= 1 else min(steps, max(1, round(share * steps / interval)) * interval)


def advance_best(losses: Mapping[int, float], advance: Callable[[int], float | None]) -> dict[int, float]:
    """Return the losses of the best third of the trials of a rung, at the next rung.

    Args:
        losses: Loss of each trial that reached the rung, by its number.
        advance: Function that trains a trial to the next rung, and returns its loss, or None if it failed.
    """
    advanced = dict[int, float]()
    for number in sorted(losses, key=lambda number: (losses[number], number)):
        if len(advanced) == max(1, len(losses) // REDUCTION):
            break
        if (loss := advance(number)) is not None:
            advanced[number] = loss
    return advanced


def rung_trials(trials: int, rungs: int) -> list[int]:
    """Return the number of trials that reach each rung, if none fails.

    Args:
        trials: Number of trials of the search.
        rungs: Number of rungs.
    """
    counts = [trials]
    while len(counts) < rungs:
        counts.append(max(1, counts[-1] // REDUCTION))
    return counts


def planned_steps(trials: int, steps: Sequence[int]) -> int:
    """Return the number of steps that a search trains in total.

    Args:
        trials: Number of trials.
        steps: Steps of the rungs.
    """
    counts = rung_trials(trials, len(steps))
    return sum(count * (step - before) for count, step, before in zip(counts, steps, (0, *steps), strict=False))
