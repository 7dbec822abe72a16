import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tercet.generation.sampling as sampling_module
from tercet.config import UserError, parse, to_plain
from tercet.generation import Sampling, distribution, draw


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def by_hand(logits: list[float], sampling: Sampling, seen_ids: set[int]) -> list[float]:
    """Compute the documented distribution without tensors."""

    def softmax(row: dict[int, float]) -> dict[int, float]:
        best = max(row.values())
        weights = {id: math.exp(logit - best) for id, logit in row.items()}
        return {id: weight / sum(weights.values()) for id, weight in weights.items()}

    penalty = sampling.repetition_penalty
    row = {id: (x / penalty if x > 0 else x * penalty) if id in seen_ids else x for id, x in enumerate(logits)}
    order = sorted(row, key=lambda id: (-row[id], id))
    if sampling.temperature == 0:
        return [float(id == order[0]) for id in row]
    row = {id: row[id] / sampling.temperature for id in order}
    if sampling.top_k is not None:
        row = {id: row[id] for id in order[: sampling.top_k]}
    if sampling.top_p is not None:
        left, probabilities = {}, softmax(row)
        for id in row:
            left[id] = row[id]
            if sum(probabilities[token] for token in left) >= sampling.top_p:
                break
        row = left
    if sampling.min_p is not None:
        probabilities = softmax(row)
        row = {id: x for id, x in row.items() if probabilities[id] >= sampling.min_p * max(probabilities.values())}
    return [softmax(row).get(id, 0.0) for id in range(len(logits))]


CASES = [
    {},
    {"temperature": 0.7},
    {"temperature": 1.9},
    {"top_k": 5},
    {"top_p": 0.83},
    {"min_p": 0.11},
    {"temperature": 0.8, "top_k": 7},
    {"temperature": 1.6, "top_p": 0.7},
    {"temperature": 2.2, "min_p": 0.2},
    {"top_k": 9, "top_p": 0.75},
    {"temperature": 1.4, "top_k": 9, "top_p": 0.85, "min_p": 0.15},
    {"temperature": 1.3, "top_k": 11, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.5},
]


