"""The length of a run and the rows of each step, in closed form, so that neither has to be saved.

A step takes whole units of rows. Without a ramp, a unit is the batch. With a ramp, a unit is one micro-batch per
device, and the number of units that step s, counted from 0, takes is

    k(s) = 1 + floor((K - 1) s / r)     for s < r, and K afterwards

where K is the number of units of the full batch, and r the number of steps over which the batch grows. Units are taken
in order, across the ends of epochs, so no row is skipped or repeated within an epoch for any sizes of steps. A run that
is extended keeps its initial r.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from tercet.data import Order
from tercet.data.rows.order import Layout
from tercet.data.rows.strands import choose_strands
from tercet.training.recipe.specs import TrainingSpec

MAX_STEPS = 1 << 48  # upper limit of a run whose length is in hours


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Steps of a run and the rows of each step.

    Args:
        n_rows: Rows per epoch: rows of text, texts, conversations, or buckets of sentence pairs.
        unit: Number of rows that are always taken together.
        units: Number of units in the full batch.
        ramp: Fraction of the run over which the batch grows from one unit to all; 0 for a constant batch.
        seed: Seed of the order of rows.
        steps: Steps of the whole run; 0 if the length is in hours that are not yet converted.
        layout: Layout that determines the order of rows; None if the order is a permutation of all rows.
        lengths: Lengths of a run that was extended, as pairs of the first step for which a length applies and the
            length in steps, in the order of the changes. The first pair is the initial length. Empty if the length was
            never changed.
    """

    n_rows: int
    unit: int
    units: int = 1
    ramp: float = 0.0
    seed: int = 0
    steps: int = 0
    layout: Layout | None = None
    lengths: tuple[tuple[int, int], ...] = ()

    @property
    def full_batch(self) -> int:
        """Number of rows of a step with the full batch."""
        return self.unit * self.units

    def extended(self, steps: int, *, at: int) -> "Plan":
        """Return the plan of a run whose length becomes `steps` steps from step `at` on, counted from 0."""
        return replace(self, steps=steps, lengths=(*(self.lengths or ((0, self.steps),)), (at, steps)))

    def length_at(self, step: int) -> int:
        """Return the length in steps that was planned for the run at `step`, counted from 0."""
        return next((steps for first, steps in reversed(self.lengths) if first <= step), self.steps)

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the row numbers of `step`, counted from 0, and the epoch of each row."""
        first, n_units = self.units_before(step), self.units_of(step)
        order = self.order(self.unit)
        numbers, epochs = zip(*(order.rows(unit) for unit in range(first, first + n_units)), strict=True)
        return np.concatenate(numbers), np.concatenate(epochs)

    def shifts(self, epochs: np.ndarray, length: int) -> np.ndarray:
        """Return the offset of each packed row's window in the text, which depends on the row's epoch.

        Args:
            epochs: Epoch of each row.
            length: Tokens per row.
        """
        order = self.order(self.unit)
        shift = {epoch: order.shift(epoch, length) for epoch in np.unique(epochs).tolist()}
        return np.array([shift[epoch] for epoch in epochs.tolist()])

    def strands(self, numbers: np.ndarray, epochs: np.ndarray) -> np.ndarray:
        """Return for each row whether it is replaced by its reverse complement in its epoch, (B,) bool."""
        return choose_strands(numbers, epochs, n_rows=self.n_rows, seed=self.seed)

    def order(self, batch: int) -> Order:
        """Return the order of rows, in batches of `batch` rows."""
        return Order(self.n_rows, batch, self.seed, self.layout)

    def rows_before(self, step: int) -> int:
        return self.unit * self.units_before(step)

    def epoch(self, step: int) -> float:
        """Return the number of epochs before `step`."""
        return self.rows_before(step) / self.n_rows

    def units_of(self, step: int) -> int:
        ramp_steps = self.ramp_steps
        return self.units if step >= ramp_steps else 1 + (self.units - 1) * step // ramp_steps

    def units_before(self, step: int) -> int:
        ramp_steps = self.ramp_steps
        ramped = min(step, ramp_steps)
        ramp_units = ramped + floor_sum(ramped, self.units - 1, ramp_steps) if ramp_steps else 0
        return ramp_units + (step - ramped) * self.units

    @property
    def ramp_steps(self) -> int:
        """Number of steps over which the batch grows."""
        return ceil(self.ramp * self.length_at(0))

    def for_epochs(self, epochs: float) -> "Plan":
        """Return the shortest plan that takes at least `epochs` epochs.

        Rows of the next epoch fill the last batch.
        """

        def units(steps: int) -> int:
            return replace(self, steps=steps).units_before(steps)

        n_units = ceil(epochs * self.n_rows / self.unit)
        return replace(self, steps=bisect_left(range(n_units + 1), n_units, key=units))

    def for_hours(self, seconds: float, *, unit_seconds: float, step_seconds: float) -> "Plan":
        """Return the longest plan that does not exceed a duration, but has at least one step.

        Args:
            seconds: Maximum duration of the run.
            unit_seconds: Seconds per unit of rows.
            step_seconds: Additional seconds per step, independent of its number of rows.
        """

        def duration(steps: int) -> float:
            return replace(self, steps=steps).units_before(steps) * unit_seconds + steps * step_seconds

        return replace(self, steps=max(1, bisect_right(range(MAX_STEPS), seconds, key=duration) - 1))


def plan_of(spec: TrainingSpec, n_rows: int, *, batch: int, micro: int, layout: Layout | None = None) -> Plan:
    """Return the plan of a run.

    Args:
        spec: Training settings.
        n_rows: Rows per epoch.
        batch: Rows per step.
        micro: Rows per micro-batch on each device. With a ramp, steps take whole micro-batches of every device;
            otherwise it has no effect.
        layout: As in `Plan`.
    """
    plan = Plan(n_rows=n_rows, unit=batch, seed=spec.seed, layout=layout)
    if spec.batch_ramp is not None:
        unit = micro * spec.data_parallel_size
        plan = replace(plan, unit=unit, units=batch // unit, ramp=spec.batch_ramp)
    if spec.max_steps is not None:
        return replace(plan, steps=spec.max_steps)
    return plan if spec.max_epochs is None else plan.for_epochs(spec.max_epochs)


class RowSums:
    """Sums of a value of each row, such as its number of real tokens, over all rows before a step.

    The sum is a function of the plan and the step. Nothing is accumulated from step to step, so it is the same after
    resuming and for any number of devices. The cumulative sums of one epoch are cached.
    """

    def __init__(self, values: np.ndarray | int) -> None:
        """Initialize the sums.

        Args:
            values: Value of each row, shape (n_rows,), or one value for all rows.
        """
        self._values = values
        self._total = values if isinstance(values, int) else int(values.sum(dtype=np.int64))
        self._cached_sums: tuple[tuple[int, int, int], np.ndarray] | None = None  # key of an epoch, and its sums

    def sum_before(self, plan: Plan, step: int) -> int:
        """Return the sum over the rows of all steps before `step`."""
        if isinstance(self._values, int):
            return plan.rows_before(step) * self._values
        epochs, rest = divmod(plan.rows_before(step), plan.n_rows)
        return epochs * self._total + (self._epoch_sum(plan, epochs, self._values, rest) if rest else 0)

    def _epoch_sum(self, plan: Plan, epoch: int, values: np.ndarray, rows: int) -> int:
        """Return the sum of the first `rows` rows of an epoch."""
        key = plan.n_rows, plan.seed, epoch
        if self._cached_sums is None or self._cached_sums[0] != key:
            numbers, _ = plan.order(plan.n_rows).rows(epoch)
            self._cached_sums = key, np.cumsum(values[numbers], dtype=np.int64)
        return int(self._cached_sums[1][rows - 1])


def floor_sum(n: int, a: int, m: int) -> int:
    """Return the sum of floor(a i / m) over i = 0 ... n - 1, by a Euclidean algorithm for lattice points."""
    total, b = 0, 0
    while n:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        highest = a * n + b
        n, b, a, m = highest // m, highest % m, m, a
        if not a or not m:
            break
    return total
