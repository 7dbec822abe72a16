"""Scores of weighted documents equal those of scikit-learn, and their intervals contain the true value in 95 %."""

import math
from typing import Any

import numpy as np
import pytest

from tercet.config import UserError
from tercet.evaluate import label_scores, multi_label_scores, regression_scores
from tercet.evaluate.bootstrap import MIN_RESAMPLES, mean_scores, paired_differences, resample
from tercet.evaluate.labels import LabelPredictions
from tercet.evaluate.multi_label import MultiLabelPredictions
from tercet.evaluate.regression import NumberPredictions

N = 83


def random_labels(n_labels: int, seed: int = 1, n: int = N) -> tuple[np.ndarray, np.ndarray]:
    """Return true labels (N,) and probabilities (N, L) with ties that are better than chance."""
    draws = np.random.default_rng(seed)
    targets = draws.integers(0, n_labels, n)
    logits = draws.normal(size=(n, n_labels)) + 1.5 * np.eye(n_labels)[targets]
    logits = np.round(logits, 1)  # for ties
    probabilities = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return targets, np.round(probabilities, 3)  # so that both columns of two labels have the same ties


@pytest.mark.parametrize("n_labels", [2, 5])
@pytest.mark.parametrize("weighted", [False, True])
def test_scores_of_one_label_equal_those_of_scikit_learn(n_labels: int, weighted: bool) -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    targets, probabilities = random_labels(n_labels)
    predicted = probabilities.argmax(1)
    weights = np.random.default_rng(2).integers(0, 4, N).astype(float) if weighted else np.ones(N)
    predictions = LabelPredictions(predicted, targets, tuple("abcde"[:n_labels]), probabilities=probabilities)
    measured = predictions.weighted.measure(weights)
    one_hot = np.eye(n_labels)[targets]
    expected = (
        metrics.accuracy_score(targets, predicted, sample_weight=weights),
        metrics.f1_score(targets, predicted, average="macro", sample_weight=weights),
        metrics.matthews_corrcoef(targets, predicted, sample_weight=weights),
        metrics.roc_auc_score(one_hot, probabilities, average="macro", sample_weight=weights),
        metrics.average_precision_score(one_hot, probabilities, average="macro", sample_weight=weights),
    )
    assert measured[:5] == pytest.approx(expected)
    if n_labels == 2 and not weighted:
        assert measured[3] == pytest.approx(metrics.roc_auc_score(targets, probabilities[:, 1]))
        per_label = predictions.scores(resamples=0).per_label["b"]
        assert per_label["average_precision"] == pytest.approx(
            metrics.average_precision_score(targets, probabilities[:, 1])
        )


def test_scores_of_several_labels_equal_those_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    draws = np.random.default_rng(3)
    targets = draws.random((N, 3)) < (0.2, 0.5, 0.7)
    probabilities = np.round(np.clip(0.4 * targets + 0.6 * draws.random((N, 3)), 0, 1), 2)
    weights = draws.integers(0, 4, N).astype(float)
    predictions = MultiLabelPredictions(probabilities > 0.5, targets, ("a", "b", "c"), probabilities=probabilities)
    expected = (
        metrics.f1_score(targets, probabilities > 0.5, average="macro", sample_weight=weights),
        metrics.f1_score(targets, probabilities > 0.5, average="micro", sample_weight=weights),
        metrics.accuracy_score(targets, probabilities > 0.5, sample_weight=weights),
        metrics.roc_auc_score(targets, probabilities, sample_weight=weights),
        metrics.average_precision_score(targets, probabilities, sample_weight=weights),
    )
    assert predictions.weighted.measure(weights)[:5] == pytest.approx(expected)


def test_weighted_scores_of_numbers_equal_those_of_repeated_numbers() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    draws = np.random.default_rng(4)
    targets = draws.integers(0, 9, N).astype(float)
    predicted = targets + draws.integers(-3, 4, N)
    counts = draws.integers(0, 4, N)
    a, b = np.repeat(predicted, counts), np.repeat(targets, counts)
    expected = (
        metrics.root_mean_squared_error(b, a), metrics.mean_absolute_error(b, a), metrics.r2_score(b, a),
        stats.pearsonr(a, b).statistic, stats.spearmanr(a, b).statistic,
    )  # fmt: skip
    assert NumberPredictions(predicted, targets).weighted.measure(counts.astype(float)) == pytest.approx(expected)


def test_calibration_error_equals_counting_by_hand() -> None:
    confidence = np.array([0.51, 0.52, 0.9, 0.95, 1.0, 1 / 15])
    is_correct = np.array([1, 0, 1, 1, 0, 0])
    probabilities = np.stack((confidence, 1 - confidence), 1)
    scores = label_scores([0] * 6, 1 - is_correct, ("a", "b"), probabilities=probabilities, resamples=0)
    # 0.51 and 0.52 are in (7/15, 8/15], 0.9 in (13/15, 14/15], 0.95 and 1 in the last bin, 1/15 in the first one.
    gaps = abs(1 - 1.03), abs(1 - 0.9), abs(1 - 1.95), abs(0 - 1 / 15)
    assert scores.ece == pytest.approx(sum(gaps) / 6)
    assert [row.count for row in scores.calibration] == [1, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 1, 2]
    assert scores.calibration[7].accuracy == 0.5
    assert scores.calibration[7].confidence == pytest.approx(0.515)
    assert scores.calibration[1].confidence is None