def example(case: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the probabilities for logits with ties, (1, V), by these settings and by hand."""
    sampling, seen_ids = Sampling(**case), [0, 3, 4]
    logits = (1.5 * torch.randn(1, 13, generator=generator(5))).round(decimals=1)
    seen_mask = torch.zeros(1, 13, dtype=torch.bool)
    seen_mask[0, seen_ids] = True
    expected = torch.tensor([by_hand(logits[0].tolist(), sampling, set(seen_ids))], dtype=torch.float64)
    return distribution(logits, sampling, seen_mask), expected


@pytest.mark.parametrize("case", CASES, ids=str)
def test_distribution_matches_the_documentation(case: dict[str, Any]) -> None:
    probabilities, expected = example(case)
    torch.testing.assert_close(probabilities.double(), expected, atol=1e-6, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("case", [CASES[0], CASES[-1]], ids=str)
def test_samples_follow_their_distribution(case: dict[str, Any]) -> None:
    n_draws = 100_000
    probabilities, expected = example(case)
    ids = draw(probabilities.expand(n_draws, -1), [generator(17)] * n_draws)
    counts = ids.bincount(minlength=13).double()
    possible = expected[0] > 0
    assert counts[~possible].sum() == 0
    assert chi_square_p(counts[possible], n_draws * expected[0, possible]) > 1e-3


def chi_square_p(counts: Tensor, expected: Tensor) -> float:
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = torch.tensor(len(counts) - 1, dtype=torch.float64)
    return torch.special.gammaincc(freedom / 2, statistic / 2).item() if freedom > 0 else 1.0


def test_chi_square_test_detects_a_slight_bias() -> None:
    counts = torch.tensor([50_900.0, 49_100.0])
    assert chi_square_p(counts, torch.tensor([50_000.0, 50_000.0])) < 1e-3
    assert chi_square_p(torch.tensor([50_100.0, 49_900.0]), torch.tensor([50_000.0, 50_000.0])) > 0.1


def test_order_of_filters_matters_and_is_documented() -> None:
    """Swapping any two adjacent filters changes the result, so this table fixes the order."""
    logits = torch.tensor([[0.4, 0.3, 0.2, 0.1]]).log()

    def ids(**case: Any) -> list[int]:
        return distribution(logits, Sampling(**case)).nonzero()[:, 1].tolist()

    assert ids(temperature=3.0, top_p=0.69) == [0, 1, 2]  # at temperature 1: 0, 1
    assert ids(top_k=2, top_p=0.55) == [0]  # of 4/7 and 3/7; without top-k first: 0, 1
    assert ids(top_p=0.75, min_p=0.3) == [0, 1, 2]  # 0.4 + 0.3 of all is below 0.75; with min-p first: 0, 1
    penalized = distribution(logits, Sampling(temperature=0, repetition_penalty=2.0), logits == logits.max())
    assert penalized.argmax() == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_probabilities_are_float32_for_any_model_dtype(dtype: torch.dtype) -> None:
    probabilities = distribution(torch.randn(2, 7).to(dtype), Sampling(top_p=0.9))
    assert probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities.sum(-1), torch.ones(2))


weights = st.lists(st.sampled_from([0.0, 0.0, 1e-30, 1e-7, 0.3, 1.0]), min_size=1, max_size=40)


@given(weights=weights, seed=st.integers(0, 99))
def test_tokens_without_probability_are_never_sampled(weights: list[float], seed: int) -> None:
    row = torch.tensor([weights])
    if row.sum() == 0:
        with pytest.raises(UserError):
            draw(row, [generator(seed)])
        return
    ids = draw(row.expand(50, -1), [generator(seed)] * 50)
    assert (row[0, ids] > 0).all()


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_ends_of_the_unit_interval_give_possible_ids(uniform: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "rand", lambda *_, **__: torch.tensor(uniform, dtype=torch.float64))
    row = torch.tensor([[0.0, 0.3, 0.0, 0.3, 1 / 3, 0.0, 0.0]])
    for scale in (1.0, 0.1, 3.0, 1 + 2**-23):
        assert draw(row * scale, [generator(0)]).item() in (1, 3, 4)


@pytest.mark.parametrize("size", [1, 5, 63, 64, 65, 127, 128, 200])
def test_first_maximum_is_the_first_of_equals(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampling_module, "MANY_SCORES", 0)
    generator = torch.Generator().manual_seed(size)
    scores = torch.randint(4, (200, size), generator=generator).float()  # many equal scores
    scores[::7, -1] = torch.inf
    scores[::11, size // 2] = torch.nan
    values, ids = sampling_module.first_maximum(scores)
    assert torch.equal(ids, scores.argmax(-1))
    torch.testing.assert_close(values, scores.amax(-1), rtol=0, atol=0, equal_nan=True)


def test_row_samples_the_same_in_any_slot() -> None:
    probabilities = torch.rand(5, 11, generator=generator(1)).softmax(-1)
    separate = [
        [draw(probabilities[[row]], [g]).item() for _ in range(9)] for row in range(5) for g in [generator(row)]
    ]
    order = [3, 0, 4, 1, 2]
    generators = [generator(row) for row in order]
    batched = [draw(probabilities[order], generators).tolist() for _ in range(9)]
    for slot, row in enumerate(order):
        assert [step[slot] for step in batched] == separate[row]


def test_sampling_does_not_change_the_global_generator() -> None:
    before = torch.get_rng_state()
    draw(torch.ones(3, 4), [generator(2)] * 3)
    assert torch.equal(before, torch.get_rng_state())


def test_diverged_model_is_reported() -> None:
    logits = torch.full((1, 4), torch.nan)
    for temperature in (0.0, 1.0):
        with pytest.raises(UserError, match="diverged"):
            draw(distribution(logits, Sampling(temperature=temperature)), [generator(0)])


def test_number_of_generators_must_match_rows() -> None:
    with pytest.raises(ValueError, match=r"expected 3 generators.*got 2"):
        draw(torch.ones(3, 4), [generator(0)] * 2)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"max_new_tokens": -1}, "max_new_tokens=-1 must be at least 0"),
        ({"temperature": -0.5}, "temperature=-0.5 must be at least 0"),
        ({"temperature": math.nan}, "temperature=nan"),
        ({"temperature": math.inf}, "temperature=inf"),
        ({"top_k": 0}, "top_k=0 must be at least 1 .*, or null"),
        ({"top_p": 0.0}, "top_p=0.0 must be above 0"),
        ({"top_p": 1.2}, "top_p=1.2 .* at most 1"),
        ({"min_p": -0.1}, "min_p=-0.1 must be at least 0 and at most 1"),
        ({"min_p": 1.1}, "min_p=1.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty=0.0 must be at least 0.01"),
        ({"seed": -1}, "seed=-1"),
        ({"stop": "END"}, "stop='END' must be a tuple"),
        ({"stop": ("a", "")}, "strings that are not empty"),
    ],
)
def test_impossible_settings_are_rejected_with_number_and_remedy(case: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Sampling(**case)


def test_settings_survive_a_file() -> None:
    sampling = parse(Sampling, {"top_k": 5, "stop": ["\n\n", "END"], "temperature": 1})
    assert sampling == Sampling(top_k=5, stop=("\n\n", "END"), temperature=1.0)
    assert parse(Sampling, to_plain(sampling)) == sampling
    with pytest.raises(UserError, match=r"top_p=2\.0"):
        parse(Sampling, {"top_p": 2.0})
