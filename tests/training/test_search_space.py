"""Search spaces: parsing, bounds, corners and points, and proposals as a function of the results so far."""

import math
import sys
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.settings_yaml import parse_value
from tercet.training.sweep.grid import VariedKey
from tercet.training.sweep.proposals import Result, Sampler, propose
from tercet.training.sweep.space import Coordinates, Range, SearchSpace, format_number, read_key, search_key

LR, LAYERS = "training.optimizer.lr=0.001..0.1", "model.stack.n_layers=1..4"
CHOICES = "model.stack.placement=pre,post"


def space(*texts: str, **changes: Any) -> SearchSpace:
    return SearchSpace(tuple(map(read_key, texts)), changes)


@pytest.mark.parametrize(
    ("text", "low", "high", "log"),
    [
        ("0.001..0.1", 0.001, 0.1, True),
        ("0.1..0.5", 0.1, 0.5, False),
        ("log:0.1..0.5", 0.1, 0.5, True),
        ("1e-4..1e-2", 1e-4, 1e-2, True),
        ("1..4", 1, 4, False),
        ("1..16", 1, 16, True),
        ("-1..1", -1, 1, False),
        ("0..100", 0, 100, False),
        ("1..2.5", 1.0, 2.5, False),
        ("1...5", 1.0, 5.0, False),
    ],
)
def test_ranges_are_read(text: str, low: float, high: float, log: bool) -> None:
    key = read_key(f"a.b={text}")
    assert key == Range(key="a.b", low=low, high=high, log=log)
    assert isinstance(key, Range)
    assert type(key.low) is type(low)
    assert type(key.high) is type(high)


def test_other_values_are_choices() -> None:
    for text in ("a.b=1,2", "a.b=x..y", "a.b=../folder,..", "a.b=[1..2]", "a.b=log:x"):
        assert isinstance(read_key(text), VariedKey)
    assert search_key("a.b", [1, 2]) == VariedKey.of("a.b", [1, 2])
    assert search_key("a.b", "1..2") == read_key("a.b=1..2")


@given(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9), st.booleans(), st.integers(0, 2**32))
def test_draws_stay_within_the_bounds(low: float, high: float, log: bool, seed: int) -> None:
    if not low < high or (log and low <= 1e-9):
        return
    value = Range(key="a", low=low, high=high, log=log).draw(Random(seed))
    assert low <= value <= high
    assert parse_value(format_number(value), name="a") == value


@given(st.integers(-1000, 1000), st.integers(1, 1000), st.booleans(), st.integers(0, 2**32))
def test_whole_numbers_stay_whole(low: int, width: int, log: bool, seed: int) -> None:
    value = Range(key="a", low=low, high=low + width, log=log and low > 0).draw(Random(seed))
    assert isinstance(value, int)
    assert low <= value <= low + width


def test_a_logarithmic_range_draws_the_exponent_uniformly() -> None:
    rng = Random(0)
    draws = [Range(key="a", low=1e-4, high=1.0, log=True).draw(rng) for _ in range(2000)]
    assert [sum(10**-n <= draw < 10 ** (1 - n) for draw in draws) / 2000 for n in (4, 3, 2, 1)] == [
        pytest.approx(0.25, abs=0.04)
    ] * 4
    rng = Random(0)
    whole = [Range(key="a", low=1, high=4, log=False).draw(rng) for _ in range(2000)]
    assert [whole.count(value) / 2000 for value in (1, 2, 3, 4)] == [pytest.approx(0.25, abs=0.04)] * 4


def test_drawn_numbers_are_short() -> None:
    rng = Random(1)
    assert all(len(repr(Range(key="a", low=0.001, high=0.1, log=True).draw(rng))) <= 9 for _ in range(100))


def test_a_point_is_a_change_with_labels() -> None:
    point = space(CHOICES, LR, LAYERS, training={"max_steps": 9}).point((1, 0.003162, 3))
    assert point.label == "placement=post, lr=0.003162, n_layers=3"
    assert point.changes == {
        "model": {"stack": {"placement": "post", "n_layers": 3}},
        "training": {"max_steps": 9, "optimizer": {"lr": 0.003162}},
    }


def test_corners_contain_each_choice_and_both_bounds() -> None:
    few = space(CHOICES, LR).corners()
    assert few == [(0, 0.001), (0, 0.1), (1, 0.001), (1, 0.1)]
    many = space(*(f"a.key{n}=1..5" for n in range(8)), "a.choice=a,b,c").corners()
    assert many == [(*[1] * 8, 0), (*[5] * 8, 1), (*[5] * 8, 2)]


