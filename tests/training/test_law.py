"""The scaling law: against least squares, on texts whose law is known, and its limits."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.training.budget.law import (
    ALPHAS,
    BETAS,
    REPEATS,
    STARTS,
    Law,
    Point,
    Prior,
    effective_tokens,
    fit,
    prior_of,
)

SIZES = (1e5, 3e5, 1e6)
TOKENS = (2.5e5, 1e6, 4e6, 1.6e7)


def true_ratio(point: Point, coefficients: tuple[float, float, float], *, repeats: float = 8.0) -> float:
    """Return L / H by the formula of the law, with alpha 0.35 and beta 0.35, written out."""
    e, a, b = coefficients[0] * point.ngram, *coefficients[1:]
    passes = point.tokens / point.unique
    effective = point.tokens
    if passes > 1:
        effective = point.unique * (1 + repeats * (1 - np.exp(-(passes - 1) / repeats)))
    return e + a * (point.size / 1e6) ** -0.35 + b * (effective / 1e6) ** -0.35


def points_of(seed: int, *, noise: float = 0.003) -> tuple[list[Point], tuple[float, float, float]]:
    """Return the trainings of a random text at all sizes and lengths, and its coefficients."""
    generator = np.random.default_rng(seed)
    coefficients = (generator.uniform(0.5, 0.6), generator.uniform(0.02, 0.06), generator.uniform(0.2, 0.35))
    unique = float(10 ** generator.uniform(5, 7))
    ngram = generator.uniform(0.3, 0.8)
    points = [Point(size, tokens, unique, ngram) for size in SIZES for tokens in TOKENS]
    return [
        replace(point, ratio=true_ratio(point, coefficients) + generator.normal(0, noise)) for point in points
    ], coefficients


@pytest.fixture(scope="module")
def prior() -> Prior:
    return prior_of({f"text {seed}": points_of(seed)[0] for seed in range(8)})


def only(alpha: float, beta: float, repeats: float, start: float) -> int:
    """Return the place of exponents and constants in the grid."""
    return list(product(ALPHAS, BETAS, REPEATS, STARTS)).index((alpha, beta, repeats, start))


def test_many_exact_points_give_the_coefficients_of_least_squares(prior: Prior) -> None:
    points, _ = points_of(100, noise=0.0)
    law = fit(points * 20, prior)
    place = only(0.35, 0.35, 8.0, 0.0)
    rows = np.array(
        [
            [
                p.ngram,
                (p.size / 1e6) ** -0.35,
                float(effective_tokens(np.array([p.tokens / 1e6]), np.array([p.unique / 1e6]), 8.0)[0]) ** -0.35,
                max(0.0, np.log2(p.tokens / p.unique * max(1.0, p.size / p.unique) ** 0.5 / 4)),
            ]
            for p in points
        ]
    )
    expected = np.linalg.lstsq(rows, np.array([p.ratio for p in points]), rcond=None)[0]
    assert law.means[place] == pytest.approx([*expected], abs=2e-3)
    assert law.weights.argmax() == place  # the exponents with which the points were made


def test_without_points_the_law_is_that_of_other_texts(prior: Prior) -> None:
    law = fit([], prior)
    assert law.means == pytest.approx(prior.means)
    assert law.covariances == pytest.approx(prior.covariances, rel=1e-6)


def test_intervals_contain_the_losses_of_unseen_texts_as_often_as_they_state(prior: Prior) -> None:
    inside, errors = 0, list[float]()
    for seed in range(200, 260):
        points, coefficients = points_of(seed)
        short = [point for point in points if point.tokens <= 1e6]
        law = fit(short, prior)
        unseen = replace(points[0], size=1e6, tokens=6.4e7)
        low, middle, high = np.quantile(law.draw(unseen), [0.05, 0.5, 0.95])
        truth = true_ratio(unseen, coefficients)
        inside += low <= truth <= high
        errors.append(abs(middle - truth) / truth)
    assert inside >= 51  # of 60, at 90 %: below that with a probability of 6 %
    assert np.median(errors) < 0.02


def test_points_narrow_the_interval(prior: Prior) -> None:
    points, _ = points_of(300)

    def width(law: Law) -> float:
        draws = law.draw(replace(points[0], size=1e6, tokens=6.4e7))
        return float(np.quantile(draws, 0.95) - np.quantile(draws, 0.05))

    assert width(fit(points, prior)) < width(fit(points[:2], prior)) < width(fit([], prior))


def test_equal_points_give_equal_forecasts(prior: Prior) -> None:
    points, _ = points_of(400)
    first, second = (fit(points, prior).draw(points[0]) for _ in range(2))
    assert np.array_equal(first, second)


@given(
    unique=st.floats(0.01, 100),
    shares=st.tuples(st.floats(0.01, 1000), st.floats(0.01, 1000)),
    repeats=st.floats(1, 64),
)
def test_a_repeated_token_is_worth_at_most_a_new_one(
    unique: float, shares: tuple[float, float], repeats: float
) -> None:
    tokens, text = np.array(sorted(shares)) * unique, np.full(2, unique)
    fewer, more = effective_tokens(tokens, text, repeats)
    assert fewer <= more * (1 + 1e-12)
    assert more <= tokens[1] * (1 + 1e-12)
    assert more <= unique * (1 + repeats) * (1 + 1e-12)
    if tokens[0] <= unique:
        assert fewer == tokens[0]
