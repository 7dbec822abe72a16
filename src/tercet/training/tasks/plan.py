"""How long a run is, and which rows each of its steps takes: both in closed form, so that nothing of it need be saved.

A step takes whole units of rows. Without a ramp a unit is the batch. With one, a unit is a micro-batch on each device,
and step s takes

    k(s) = k_0 + floor((K - k_0) s / r)     for s < r, and K from there on

of them: k_0 = 1, K fill the batch, r is the share of the steps over which it grows. Units are laid end to end, as
epochs are, so that whatever the steps take, no row is skipped and none comes twice in an epoch. A run that is made
longer keeps the r of its beginning.
"""

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, replace
from math import ceil

import numpy as np

from tercet.data import Order
from tercet.data.rows.order import Layout
from tercet.training.recipe.specs import TrainingSpec

MAX_STEPS = 1 << 48  # steps: more than any run has


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Args:
    n_rows: of an epoch; rows of text or of texts, or buckets of pairs.
    unit: rows that always come together.
    units: of a step's whole batch.
    ramp: the share of the run over which a step grows from one unit to all; 0 for none.
    seed: of the order.
    steps: of the whole run; 0 where a budget of hours is not yet settled.
    layout: the order of rows, where it is no permutation of all.
    lengths: where that was changed after the run had begun: from which step on, and to how many steps, in the order in
        which it was said; the first is the run's beginning.
    """

    n_rows: int
    unit: int
    units: int = 1
    ramp: float = 0.0
    seed: int = 0
    steps: int = 0
    layout: Layout | None = None
    lengths: tuple[tuple[int, int], ...] = ()

    def extended(self, steps: int, *, at: int) -> "Plan":
        """The same up to step `at`, and from there on as a run of so many steps."""
        return replace(self, steps=steps, lengths=(*(self.lengths or ((0, self.steps),)), (at, steps)))

    def length_at(self, step: int) -> int:
        """How long the run is to be, as it holds for `step`, counted from 0."""
        return next((steps for first, steps in reversed(self.lengths) if first <= step), self.steps)

    def rows(self, step: int) -> tuple[np.ndarray, np.ndarray]:
        """The numbers of the rows of `step`, counted from 0, and the epoch of each."""
        first, n_units = self.units_before(step), self.units_of(step)
        order = self.order(self.unit)
        numbers, epochs = zip(*(order.rows(unit) for unit in range(first, first + n_units)), strict=True)
        return np.concatenate(numbers), np.concatenate(epochs)

    def shifts(self, epochs: np.ndarray, length: int) -> np.ndarray:
        """By how much each row's packed window is moved, which its epoch decides."""
        order = self.order(self.unit)
        shift = {epoch: order.shift(epoch, length) for epoch in np.unique(epochs).tolist()}
        return np.array([shift[epoch] for epoch in epochs.tolist()])

    def order(self, batch: int) -> Order:
        """That of the rows, in batches."""
        return Order(self.n_rows, batch, self.seed, self.layout)

    def rows_before(self, step: int) -> int:
        return self.unit * self.units_before(step)

    def epoch(self, step: int) -> float:
        """How many times the data were seen before `step`."""
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
        """The steps over which a batch grows."""
        return ceil(self.ramp * self.length_at(0))

    def for_epochs(self, epochs: float) -> "Plan":
        """The shortest plan that sees the data so often; its last batch is filled up from the next epoch."""

        def units(steps: int) -> int:
            return replace(self, steps=steps).units_before(steps)

        n_units = ceil(epochs * self.n_rows / self.unit)
        return replace(self, steps=bisect_left(range(n_units + 1), n_units, key=units))

    def for_hours(self, seconds: float, *, unit_seconds: float, step_seconds: float) -> "Plan":
        """The longest plan that takes no more time, of at least one step.

        Args:
            unit_seconds: seconds that a unit of rows takes.
            step_seconds: those that a step takes besides, however many rows it has.
        """

        def duration(steps: int) -> float:
            return replace(self, steps=steps).units_before(steps) * unit_seconds + steps * step_seconds

        return replace(self, steps=max(1, bisect_right(range(MAX_STEPS), seconds, key=duration) - 1))


def plan_of(spec: TrainingSpec, n_rows: int, *, batch: int, micro: int, layout: Layout | None = None) -> Plan:
    """The plan of a run whose steps take `batch` rows, `micro` at a time on each device; with a ramp, whole
    micro-batches of every device. `layout` is the order of rows, where it is no permutation of all.
    """
    plan = Plan(n_rows=n_rows, unit=batch, seed=spec.seed, layout=layout)
    if spec.batch_ramp is not None:
        unit = micro * spec.data_parallel_size
        plan = replace(plan, unit=unit, units=batch // unit, ramp=spec.batch_ramp)
    if spec.max_steps is not None:
        return replace(plan, steps=spec.max_steps)
    return plan if spec.max_epochs is None else plan.for_epochs(spec.max_epochs)


class RowSums:
    """Sums of a number that each row has, over all rows before a step: of their tokens, which padding is not.

    A function of the plan and the step: nothing is counted up from step to step, so a run that is resumed, or has more
    devices, knows the same number. What an epoch's rows sum up to, in their order, is kept from one step to the next.
    """

    def __init__(self, values: np.ndarray | int) -> None:
        """`values` (n_rows,), or the one number that all rows have."""
        self._values = values
        self._total = values if isinstance(values, int) else int(values.sum(dtype=np.int64))
        self._cached_sums: tuple[tuple[int, int, int], np.ndarray] | None = None  # an epoch, and its sums

    def before(self, plan: Plan, step: int) -> int:
        if isinstance(self._values, int):
            return plan.rows_before(step) * self._values
        epochs, rest = divmod(plan.rows_before(step), plan.n_rows)
        return epochs * self._total + (self._epoch_sum(plan, epochs, self._values, rest) if rest else 0)

    def _epoch_sum(self, plan: Plan, epoch: int, values: np.ndarray, rows: int) -> int:
        """Of the first `rows` rows of an epoch."""
        key = plan.n_rows, plan.seed, epoch
        if self._cached_sums is None or self._cached_sums[0] != key:
            numbers, _ = plan.order(plan.n_rows).rows(epoch)
            self._cached_sums = key, np.cumsum(values[numbers], dtype=np.int64)
        return int(self._cached_sums[1][rows - 1])


def floor_sum(n: int, a: int, m: int) -> int:
    """The sum of floor(a i / m) over i = 0 ... n - 1, by Euclid's steps: lattice points under a line."""
    total, b = 0, 0
    while n:
        total += n * (n - 1) // 2 * (a // m) + n * (b // m)
        a, b = a % m, b % m
        highest = a * n + b
        n, b, a, m = highest // m, highest % m, m, a
        if not a or not m:
            break
    return total
