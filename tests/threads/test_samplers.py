"""Penalties, filters and log-probabilities equal those of transformers."""

from typing import Any

import pytest
import torch
from torch import Tensor

from tercet.generation import Sampling, distribution
from tercet.generation.filters import penalize_repetition

V = 17
CASES: list[dict[str, Any]] = [
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.8},
    {"min_p": 0.1},
    {"temperature": 1.6, "top_p": 0.7},
    {"top_k": 9, "top_p": 0.75},
    {"temperature": 2.2, "min_p": 0.2},
    {"temperature": 1.4, "top_k": 9, "top_p": 0.85, "min_p": 0.15},
]


def logits_of(rows: int) -> Tensor:
    return 2 * torch.randn(rows, V, generator=torch.Generator().manual_seed(3))


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=str)
def test_filters_are_the_warpers_of_transformers(case: dict[str, Any]) -> None:
    from transformers.generation import logits_process as theirs

    warpers: dict[str, Any] = {
        "temperature": theirs.TemperatureLogitsWarper,
        "top_k": theirs.TopKLogitsWarper,
        "top_p": theirs.TopPLogitsWarper,
        "min_p": theirs.MinPLogitsWarper,
    }
    logits = logits_of(200)
    expected, ids = logits, torch.zeros(200, 1, dtype=torch.long)
    for name, warper in warpers.items():  # transformers applies them in this order
        if name in case:
            expected = warper(case[name])(ids, expected)
    assert torch.allclose(distribution(logits, Sampling(**case)), expected.softmax(-1), atol=1e-6)


@pytest.mark.slow
def test_a_penalty_is_that_of_transformers_prompt_included() -> None:
    from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

    prompts: Any = torch.tensor([[0, 3, 4], [5, 5, 16], [1, 2, 0]])
    seen = torch.zeros(3, V, dtype=torch.bool).scatter_(1, prompts, True)
    logits = logits_of(3)
    expected = RepetitionPenaltyLogitsProcessor(1.3)(prompts, logits.clone())
    assert torch.allclose(penalize_repetition(logits, seen, 1.3), expected)
    assert not torch.allclose(logits, expected)
