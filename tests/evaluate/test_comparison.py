"""Two results are compared only if the comparison is meaningful."""

from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from tercet.config import UserError
from tercet.evaluate import compare, paired_bootstrap, score_translations

DRAWS = np.random.default_rng(3)
REFERENCES = [" ".join(DRAWS.choice(list("abcdefgh"), 11)) for _ in range(40)]


def drop_words(share: float, seed: int) -> list[str]:
    draws = np.random.default_rng(seed)
    return [" ".join(word for word in text.split() if draws.random() > share) for text in REFERENCES]


def result(texts: list[str]) -> dict[str, Any]:
    return asdict(score_translations(texts, REFERENCES))


def test_comparison_reports_the_difference() -> None:
    better, worse = result(drop_words(0.05, 1)), result(drop_words(0.3, 2))
    difference = compare(better, worse)
    assert difference.bleu == better["bleu"] - worse["bleu"] > 0
    assert difference.chrf == better["chrf"] - worse["chrf"] > 0
    assert compare(worse, better).bleu == -difference.bleu


@pytest.mark.parametrize("key", ["signature", "chrf_signature", "protocol", "references"])
def test_results_that_do_not_compare_are_rejected(key: str) -> None:
    scores = result(REFERENCES)
    words = key.replace("_", " ")
    with pytest.raises(UserError, match=rf"cannot compare the results: different {words} \(.* and other.*\); score"):
        compare(scores, scores | {key: "other"})


@pytest.mark.parametrize("key", ["bleu", "chrf", "signature", "references"])
def test_invalid_results_are_rejected(key: str) -> None:
    scores = result(REFERENCES)
    with pytest.raises(UserError, match=f"cannot compare a result without {key}; write it with"):
        compare(scores, {name: value for name, value in scores.items() if name != key})


@pytest.mark.slow
def test_comparison_reports_chance() -> None:
    better, worse = drop_words(0.05, 1), drop_words(0.3, 2)
    assert paired_bootstrap(better, worse, REFERENCES) < 0.01
    assert paired_bootstrap(worse, better, REFERENCES) < 0.01
    assert paired_bootstrap(better, drop_words(0.05, 4), REFERENCES) > 0.05
    assert paired_bootstrap(better, better, REFERENCES) == 1
    capitals = [text.upper() for text in better]
    assert paired_bootstrap(better, capitals, REFERENCES) < 0.01
    assert paired_bootstrap(better, capitals, REFERENCES, protocol="lc-tok", language="de") == 1
