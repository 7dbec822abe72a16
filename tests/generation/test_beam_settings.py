"""Settings and arguments of beam search: valid values are accepted, invalid values are rejected."""

import math
from typing import Any

import pytest
from toy_decoder import ToyDecoder, random_rule

from tercet.config import UserError, parse, to_plain
from tercet.generation import Beam, beam_search

EOS, MAX_LEN = 2, 11


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"prefixes": [[1], []]}, "prefix 2 of 2 has 0 tokens; expected 1 to max_len=11"),
        ({"prefixes": [[1], [1] * 12]}, "prefix 2 of 2 has 12 tokens"),
        ({"sources": [[1]]}, "expected 2 sources, one per prefix, got 1"),
        ({"sources": [[1], []]}, "source 2 of 2 has 0 tokens"),
        ({"max_new_tokens": [1]}, "expected 2 limits, one per prefix, got 1"),
        ({"max_new_tokens": -1}, "min_new_tokens must be 0 or more, got -1"),
        ({"forbidden": {EOS}}, "eos_id=2 must not be forbidden"),
    ],
)
def test_inconsistent_arguments_are_rejected(case: dict[str, Any], words: str) -> None:
    arguments = {"prefixes": [[1], [1]], "beam": Beam(), "eos_id": EOS, "max_new_tokens": 5, **case}
    with pytest.raises(ValueError, match=words):
        beam_search(ToyDecoder(random_rule(7, MAX_LEN), MAX_LEN), **arguments)


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ({"size": 0}, "size=0 must be at least 1"),
        ({"size": 3, "n_best": 4}, "n_best=4 must be at most size=3; try size=4"),
        ({"n_best": 0}, "n_best=0"),
        ({"length_penalty": "wu"}, "length_penalty='wu' must be average, gnmt or none"),
        ({"alpha": -0.5}, "alpha=-0.5 must be at least 0"),
        ({"alpha": math.nan}, "alpha=nan"),
        ({"coverage": -1.0}, "coverage=-1.0"),
        ({"max_ratio": 0.0, "max_extra": 0}, "allow no tokens"),
        ({"min_ratio": 3.0}, "min_ratio=3 and min_extra=0 must not be above max_ratio=2 and max_extra=10"),
    ],
)
def test_impossible_settings_are_rejected_with_number_and_remedy(case: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Beam(**case)


def test_search_has_a_descriptive_name() -> None:
    assert Beam().name == "beam 5, average length penalty 1"
    assert Beam(size=1, length_penalty="none").name == "greedy, no length penalty"
    assert Beam(size=4, length_penalty="gnmt", alpha=0.6, coverage=0.2).name == (
        "beam 4, gnmt length penalty 0.6, coverage 0.2"
    )


def test_limits_follow_the_source() -> None:
    beam = Beam(max_ratio=1.5, max_extra=2, min_ratio=0.5, min_extra=1)
    assert [beam.longest(n) for n in (1, 2, 7)] == [3, 5, 12]
    assert [beam.shortest(n) for n in (1, 2, 7)] == [1, 2, 4]
    assert Beam(max_ratio=0.1, max_extra=0).longest(3) == 1


def test_settings_survive_a_file() -> None:
    beam = parse(Beam, {"size": 4, "length_penalty": "gnmt", "alpha": 1})
    assert beam == Beam(size=4, length_penalty="gnmt", alpha=1.0)
    assert parse(Beam, to_plain(beam)) == beam
    with pytest.raises(UserError, match="n_best=9"):
        parse(Beam, {"n_best": 9})
