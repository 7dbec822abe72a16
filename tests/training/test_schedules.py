"""Learning-rate schedules: positive at the first step, the full rate after the warm-up, and the documented end."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.training.optim.schedules import (
    WSD,
    Constant,
    Cosine,
    InverseSquareRoot,
    LinearDecay,
    Noam,
    Schedule,
    rate_factor,
)

SCHEDULES = [Constant(), LinearDecay(final=0.1), Cosine(final=0.1), WSD(cooldown=0.6), WSD(cooldown=1.0, final=0.2)]
shares = st.floats(0.0, 1.0)
schedules = st.one_of(
    st.just(Constant()),
    st.builds(LinearDecay, final=shares),
    st.builds(Cosine, final=shares),
    st.builds(WSD, cooldown=st.floats(0.01, 1.0), final=shares),
)


@given(schedules, st.integers(0, 300), st.integers(1, 300))
def test_a_factor_is_a_share(schedule: Schedule, warmup: int, total: int) -> None:
    factors = [rate_factor(schedule, step=step, warmup=warmup, total=total) for step in range(total)]
    assert all(0.0 <= factor <= 1.0 for factor in factors)
    assert total == 1 or factors[0] > 0.0


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_the_warm_up_is_a_straight_line_that_begins_above_zero(schedule: Schedule) -> None:
    factors = [rate_factor(schedule, step=step, warmup=5, total=50) for step in range(5)]
    assert [factor / factors[-1] for factor in factors] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[-1] == pytest.approx(1.0) or schedule == WSD(cooldown=1.0, final=0.2)  # decays from the first step


@pytest.mark.parametrize(
    "schedule", [LinearDecay(final=0.1), Cosine(final=0.1), LinearDecay(final=0.0), Cosine(final=0.3)]
)
@pytest.mark.parametrize("warmup", [0, 7])
def test_the_last_step_reaches_final(schedule: LinearDecay | Cosine, warmup: int) -> None:
    factors = [rate_factor(schedule, step=step, warmup=warmup, total=40) for step in range(warmup, 40)]
    assert factors[0] == pytest.approx(1.0)
    assert factors[-1] == pytest.approx(schedule.final)
    assert factors == sorted(factors, reverse=True)


Factor = Callable[[int, int, int], float]  # of step, warm-up and total, as in the table at the top of the source file

DOCUMENTED_VALUES: list[tuple[Schedule, Factor, Factor]] = [  # after the warm-up, and at the last step
    (Constant(), lambda s, W, S: 1.0, lambda s, W, S: 1.0),
    (LinearDecay(final=0.2), lambda s, W, S: 1 - 0.8 * (s - W) / (S - 1 - W), lambda s, W, S: 0.2),
    (LinearDecay(), lambda s, W, S: 1 - (s - W) / (S - 1 - W), lambda s, W, S: 0.0),
    (
        Cosine(final=0.3),
        lambda s, W, S: 0.3 + 0.7 * (1 + math.cos(math.pi * (s - W) / (S - 1 - W))) / 2,
        lambda s, W, S: 0.3,
    ),
    (
        WSD(cooldown=0.4, final=0.1),
        lambda s, W, S: 0.1 + 0.9 * min(1, (S - s) / (0.4 * S)),
        lambda s, W, S: 0.1 + 0.9 / (0.4 * S),
    ),
    (Noam(d_model=24), lambda s, W, S: (24 * (s + 1)) ** -0.5, lambda s, W, S: (24 * S) ** -0.5),
    (InverseSquareRoot(), lambda s, W, S: math.sqrt(W / (s + 1)), lambda s, W, S: math.sqrt(W / S)),
]


@pytest.mark.parametrize(("warmup", "total"), [(1, 3), (7, 41), (20, 50)])
@pytest.mark.parametrize(("schedule", "after", "last"), DOCUMENTED_VALUES, ids=lambda x: getattr(x, "kind", ""))
def test_beginning_height_and_end_are_the_documented_ones(
    schedule: Schedule, after: Factor, last: Factor, warmup: int, total: int
) -> None:
    factors = [rate_factor(schedule, step=step, warmup=warmup, total=total) for step in range(total)]
    height = factors[warmup - 1]
    assert factors[:warmup] == pytest.approx([height * (step + 1) / warmup for step in range(warmup)])
    assert height == max(factors)
    if not isinstance(schedule, Noam):
        assert height == pytest.approx(1)
    assert factors[warmup:] == pytest.approx([after(step, warmup, total) for step in range(warmup, total)])
    assert factors[-1] == pytest.approx(last(total - 1, warmup, total))


def test_cosine_and_linear_half_way() -> None:
    assert rate_factor(LinearDecay(final=0.2), step=20, warmup=0, total=41) == pytest.approx(0.6)
    assert rate_factor(Cosine(final=0.2), step=20, warmup=0, total=41) == pytest.approx(0.6)
    assert rate_factor(Cosine(final=0.0), step=10, warmup=0, total=41) == pytest.approx(0.8535534)


def test_wsd_is_level_and_then_a_line() -> None:
    factors = [rate_factor(WSD(cooldown=0.4), step=step, warmup=0, total=10) for step in range(10)]
    assert factors == pytest.approx([1, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25])


def test_noam_is_the_papers_formula() -> None:
    for step in (1, 2, 399, 400, 401, 5000):
        paper = 512**-0.5 * min(step**-0.5, step * 400**-1.5)
        assert rate_factor(Noam(d_model=512), step=step - 1, warmup=400, total=5000) == pytest.approx(paper)


@pytest.mark.slow
@given(st.integers(1, 300), st.integers(1, 600), st.sampled_from([24, 512]))
def test_the_inverse_square_root_is_noams_shape_with_a_peak_of_one(warmup: int, total: int, d_model: int) -> None:
    to_noam = (d_model * warmup) ** -0.5
    for step in range(total):
        factor = rate_factor(InverseSquareRoot(), step=step, warmup=warmup, total=total)
        noam = rate_factor(Noam(d_model=d_model), step=step, warmup=warmup, total=total)
        assert factor * to_noam == pytest.approx(noam)
        assert 0.0 < factor <= 1.0


def test_the_inverse_square_root_rises_to_one_and_halves_at_four_times_the_warm_up() -> None:
    factors = [rate_factor(InverseSquareRoot(), step=step, warmup=5, total=80) for step in range(80)]
    assert factors[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert factors[19] == pytest.approx(0.5)
    assert factors[79] == pytest.approx(0.25)
    assert factors[4:] == sorted(factors[4:], reverse=True)


def test_a_cooldown_is_a_share() -> None:
    with pytest.raises(ValueError, match=r"cooldown=0\.0 must be above 0 and at most 1"):
        WSD(cooldown=0.0)
