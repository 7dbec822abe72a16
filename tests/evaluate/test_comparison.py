"""Two results are compared only if the comparison is meaningful."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from tercet.config import UserError
from tercet.evaluate import compare, paired_bootstrap, score_translations

DRAWS = np.random.default_rng(3)
REFERENCES = [" ".join(DRAWS.choice(list("abcdefgh"), 11)) for _ in range(40)]


def damaged(share: float, seed: int) -> list[str]:
    draws = np.random.default_rng(seed)
    return [" ".join(word for word in text.split() if draws.random() > share) for text in REFERENCES]


def result(texts: list[str]) -> dict[str, Any]:
    return asdict(score_translations(texts, REFERENCES))


def test_comparison_reports_the_difference() -> None:
    good, bad = result(damaged(0.05, 1)), result(damaged(0.3, 2))
    difference = compare(good, bad)
    assert difference.bleu == good["bleu"] - bad["bleu"] > 0
    assert difference.chrf == good["chrf"] - bad["chrf"] > 0
    assert compare(bad, good).bleu == -difference.bleu


@pytest.mark.parametrize("key", ["signature", "chrf_signature", "protocol", "references"])
def test_results_that_do_not_compare_are_rejected(key: str) -> None:
    one = result(REFERENCES)
    words = key.replace("_", " ")
    with pytest.raises(UserError, match=rf"cannot compare the results: different {words} \(.* and other.*\); score"):
        compare(one, one | {key: "other"})


@pytest.mark.parametrize("key", ["bleu", "chrf", "signature", "references"])
def test_invalid_results_are_rejected(key: str) -> None:
    one = result(REFERENCES)
    with pytest.raises(UserError, match=f"cannot compare a result without {key}; write it with"):
        compare(one, {name: value for name, value in one.items() if name != key})


@pytest.mark.slow
def test_comparison_reports_chance() -> None:
    good, bad = damaged(0.05, 1), damaged(0.3, 2)
    assert paired_bootstrap(good, bad, REFERENCES) < 0.01
    assert paired_bootstrap(bad, good, REFERENCES) < 0.01
    assert paired_bootstrap(good, damaged(0.05, 4), REFERENCES) > 0.05
    assert paired_bootstrap(good, good, REFERENCES) == 1
    capitals = [text.upper() for text in good]
    assert paired_bootstrap(good, capitals, REFERENCES) < 0.01
    assert paired_bootstrap(good, capitals, REFERENCES, protocol="lc-tok", language="de") == 1
