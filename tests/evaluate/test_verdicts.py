"""A model that is no better than a simple baseline is reported with both scores; a better one is not."""

import math
from typing import Any

import numpy as np
import pytest

from tercet.evaluate import MaskedScores, label_scores, multi_label_scores, regression_scores
from tercet.evaluate.retrieval import RetrievalScores
from tercet.evaluate.scores import LanguageScores
from tercet.evaluate.translation import score_translations
from tercet.evaluate.verdicts import (
    judge_before,
    judge_labels,
    judge_language,
    judge_masked,
    judge_search,
    judge_translation,
)

NAMES = ("cat", "dog")


def language(nats: float, bits: float) -> LanguageScores:
    return LanguageScores(
        loss_nats_per_token=nats, perplexity=math.exp(nats), bits_per_byte=bits, tokens=9, bytes=9, context=4, stride=4
    )


def masked(loss: float) -> MaskedScores:
    return MaskedScores(
        masked_loss=loss, masked_accuracy=0.1, unigram_entropy=6.99, most_frequent_accuracy=0.1, mask_rate=0.15,
        tokens=70, context=32, seed=0,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("nats", "bits", "name"),
    [
        (5.0, 5.0, "counting tokens (unigram): nats per token 5.0000 against 4.0000"),
        (3.9, 3.9, "gzip -9: bits per byte 3.9000 against 3.8000"),
        (3.7, 3.7, "counting pairs of tokens (bigram): nats per token 3.7000 against 3.0000"),
        (math.nan, math.nan, "counting tokens (unigram)"),
        (2.9, 2.9, None),  # worse than xz only
    ],
)
def test_language_models_are_compared_with_the_weakest_better_baseline(
    nats: float, bits: float, name: str | None
) -> None:
    baselines = {"unigram": language(4, 4), "bigram": language(3, 3), "gzip -9": 3.8, "xz -9e": 2.0}
    verdicts = judge_language(language(nats, bits), baselines)
    assert [name in verdict.text for verdict in verdicts if name] == [True] * bool(name)
    assert len(verdicts) == bool(name)
    assert judge_language(language(nats, bits), {}) == []


def test_masked_models_are_compared_with_counting() -> None:
    assert judge_masked(masked(6.5)) == []
    [verdict] = judge_masked(masked(8.84))
    assert verdict.text.startswith(
        "the model is worse than counting tokens (unigram): nats per masked token 8.8400 against 6.9900; train longer"
    )
    assert verdict.to_dict() == {
        "text": verdict.text, "measure": "nats per masked token", "model": 8.84, "baseline": 6.99,
        "baseline_name": "counting tokens (unigram)",
    }  # fmt: skip


def test_classifiers_are_compared_with_constant_predictions() -> None:
    assert judge_labels(label_scores([0, 0, 1], [0, 0, 1], NAMES, resamples=0)) == []
    [verdict] = judge_labels(label_scores([0, 0, 0], [0, 0, 1], NAMES, resamples=0))
    assert "no better than always predicting the most frequent label: accuracy 66.7% against 66.7%" in verdict.text
    assert judge_labels(label_scores([0, 0], [0, 0], NAMES, resamples=0)) == []  # there is nothing to distinguish
    true = np.array([[True, False], [True, True], [True, False]])
    assert judge_labels(multi_label_scores(true, true, NAMES, resamples=0)) == []
    [verdict] = judge_labels(multi_label_scores(~true, true, NAMES, resamples=0))
    assert "worse than always predicting the labels of most texts: micro F1 0.0% against" in verdict.text


def test_regressions_are_compared_with_the_mean() -> None:
    assert judge_labels(regression_scores([1, 2, 3.5], [1, 2, 3], resamples=0)) == []
    [verdict] = judge_labels(regression_scores([3, 2, 1], [1, 2, 3], resamples=0))
    assert "worse than always predicting the mean: RMSE 1.633 against 0.8165; " in verdict.text
    assert judge_labels(regression_scores([2, 2], [2, 2], resamples=0)) == []


def search(ndcg: float, interval: tuple[float, float], **facts: Any) -> RetrievalScores:
    values = dict.fromkeys(("recall_at_1", "recall_at_10", "mrr"), 0.5)
    settings: dict[str, Any] = {
        "intervals": {}, "bm25": {**values, "ndcg_at_10": 0.6}, "bm25_intervals": {}, "queries": 9, "documents": 9,
        "difference_intervals": {"ndcg_at_10": interval},
    }  # fmt: skip
    return RetrievalScores(**values, ndcg_at_10=ndcg, **(settings | facts))


def test_search_is_compared_with_bm25_beyond_chance() -> None:
    assert judge_search(search(0.7, (0.05, 0.15))) == []
    assert judge_search(search(0.55, (-0.15, 0.05))) == []
    [verdict] = judge_search(search(0.4, (-0.3, -0.1)))
    assert "worse than BM25: nDCG@10 0.400 against 0.600" in verdict.text
    assert judge_search(search(0.4, (-0.3, -0.1), bm25=None)) == []


def test_fine_tuned_models_are_compared_with_themselves() -> None:
    assert judge_before(2.0, 3.0, unit="nats per token") == []
    [verdict] = judge_before(3.2, 3.0, unit="nats per token")
    assert verdict.text == (
        "the model is worse than itself before fine-tuning: nats per token 3.2000 against 3.0000; "
        "reduce training.optimizer.lr, train an adapter, or use the model before fine-tuning"
    )


@pytest.mark.parametrize(
    ("sources", "translations", "is_reported"),
    [
        (["the small house", "a red car"], ["das kleine Haus", "ein rotes Auto"], False),
        (["the small house", "a red car"], ["xyz xyz xyz", "xyz xyz xyz"], True),
        (["the small house", "a red car"], ["the small house", "a red car"], True),
        (["das kleine Haus", "ein rotes Auto"], ["das kleine Haus", "ein rotes Auto"], False),  # both are right
        (None, ["ein ein ein", "ein ein ein"], False),  # nothing to compare with
    ],
)
def test_translators_are_compared_with_copying(
    sources: list[str] | None, translations: list[str], is_reported: bool
) -> None:
    references = ["das kleine Haus", "ein rotes Auto"]
    scores = score_translations(translations, references, sources=sources)
    verdicts = judge_translation(scores)
    assert len(verdicts) == is_reported
    if sources is not None:
        assert scores.source_chrf == pytest.approx(score_translations(sources, references).chrf)
    for verdict in verdicts:
        assert "than copying the sources: chrF " in verdict.text
        assert (verdict.model, verdict.baseline) == (scores.chrf, scores.source_chrf)
