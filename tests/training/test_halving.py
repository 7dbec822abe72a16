"""Successive halving with a stub objective: the rungs, the trials that are promoted, and the number of steps."""

from hypothesis import given
from hypothesis import strategies as st

from tercet.training.sweep.halving import advance_best, planned_steps, rung_shares, rung_step


def test_rungs_are_at_validations_near_a_ninth_and_a_third() -> None:
    assert [rung_step(share, 900, 10) for share in rung_shares(900, 10)] == [100, 300, 900]
    assert [rung_step(share, 2000, 250) for share in rung_shares(2000, 250)] == [250, 750, 2000]
    assert rung_shares(10, 4) == (0.4, 1.0)  # the ninth and the third are both nearest to the first validation
    assert rung_shares(10, 10) == rung_shares(10, 250) == (1.0,)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_rungs_rise_and_end_with_the_run(steps: int, interval: int) -> None:
    rungs = [rung_step(share, steps, interval) for share in rung_shares(steps, interval)]
    assert rungs == sorted(set(rungs))
    assert rungs[-1] == steps
    assert all(rung % interval == 0 for rung in rungs[:-1])


def test_the_best_third_is_promoted() -> None:
    first = {number: abs(number - 6.2) for number in range(1, 10)}  # best first: 6, 7, 5, 8, 4, ...
    asked = list[int]()

    def advance(number: int) -> float:
        asked.append(number)
        return {6: 3.0, 7: 1.0, 5: 2.0}[number]

    second = advance_best(first, advance)
    assert asked == [6, 7, 5]
    assert second == {6: 3.0, 7: 1.0, 5: 2.0}
    assert advance_best(second, lambda number: 0.5) == {7: 0.5}


def test_equal_losses_promote_the_earlier_trial() -> None:
    assert advance_best({3: 1.0, 1: 1.0, 2: 1.0}, lambda number: 0.0) == {1: 0.0}


def test_a_failed_trial_makes_room_for_the_next_best() -> None:
    losses = {number: float(number) for number in range(1, 7)}
    assert advance_best(losses, lambda number: None if number in (1, 3) else 0.0) == {2: 0.0, 4: 0.0}
    assert advance_best(losses, lambda number: None) == {}
    assert advance_best({}, lambda number: 0.0) == {}


@given(st.integers(1, 60), st.integers(1, 200), st.integers(1, 50))
def test_planned_steps_are_those_that_are_trained(trials: int, steps: int, interval: int) -> None:
    rungs = tuple(rung_step(share, steps, interval) for share in rung_shares(steps, interval))
    trained = dict.fromkeys(range(trials), rungs[0])
    losses = {number: float(number) for number in trained}
    for rung in rungs[1:]:

        def advance(number: int, rung: int = rung) -> float:
            trained[number] = rung
            return float(number)

        losses = advance_best(losses, advance)
    assert planned_steps(trials, rungs) == sum(trained.values())
