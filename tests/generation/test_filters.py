import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tercet.generation.filters import (
    apply_temperature,
    deterministic_cumsum,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_repetition,
)

INF = math.inf
rows = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=11)  # half steps give many ties


def kept_ids(logits: Tensor) -> list[list[int]]:
    return [row.isfinite().nonzero().flatten().tolist() for row in logits]


def log(*probabilities: float) -> Tensor:
    return torch.tensor([probabilities]).log()


@given(row=rows, k=st.integers(1, 14))
def test_top_k_keeps_exactly_k_and_the_lowest_ids_among_ties(row: list[float], k: int) -> None:
    expected = sorted(sorted(range(len(row)), key=lambda id: (-row[id], id))[:k])
    assert kept_ids(keep_top_k(torch.tensor([row]), k)) == [expected]


@given(row=rows, p=st.floats(1e-9, 1))
def test_top_p_keeps_the_fewest_tokens_that_reach_p(row: list[float], p: float) -> None:
    logits = torch.tensor([row])
    ids = kept_ids(keep_top_p(logits, p))[0]
    probabilities = logits.double().softmax(-1)[0]
    order = sorted(range(len(row)), key=lambda id: (-row[id], id))
    assert sorted(order[: len(ids)]) == ids  # the most likely tokens
    assert probabilities[order[: len(ids)]].sum() >= p - 1e-5  # together they reach p
    assert len(ids) == 1 or probabilities[order[: len(ids) - 1]].sum() < p + 1e-5  # one fewer would not


@given(row=rows, p=st.floats(0, 1))
def test_min_p_keeps_tokens_near_the_best(row: list[float], p: float) -> None:
    best = max(row)
    expected = [id for id, logit in enumerate(row) if math.exp(logit - best) >= p * (1 - 1e-6)]
    assert kept_ids(keep_min_p(torch.tensor([row]), p)) == [expected]


def test_top_p_keeps_the_token_that_crosses_p_and_stops_when_p_is_reached() -> None:
    logits = log(0.5, 0.3, 0.15, 0.05)
    assert kept_ids(keep_top_p(logits, 0.6)) == [[0, 1]]
    assert kept_ids(keep_top_p(logits, 0.8)) == [[0, 1]]  # 0.5 + 0.3, despite rounding in float32
    assert kept_ids(keep_top_p(logits, 0.81)) == [[0, 1, 2]]
    assert kept_ids(keep_top_p(logits, 1e-60)) == [[0]]


def test_top_p_of_one_keeps_a_tail_that_rounds_away() -> None:
    logits = torch.tensor([[20.0, *[0.0] * 50]])
    assert torch.equal(keep_top_p(logits, 1.0), logits)


def test_filters_apply_to_each_row_separately() -> None:
    logits = torch.cat([log(0.1, 0.2, 0.7), log(0.6, 0.3, 0.1)])
    assert kept_ids(keep_top_k(logits, 1)) == [[2], [0]]
    assert kept_ids(keep_top_p(logits, 0.8)) == [[1, 2], [0, 1]]
    assert kept_ids(keep_min_p(logits, 0.4)) == [[2], [0, 1]]
    assert kept_ids(apply_temperature(logits, 0)) == [[2], [0]]


def test_filters_ignore_removed_tokens() -> None:
    logits = torch.tensor([[-INF, 1.0, -INF, 1.0, 0.0]])
    assert kept_ids(keep_top_k(logits, 4)) == [[1, 3, 4]]
    assert kept_ids(keep_top_p(logits, 0.5)) == [[1, 3]]
    assert kept_ids(keep_min_p(logits, 1.0)) == [[1, 3]]
    assert kept_ids(apply_temperature(logits, 0.5)) == [[1, 3, 4]]


@pytest.mark.parametrize("temperature", [0, 1e-300, 1e-38, 1e-3])
def test_small_temperatures_approach_the_most_likely_token(temperature: float) -> None:
    logits = torch.tensor([[3.0, 900.0, -INF, 890.0]])
    assert torch.equal(apply_temperature(logits, temperature).softmax(-1), torch.tensor([[0.0, 1.0, 0.0, 0.0]]))


def test_temperature_zero_takes_the_lowest_id_of_ties() -> None:
    assert kept_ids(apply_temperature(torch.tensor([[1.0, 2.0, 2.0, 2.0]]), 0)) == [[1]]


def test_penalty_lowers_seen_tokens_on_both_sides_of_zero() -> None:
    logits = torch.tensor([[2.0, -2.0, 0.0, 2.0, -INF]])
    seen_mask = torch.tensor([[True, True, True, False, True]])
    assert penalize_repetition(logits, seen_mask, 4.0).tolist() == [[0.5, -8.0, 0.0, 2.0, -INF]]


@given(row=st.lists(st.integers(0, 99), min_size=1, max_size=40), width=st.sampled_from([1, 2, 16, 33]))
def test_deterministic_cumsum_is_cumsum(row: list[int], width: int) -> None:
    x = torch.tensor([(row * width)[:width], (row * width)[-width:]]).double()
    assert deterministic_cumsum(x).equal(x.cumsum(-1))
