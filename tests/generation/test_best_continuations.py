"""The best continuations match a full sort."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import tercet.generation.best_continuations as module
from tercet.generation.best_continuations import best_continuations


def sort_all(logprobs: Tensor, totals: Tensor, count: int) -> list[list[tuple[float, int, int]]]:
    _, _, v = logprobs.shape
    sums = (logprobs + totals[..., None]).flatten(1).tolist()
    rows = []
    for row in sums:
        order = sorted(range(len(row)), key=lambda place: (-row[place], place))[:count]
        rows.append([(row[place], place // v, place % v) for place in order])
    return rows


def to_lists(tensors: tuple[Tensor, Tensor, Tensor]) -> list[list[tuple[float, int, int]]]:
    return [list(zip(*row, strict=True)) for row in zip(*(tensor.tolist() for tensor in tensors), strict=True)]


def possible(rows: list[list[tuple[float, int, int]]]) -> list[list[tuple[float, int, int]]]:
    """Remove impossible continuations, whose order is undefined."""
    return [[entry for entry in row if entry[0] > -math.inf] for row in rows]


@pytest.mark.slow
@settings(deadline=None, max_examples=150)
@given(
    n=st.integers(1, 3),
    h=st.integers(1, 5),
    v=st.sampled_from([1, 2, 3, 7, 63, 64, 65, 127, 128, 130, 200, 331]),
    count=st.integers(1, 17),
    levels=st.sampled_from([1, 2, 5, 1000]),
    removed_share=st.sampled_from([0.0, 0.3, 0.95]),
    seed=st.integers(0, 999),
)
def test_best_match_a_full_sort_with_ties_by_hypothesis_and_id(
    n: int, h: int, v: int, count: int, levels: int, removed_share: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    logprobs = -torch.randint(levels, (n, h, v), generator=generator).float() / 7
    logprobs[torch.rand(n, h, v, generator=generator) < removed_share] = -math.inf
    totals = -torch.randint(levels, (n, h), generator=generator).float() / 3
    totals[torch.rand(n, h, generator=generator) < removed_share] = -math.inf
    best = to_lists(best_continuations(logprobs, totals, count))
    assert all(len(row) == min(count, h * v) for row in best)
    assert all(0 <= parent < h and 0 <= token < v for row in best for _, parent, token in row)
    assert possible(best) == possible(sort_all(logprobs, totals, count))


def test_zero_and_minus_zero_are_equal() -> None:
    logprobs = torch.tensor([[[-0.0, 0.0, -0.0]]])
    _, _, ids = best_continuations(logprobs, torch.zeros(1, 1), 3)
    assert ids.tolist() == [[0, 1, 2]]


@pytest.mark.parametrize("place", [0, 70, 199])
def test_nan_is_not_hidden_and_stays_in_its_set(place: int) -> None:
    logprobs = torch.rand(3, 2, 200).log_softmax(-1)
    logprobs[1, 1, place] = -math.nan
    values, _, _ = best_continuations(logprobs, torch.zeros(3, 2), 4)
    assert values.isnan().all(-1).tolist() == [False, True, False]


def test_missing_chunk_would_be_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    logprobs, totals = torch.randn(40, 3, 200), torch.zeros(40, 3)
    assert to_lists(best_continuations(logprobs, totals, 5)) == sort_all(logprobs, totals, 5)
    first, left_out = module._top_indices, iter([1, 0])
    monkeypatch.setattr(module, "_top_indices", lambda numbers, count: first(numbers, count - next(left_out)))
    assert to_lists(best_continuations(logprobs, totals, 5)) != sort_all(logprobs, totals, 5)
