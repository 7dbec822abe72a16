"""The rows of each step: in closed form, and in the same order for any growth of the batch."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.data import Order
from tercet.training import TrainingSpec
from tercet.training.recipe.task_specs import LanguageTaskSpec, TranslationTaskSpec
from tercet.training.tasks.plan import Plan, RowSums, floor_sum, plan_of

plans = st.builds(
    Plan,
    n_rows=st.integers(1, 37),
    unit=st.integers(1, 7),
    units=st.integers(1, 11),
    ramp=st.sampled_from([0.0, 0.1, 0.6, 1.0]),
    seed=st.just(3),
    steps=st.integers(1, 31),
)


@given(st.integers(0, 60), st.integers(0, 80), st.integers(1, 50))
def test_the_sum_of_floors(n: int, a: int, m: int) -> None:
    assert floor_sum(n, a, m) == sum(a * i // m for i in range(n))


@given(plans)
def test_no_row_is_skipped_or_repeated(plan: Plan) -> None:
    line = [plan.rows(step) for step in range(plan.steps)]
    numbers, epochs = (np.concatenate(parts) for parts in zip(*line, strict=True))
    expected, expected_epochs = Order(plan.n_rows, len(numbers), plan.seed).rows(0)
    np.testing.assert_array_equal(numbers, expected)
    np.testing.assert_array_equal(epochs, expected_epochs)
    row_totals = np.cumsum([0, *(len(rows) for rows, _ in line)])
    assert [plan.rows_before(step) for step in range(plan.steps + 1)] == row_totals.tolist()
    values, three = RowSums(squares := np.arange(plan.n_rows) ** 2), RowSums(3)
    for step in (0, plan.steps // 2, plan.steps, 0):
        assert values.sum_before(plan, step) == squares[numbers[: row_totals[step]]].sum()
        assert three.sum_before(plan, step) == 3 * row_totals[step]


@given(plans)
def test_a_ramp_is_a_line_from_one_unit_to_all(plan: Plan) -> None:
    counts = np.array([plan.units_of(step) for step in range(plan.steps)])
    growing = int(np.ceil(plan.ramp * plan.steps))
    assert (np.diff(counts) >= 0).all()
    assert (counts[growing:] == plan.units).all()
    line = 1 + (plan.units - 1) * np.arange(growing) / max(1, growing)
    assert (np.abs(counts[:growing] - line) < 1).all()
    if growing:
        assert counts[0] == 1


@given(plans, st.integers(1, 4))
def test_epochs_are_completed_within_one_batch(plan: Plan, epochs: int) -> None:
    plan = plan.for_epochs(epochs)
    assert plan.rows_before(plan.steps) >= epochs * plan.n_rows
    assert plan.rows_before(plan.steps - 1) < epochs * plan.n_rows


@given(plans, st.floats(0.1, 3.0), st.floats(0.0, 1.0), st.floats(0.0, 500.0))
def test_a_budget_is_kept_and_used_up(plan: Plan, unit_seconds: float, step_seconds: float, seconds: float) -> None:
    plan = plan.for_hours(seconds, unit_seconds=unit_seconds, step_seconds=step_seconds)

    def duration(steps: int) -> float:
        other_plan = Plan(n_rows=plan.n_rows, unit=plan.unit, units=plan.units, ramp=plan.ramp, steps=steps)
        return other_plan.units_before(steps) * unit_seconds + steps * step_seconds

    assert plan.steps == 1 or duration(plan.steps) <= seconds
    assert duration(plan.steps + 1) > seconds


def test_without_a_ramp_a_unit_is_the_batch() -> None:
    plan = plan_of(TrainingSpec(max_steps=5), 20, batch=6, micro=4)
    assert (plan.unit, plan.units, plan.steps) == (6, 1, 5)


def test_a_ramp_grows_by_micro_batches_on_every_device() -> None:
    spec = TrainingSpec(max_steps=5, batch_ramp=0.5, devices=2)
    plan = plan_of(spec, 100, batch=24, micro=4)
    assert (plan.unit, plan.units) == (8, 3)
    assert [len(plan.rows(step)[0]) for step in range(5)] == [8, 8, 16, 24, 24]


def test_ramp_without_whole_steps_is_rejected() -> None:
    for micro in (None, 5, 24):
        with pytest.raises(ValueError, match=r"set task\.micro_batch_size to a divisor of the device's share \(24\)"):
            LanguageTaskSpec(batch_size=24, micro_batch_size=micro).check_batches(1, ramp=True)
    with pytest.raises(ValueError, match=r"set task\.micro_batch_tokens to a divisor of the device's share \(24\)"):
        TranslationTaskSpec(batch_tokens=48).check_batches(2, ramp=True)
    with pytest.raises(ValueError, match=r"batch_ramp=0\.0 must be above 0 and at most 1, or null"):
        TrainingSpec(max_steps=5, batch_ramp=0.0)
