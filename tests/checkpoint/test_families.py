"""Each family of `transformers` that Tercet reads: its folder opens as it is, and what is written says the same."""

from pathlib import Path

import pytest
from families_of_others import FAMILIES, distance
from folders_of_others import seeds


@pytest.mark.parametrize("seed", seeds(20, fast=3))
@pytest.mark.parametrize("name", FAMILIES)
def test_logits_and_greedy_tokens_are_the_same_in_and_out(name: str, seed: int, tmp_path: Path) -> None:
    apart = distance(FAMILIES[name], seed, tmp_path)
    assert apart.read < 1e-4
    assert apart.written < 1e-4
    assert apart.same_tokens is not False
