"""The effect of changes on a plan, a learning rate and a recipe, compared with brute-force definitions."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import tiny_recipe

from tercet.checkpoint.run_record import Change, RunRecord
from tercet.training.optim.schedules import WSD, Constant, Cosine, InverseSquareRoot, LinearDecay, Noam, rate_factor
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.run_folder.changes import (
    apply_changes,
    describe_length,
    equals_planned_run,
    list_changes,
    merge_changes,
    plan_with_changes,
)
from tercet.training.tasks.plan import Plan

RECORD = RunRecord(data="", tokenizer="", precision="fp32", matmul="highest", compile="never", steps=25)
SCHEDULES = [
    Constant(), Cosine(), LinearDecay(), WSD(cooldown=0.3), WSD(cooldown=1.0), Noam(), InverseSquareRoot(),
    Cosine(final=1.0),
]  # fmt: skip
lengths = st.lists(st.tuples(st.integers(0, 30), st.integers(1, 60)), min_size=1, max_size=4)
ramps = st.sampled_from([0.0, 0.2, 0.7, 1.0])


def extend_plan(plan: Plan, length_changes: list[tuple[int, int]]) -> Plan:
    for start, steps in length_changes:
        plan = plan.extended(steps, at=start)
    return plan


@given(lengths, ramps)
def test_a_length_holds_from_its_step_on(length_changes: list[tuple[int, int]], ramp: float) -> None:
    plan = extend_plan(Plan(n_rows=50, unit=2, units=4, ramp=ramp, seed=3, steps=25), length_changes)
    length_by_step = [25] * 70
    for start, steps in length_changes:  # the last change applies, also to a run that had to go back to an earlier step
        length_by_step[start:] = [steps] * (70 - start)
    assert [plan.length_at(step) for step in range(70)] == length_by_step
    assert plan.steps == length_changes[-1][1]


@pytest.mark.slow
@given(
    lengths.filter(lambda length_changes: length_changes[0][0] > 0 and length_changes == sorted(length_changes)), ramps
)
def test_no_row_is_skipped_or_repeated(length_changes: list[tuple[int, int]], ramp: float) -> None:
    original = Plan(n_rows=50, unit=2, units=4, ramp=ramp, seed=3, steps=25)
    plan = extend_plan(original, length_changes)
    for step in range(40):
        assert np.array_equal(plan.rows(step)[0], original.rows(step)[0])
        assert plan.rows_before(step + 1) == plan.rows_before(step) + len(plan.rows(step)[0])


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, int]]:
    """Draw changes of a run of 25 steps: the steps trained so far, and the new total number of steps."""
    length_changes, step, total = list[tuple[int, int]](), 0, 25
    for _ in range(draw(st.integers(1, 3))):
        step = draw(st.integers(step, total))
        total = draw(st.integers(step + 1, step + 40))
        length_changes.append((step, total))
    return length_changes


@given(st.sampled_from(SCHEDULES), st.integers(1, 12), histories(), ramps)
def test_change_is_exact_if_no_trained_step_would_differ(
    schedule: Any, warmup: int, length_changes: list[tuple[int, int]], ramp: float
) -> None:
    start = length_changes[-1][0]
    spec = TrainingSpec(max_steps=25, schedule=schedule, warmup_steps=warmup, batch_ramp=ramp or None)
    plan = extend_plan(Plan(n_rows=50, unit=2, units=9, ramp=ramp, steps=25), length_changes)
    straight = replace(plan, lengths=())

    def rate(step: int, of: Plan) -> float:
        return rate_factor(schedule, step=step, warmup=warmup, total=of.length_at(step))

    same_rates = all(rate(step, plan) == rate(step, straight) for step in range(plan.steps))
    same_rows = all(plan.units_of(step) == straight.units_of(step) for step in range(plan.steps))
    assert equals_planned_run(spec, plan, start) == (same_rates and same_rows)
    words = describe_length(spec, plan, start)
    assert ("as if the run had been planned" in words) == equals_planned_run(spec, plan, start)
    if not same_rows:
        assert f"; the batch still grows over {plan.ramp_steps:,} steps" in words


def test_changes_lead_from_one_recipe_to_the_other_and_are_written_and_read(tmp_path: Path) -> None:
    old = tiny_recipe(tmp_path, max_steps=None, max_epochs=2, patience=3)
    new = tiny_recipe(tmp_path, {"logging": {"tracker": "tensorboard"}}, max_steps=40, keep=7, patience=None)
    changes = list_changes(old, new, step=9, steps=40)
    assert {change.key: change.steps for change in changes} == {
        "training.max_steps": 40,
        "training.max_epochs": None,
        "training.keep": None,
        "training.patience": None,
        "logging.tracker": None,
    }
    assert apply_changes(old, replace(RECORD, changes=changes), tmp_path) == new
    assert tuple(Change.parse(change.to_plain()) for change in changes) == changes
    assert list_changes(old, old, step=9, steps=40) == ()


def test_repeated_command_reverts_no_change(tmp_path: Path) -> None:
    original = tiny_recipe(tmp_path, max_steps=None, max_epochs=2)
    requested = tiny_recipe(tmp_path, max_steps=40, keep=7)
    assert merge_changes(original, original, requested) == requested
    assert merge_changes(
        tiny_recipe(tmp_path, max_steps=None, max_epochs=2, patience=4), original, requested
    ) == tiny_recipe(tmp_path, max_steps=40, keep=7, patience=4)
    assert merge_changes(tiny_recipe(tmp_path, max_steps=None, max_epochs=3), original, requested) == tiny_recipe(
        tmp_path, max_steps=None, max_epochs=3, keep=7
    )


def test_plan_follows_the_changes_of_its_run() -> None:
    changed_record = replace(
        RECORD, steps=30, changes=(Change(step=8, key="training.max_steps", old=30, new=40, steps=40),)
    )
    plan = plan_with_changes(Plan(n_rows=10, unit=2, steps=77), changed_record)
    assert (plan.length_at(7), plan.length_at(8), plan.steps) == (30, 40, 40)
