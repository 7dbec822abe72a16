"""Rows with different settings sample as they would in separate batches, given the same uniform numbers."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tercet.config import UserError
from tercet.generation import Sampling, distribution
from tercet.generation.row_sampling import Filters, RowSettings, UniformNumbers, choose_rows
from tercet.generation.sampling import choose

V = 11
SETTINGS = st.builds(
    Sampling,
    temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 1.7, 900.0]),
    top_k=st.none() | st.integers(1, V + 2),
    top_p=st.none() | st.sampled_from([1e-9, 0.3, 0.5, 0.9, 1.0]),
    min_p=st.none() | st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([0.5, 1.0, 1.3]),
    seed=st.integers(0, 99),
)
LOGITS = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=V, max_size=V)  # half steps give many ties
ROW = st.tuples(LOGITS, SETTINGS, st.sets(st.integers(0, V - 1), min_size=1, max_size=4))


def make_uniform(seed: int) -> UniformNumbers:
    return UniformNumbers(torch.Generator().manual_seed(seed))


def choose_by_rows(
    logits: Tensor, samplings: list[Sampling], texts: list[list[int]], forbidden: set[int]
) -> tuple[list[int], list[bool]]:
    seen_mask, forbidden_mask = torch.zeros(len(logits), V, dtype=torch.bool), torch.zeros(V, dtype=torch.bool)
    for row, text in enumerate(texts):
        seen_mask[row, text] = True
    forbidden_mask[list(forbidden)] = True
    uniform = torch.cat([make_uniform(sampling.seed).peek(1) for sampling in samplings])
    settings = RowSettings(RowSettings.encode(samplings, V))
    filters = Filters.of(samplings, V, forbids=bool(forbidden))
    ids, has_diverged = choose_rows(
        logits, settings, filters, uniform=uniform, seen_mask=seen_mask, forbidden=forbidden_mask
    )
    return ids.tolist(), has_diverged.tolist()


def choose_separately(logits: Tensor, sampling: Sampling, text: list[int], forbidden: set[int]) -> tuple[int, bool]:
    drawable = logits.index_fill(0, torch.tensor(sorted(forbidden), dtype=torch.long), -torch.inf)[None]
    try:
        generator = torch.Generator().manual_seed(sampling.seed)
        return int(choose(drawable, [text], sampling, [generator])), False
    except UserError:
        return -1, True


@given(rows=st.lists(ROW, min_size=1, max_size=5), forbidden=st.sets(st.integers(0, V - 1), max_size=3))
def test_rows_with_different_settings_match_separate_sampling(rows: list, forbidden: set[int]) -> None:
    logits = torch.tensor([row[0] for row in rows])
    samplings, texts = [row[1] for row in rows], [sorted(row[2]) for row in rows]
    ids, has_diverged = choose_by_rows(logits, samplings, texts, forbidden)
    for number, (sampling, text) in enumerate(zip(samplings, texts, strict=True)):
        assert (ids[number], has_diverged[number]) == choose_separately(logits[number], sampling, text, forbidden)


@given(rows=st.lists(ROW, min_size=1, max_size=4), seed=st.integers(0, 99))
def test_uniform_numbers_select_tokens_by_their_share(rows: list, seed: int) -> None:
    """Over a grid of uniform numbers, only possible tokens are chosen, each in its share."""
    logits, samplings = torch.tensor([row[0] for row in rows]), [row[1] for row in rows]
    seen_mask = torch.zeros(len(rows), V, dtype=torch.bool)
    settings = RowSettings(RowSettings.encode(samplings, V))
    for share in (0.0, 0.37, 1 - 2**-53):
        uniform = torch.full((len(rows),), share, dtype=torch.float64)
        ids, _ = choose_rows(
            logits,
            settings,
            Filters.of(samplings, V),
            uniform=uniform,
            seen_mask=seen_mask,
            forbidden=torch.zeros(V).bool(),
        )
        for number, sampling in enumerate(samplings):
            probabilities = distribution(logits[number : number + 1], sampling)[0].double()
            sums = probabilities.cumsum(0)
            assert probabilities[ids[number]] > 0
            assert sums[ids[number]] > share * sums[-1] >= sums[ids[number]] - probabilities[ids[number]]


def test_diverged_row_is_reported_and_others_continue() -> None:
    logits = torch.zeros(4, V)
    logits[1, 3], logits[2, 3] = torch.nan, torch.inf
    logits[3, 5] = 9.0
    for temperature in (0.0, 1.0):
        samplings = [Sampling(temperature=temperature)] * 3 + [Sampling(temperature=0)]
        ids, has_diverged = choose_by_rows(logits, samplings, [[]] * 4, set())
        assert has_diverged == [False, True, True, False]
        assert ids[3] == 5
        assert all(0 <= token < V for token in ids)  # an invalid id would be an error on the device


def test_unused_filters_are_skipped() -> None:
    neutral = Sampling(temperature=0, top_k=V, top_p=1.0, min_p=0.0)
    assert Filters.of([neutral], V) == Filters()
    samplings = [neutral, Sampling(top_k=5, repetition_penalty=1.1)]
    assert Filters.of(samplings, V, forbids=True) == Filters(draws=True, penalty=True, top_k=8, forbids=True)
    assert Filters.of([Sampling(top_k=9)], V).top_k == V


def test_numbers_drawn_in_advance_match_single_draws() -> None:
    numbers, generator = make_uniform(5), torch.Generator().manual_seed(5)
    expected = [torch.rand((), dtype=torch.float64, generator=generator).item() for _ in range(60)]
    assert numbers.peek(3).tolist() == expected[:3]
    numbers.skip(2)
    assert numbers.peek(40).tolist() == expected[2:42]
    assert numbers.peek(1).tolist() == expected[2:3]
    numbers.skip(50)
    assert numbers.peek(8).tolist() != expected[52:]  # numbers that were not drawn yet cannot be skipped