def test_sizes() -> None:
    assert space(CHOICES, LAYERS).size == len(list(space(CHOICES, LAYERS).points())) == 8
    assert space(CHOICES, LR).size is None
    assert list(space(CHOICES, LAYERS).points())[:2] == [(0, 1), (0, 2)]


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["a.b=2..1"], "low < high, got 2..1"),
        (["a.b=0..1e999"], "finite numbers"),
        (["a.b=log:0..1"], "positive bounds"),
        (["a.b=1"], "nothing to choose from"),
        (["a.b"], "expected key=value,value"),
        (["a.b=1..2", "a.b=3..4"], "given twice"),
        (["a.b=1..2", "a=3..4"], "one contains the other"),
        (["training.seed=1,2"], "seeds are not variants"),
        (["training.max_steps=10..20"], "all trials have the same length"),
        (["training={max_steps: 3},{max_steps: 4}"], "all trials have the same length"),
        (["data.tokenizer=bytes,characters"], "not comparable; use `tercet compare`"),
        (["task.masking.rate=0.1..0.4"], "not comparable"),
    ],
)
def test_errors(texts: list[str], words: str) -> None:
    with pytest.raises(UserError) as error:
        space(*texts).check()
    assert words in str(error.value)


def test_a_fixed_change_cannot_vary() -> None:
    with pytest.raises(UserError, match="both in --set and in --vary"):
        space(LR, training={"optimizer": {"lr": 0.1}}).check()


def search(searched: SearchSpace, count: int, sampler: Sampler, *, seed: int = 1) -> list[Result]:
    """Return the results of a search for the point nearest to a loss of 0; a rate above 0.05 fails."""
    results = list[Result]()
    for _ in range(count):
        coordinates = propose(searched, results, sampler=sampler, seed=seed)
        if coordinates is None:
            break
        results.append((coordinates, loss(coordinates)))
    return results


def loss(coordinates: Coordinates) -> float | None:
    *_, lr = coordinates
    return None if lr > 0.05 else abs(math.log(lr / 0.004)) + (coordinates[0] if len(coordinates) > 1 else 0)


@pytest.mark.parametrize("sampler", ["random", "tpe"])
def test_proposals_depend_on_the_seed_and_on_the_results_only(sampler: Sampler) -> None:
    pytest.importorskip("optuna") if sampler == "tpe" else None
    searched = space(CHOICES, LR)
    results = search(searched, 13, sampler)
    assert results == search(searched, 13, sampler)
    for number in (0, 5, 12):  # after a restart
        assert propose(searched, results[:number], sampler=sampler, seed=1) == results[number][0]
    assert results != search(searched, 13, sampler, seed=2)
    assert len({coordinates for coordinates, _ in results}) == 13


@pytest.mark.slow
def test_tpe_finds_better_settings_than_chance() -> None:
    pytest.importorskip("optuna")
    searched = space(CHOICES, LR)

    def later_losses(sampler: Sampler, seed: int) -> float:
        losses = [one for _, one in search(searched, 25, sampler, seed=seed)[15:] if one is not None]
        return sum(losses) / len(losses)

    assert sum(later_losses("tpe", seed) < later_losses("random", seed) for seed in (1, 2, 3)) == 3


@pytest.mark.parametrize("sampler", ["random", "tpe", "grid"])
def test_each_point_is_proposed_once(sampler: Sampler) -> None:
    pytest.importorskip("optuna") if sampler == "tpe" else None
    searched = space(CHOICES, "training.optimizer.lr=0.001,0.01,0.1")
    results = list[Result]()
    while (point := propose(searched, results, sampler=sampler, seed=1)) is not None:
        results.append((point, float(point[1])))
    assert sorted(point for point, _ in results) == list(searched.points())
    if sampler == "grid":
        assert [point for point, _ in results] == list(searched.points())


def test_a_grid_requires_lists() -> None:
    with pytest.raises(UserError, match="requires a list of values"):
        propose(space(LR), [], sampler="grid", seed=1)


def test_without_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"pip install 'tercet\[sweep\]', or pass --sampler random"):
        propose(space(LR), [], sampler="tpe", seed=1)
    assert propose(space(LR), [], sampler="random", seed=1) is not None
