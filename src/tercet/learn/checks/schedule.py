"""Checks of exercise 8: the learning rate. The reference is `tercet.training.optim.schedules`."""

import math
from types import ModuleType

import torch
from torch import Tensor

from tercet.learn.compare import explain
from tercet.training.optim.schedules import Cosine, rate_factor

PEAK, WARMUP, TOTAL, FINAL = 3e-4, 5, 25, 0.1
SCALE = 1 / PEAK  # rates are compared as shares of the peak, for which the tolerance is meant


def reference(steps: range, warmup: int = WARMUP) -> Tensor:
    schedule = Cosine(final=FINAL)
    factors = [rate_factor(schedule, step=step, warmup=warmup, total=TOTAL) for step in steps]
    return torch.tensor(factors, dtype=torch.float64)


def rates(solution: ModuleType, steps: range, warmup: int = WARMUP) -> Tensor | str:
    """Return the student's rates as shares of the peak, or a line about a result that is not a number."""
    results = [solution.learning_rate(step, PEAK, warmup, TOTAL, FINAL) for step in steps]
    for step, result in zip(steps, results, strict=True):
        if result is None:
            return "the function returns None; add a `return`"
        if not isinstance(result, int | float | Tensor):
            return f"the rate of step {step} must be a number, not {type(result).__name__}"
    return torch.tensor([float(result) * SCALE for result in results], dtype=torch.float64)


def half_cosine(p: Tensor, final: float = FINAL) -> Tensor:
    return final + (1 - final) * (1 + (math.pi * p).cos()) / 2


def check_warmup(solution: ModuleType) -> str | None:
    steps = range(WARMUP)
    result = rates(solution, steps)
    if isinstance(result, str):
        return result
    numbers = torch.arange(WARMUP, dtype=torch.float64)
    return explain(
        result,
        reference(steps),
        {
            "step 0 has the rate 0, so it is lost; use (step + 1) / warmup": numbers / WARMUP,
            "the rate is below the peak at the last warm-up step; use (step + 1) / warmup": (
                (numbers + 1) / (WARMUP + 1)
            ),
            "there is no warm-up: the first rates are at the peak": torch.ones(WARMUP, dtype=torch.float64),
            "the warm-up is multiplied by the decay; before step W there is no decay": (
                (numbers + 1) / WARMUP * half_cosine(numbers / (TOTAL - 1))
            ),
        },
        name="the rate in shares of the peak",
    )


def check_decay(solution: ModuleType) -> str | None:
    steps = range(WARMUP, TOTAL)
    result = rates(solution, steps)
    if isinstance(result, str):
        return result
    numbers = torch.arange(WARMUP, TOTAL, dtype=torch.float64)
    p = (numbers - WARMUP) / (TOTAL - 1 - WARMUP)
    return explain(
        result,
        reference(steps),
        {
            "the decay begins at step 0, so the rate falls abruptly after the warm-up; use p = (s - W) / (S - 1 - W)": (
                half_cosine(numbers / (TOTAL - 1))
            ),
            "the decay begins at step 0 and ends at step S; use p = (s - W) / (S - 1 - W)": half_cosine(
                numbers / TOTAL
            ),
            "the decay ends one step too late: the last step is S - 1": half_cosine(
                (numbers - WARMUP) / (TOTAL - WARMUP)
            ),
            "the cosine is not halved; its factor is (1 + cos(pi p)) / 2": FINAL
            + (1 - FINAL) * (1 + (math.pi * p).cos()),
            "the decay ends at 0 instead of the final share of the peak": half_cosine(p, final=0.0),
            "the final share is added to the whole cosine, so the peak is too high; use f + (1 - f) * ...": (
                FINAL + half_cosine(p, final=0.0)
            ),
            "a whole period of the cosine is used, so the rate rises again; use cos(pi p)": half_cosine(2 * p),
            "the decay is linear; use the cosine": FINAL + (1 - FINAL) * (1 - p),
        },
        name="the rate in shares of the peak",
    )


def check_after_the_end(solution: ModuleType) -> str | None:
    result = rates(solution, range(TOTAL, TOTAL + 10))
    if isinstance(result, str):
        return result
    if (result > FINAL + 1e-6).any():
        return "the rate rises again after the last step; limit p to 1"
    return explain(result, torch.full((10,), FINAL, dtype=torch.float64), name="the rate after the last step")


def check_no_warmup(solution: ModuleType) -> str | None:
    result = rates(solution, range(TOTAL), warmup=0)
    return result if isinstance(result, str) else explain(result, reference(range(TOTAL), warmup=0))


def check_proportional(solution: ModuleType) -> str | None:
    one, other = (float(solution.learning_rate(7, peak, WARMUP, TOTAL, FINAL)) for peak in (1.0, 2.0))
    if not math.isclose(2 * one, other, rel_tol=1e-6):
        return f"twice the peak does not give twice the rate: {one:.6g} and {other:.6g}"
    return None


CHECKS = {
    "the rate rises linearly to the peak": check_warmup,
    "the rate decays as half a cosine to its final share": check_decay,
    "the rate stays at its final share after the last step": check_after_the_end,
    "without warm-up the rate begins at the peak": check_no_warmup,
    "the rate is proportional to the peak": check_proportional,
}