def test_undefined_scores_are_none_and_have_no_interval() -> None:
    scores = label_scores([0, 0], [0, 0], ("a", "b"), probabilities=np.array([[0.9, 0.1], [0.8, 0.2]]))
    assert (scores.auroc, scores.average_precision, scores.mcc) == (None, None, 0)
    assert set(scores.intervals) == {"accuracy", "f1", "mcc", "ece"}
    assert "auroc" not in scores.per_label["a"]
    assert label_scores([0, 0], [0, 0], ("a", "b")).ece is None


def test_intervals_are_reproducible_and_contain_the_score() -> None:
    targets, probabilities = random_labels(3)
    scores = [
        label_scores(probabilities.argmax(1), targets, ("a", "b", "c"), probabilities=probabilities, resamples=200)
        for _ in range(2)
    ]
    assert scores[0] == scores[1]
    for name, (low, high) in scores[0].intervals.items():
        assert low < getattr(scores[0], name) < high
    half = 1.96 * math.sqrt(scores[0].accuracy * (1 - scores[0].accuracy) / N)
    low, high = scores[0].intervals["accuracy"]
    assert high - low == pytest.approx(2 * half, rel=0.2)


def test_words_of_one_text_are_drawn_together() -> None:
    targets, predicted = np.zeros(60, np.int64), np.repeat(np.arange(6) % 2, 10)
    texts = np.repeat(np.arange(6), 10)  # each text is all right or all wrong
    low, high = LabelPredictions(predicted, targets, ("a", "b"), documents=texts).scores().intervals["accuracy"]
    separate_low, separate_high = LabelPredictions(predicted, targets, ("a", "b")).scores().intervals["accuracy"]
    assert high - low > 2 * (separate_high - separate_low)


def test_there_are_fewer_resamples_of_many_numbers() -> None:
    assert len(resample(lambda weights: [weights.sum()], 3, size=10**9)) == MIN_RESAMPLES
    with pytest.raises(ValueError, match="nothing to resample"):
        resample(lambda weights: [weights.sum()], 0)


def scores_of_kind(kind: str, seed: int, n: int = 150) -> Any:
    """Return the scores of a synthetic model of one kind, and those that it has for infinitely many texts."""
    draws = np.random.default_rng(seed)
    if kind == "regression":
        targets = draws.normal(size=n)
        return regression_scores(targets + draws.normal(size=n), targets, resamples=200)
    if kind == "several labels":
        targets = draws.random((n, 2)) < 0.4
        probabilities = 1 / (1 + np.exp(-draws.normal(2 * targets - 1, 1.5)))
        return multi_label_scores(probabilities > 0.5, targets, ("a", "b"), probabilities=probabilities, resamples=200)
    targets, probabilities = random_labels(3, seed, n)
    return label_scores(probabilities.argmax(1), targets, ("a", "b", "c"), probabilities=probabilities, resamples=200)


@pytest.mark.exhaustive
@pytest.mark.parametrize("kind", ["one label", "several labels", "regression"])
def test_intervals_contain_the_true_score_in_about_95_percent(kind: str) -> None:
    true, rounds = scores_of_kind(kind, 0, 40_000), 120
    covered = dict.fromkeys(true.intervals, 0)
    for seed in range(1, rounds + 1):
        for name, (low, high) in scores_of_kind(kind, seed).intervals.items():
            covered[name] += low <= getattr(true, name) <= high
    assert {name: count / rounds for name, count in covered.items() if not count / rounds >= 0.88} == {}


def test_difference_between_two_models_on_the_same_texts() -> None:
    draws = np.random.default_rng(6)
    difficulty = draws.normal(size=(400, 1))
    worse, better = difficulty + 0.1 * draws.normal(size=(400, 1)), difficulty + 0.05
    difference = paired_differences(mean_scores(["x"], better), mean_scores(["x"], worse))["x"]
    assert difference.difference == pytest.approx(better.mean() - worse.mean())
    half = 1.96 * (better - worse).std() / 20
    assert difference.interval == pytest.approx(
        (difference.difference - half, difference.difference + half), abs=half / 5
    )
    assert difference.p_value < 0.01  # although the intervals of the two models overlap
    assert mean_scores(["x"], worse).intervals()["x"][1] > mean_scores(["x"], better).intervals()["x"][0]
    same = paired_differences(mean_scores(["x"], better), mean_scores(["x"], better))["x"]
    assert (same.difference, same.interval, same.p_value) == (0, (0, 0), 1)


@pytest.mark.exhaustive
def test_p_values_of_equally_good_models_are_uniform() -> None:
    draws, p_values = np.random.default_rng(7), list[float]()
    for _ in range(200):
        pair = (mean_scores(["x"], draws.normal(size=(60, 1))) for _ in range(2))
        p_values.append(paired_differences(*pair, resamples=200)["x"].p_value)
    assert np.mean(np.array(p_values) < 0.05) < 0.12
    assert 0.35 < np.mean(p_values) < 0.65


def test_models_on_different_data_are_not_compared() -> None:
    values = np.ones((4, 1))
    with pytest.raises(UserError, match="scored on different data"):
        paired_differences(mean_scores(["x"], values, digest="a"), mean_scores(["x"], values, digest="b"))
    with pytest.raises(UserError, match="one has x, the other y"):
        paired_differences(mean_scores(["x"], values), mean_scores(["y"], values))
