"""Metrics of label sets and numbers, recomputed one text at a time, and with scikit-learn if it is installed."""

import io
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console

from tercet.config import UserError
from tercet.data import LabeledExamples
from tercet.evaluate import (
    MultiLabelScores,
    RegressionScores,
    multi_label_scores,
    regression_scores,
    score_labels,
    score_multi_label,
    score_regression,
)
from tercet.evaluate.multi_label import predict_multi_label
from tercet.evaluate.regression import average_ranks, correlation
from tercet.evaluate.tasks.labels import score_classifier
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.tokens import BPE, Tokenizer

TOKENIZER = Tokenizer.train(BPE(vocab_size=259, pad=True, bos=True), [])
NAMES = ("cat", "dog", "owl")
SETS = st.lists(st.tuples(*[st.sets(st.sampled_from(NAMES))] * 2), min_size=1, max_size=12)
NUMBERS = st.lists(st.tuples(*[st.integers(-4, 4) | st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=12)


def label_matrix(sets: Sequence[set[str]]) -> np.ndarray:
    return np.array([[name in labels for name in NAMES] for labels in sets], dtype=bool).reshape(len(sets), len(NAMES))


def manual_scores(pairs: Sequence[tuple[set[str], set[str]]]) -> dict[str, Any]:
    """Count over (predicted, target) pairs, one text and one label at a time."""
    counts, sums = dict[str, tuple[int, int, int]](), [0, 0, 0]
    for name in NAMES:
        hits = sum(name in prediction and name in target for prediction, target in pairs)
        counts[name] = (
            hits,
            sum(name in prediction for prediction, _ in pairs),
            sum(name in target for _, target in pairs),
        )
        sums = [a + b for a, b in zip(sums, counts[name], strict=True)]
    f1 = {
        name: 2 * hits / (n_predicted + n_target)
        for name, (hits, n_predicted, n_target) in counts.items()
        if n_predicted + n_target
    }
    return {
        "f1": sum(f1.values()) / len(f1) if f1 else 0,
        "micro_f1": 2 * sums[0] / (sums[1] + sums[2]) if sums[1] + sums[2] else 0,
        "exact_match": sum(prediction == target for prediction, target in pairs) / len(pairs),
        "counts": counts,
    }


@given(pairs=SETS)
@example(pairs=[(set(), set())])
@example(pairs=[({"cat"}, {"cat"})])  # no text has the other labels
def test_label_set_scores_equal_manual_counts(pairs: list[tuple[set[str], set[str]]]) -> None:
    scores = multi_label_scores(
        label_matrix([prediction for prediction, _ in pairs]),
        label_matrix([target for _, target in pairs]),
        NAMES,
        resamples=0,
    )
    expected = manual_scores(pairs)
    frequent = {name for name in NAMES if sum(name in target for _, target in pairs) > len(pairs) / 2}
    constant = manual_scores([(frequent, target) for _, target in pairs])
    for name in ("f1", "micro_f1", "exact_match"):
        assert getattr(scores, name) == pytest.approx(expected[name])
        assert getattr(scores, f"constant_{name}") == pytest.approx(constant[name])
    for name, (hits, n_predicted, n_target) in expected["counts"].items():
        row = scores.per_label[name]
        assert row["count"] == n_target
        assert row["precision"] * n_predicted == pytest.approx(hits)
        assert row["recall"] * n_target == pytest.approx(hits)
        assert row["f1"] == pytest.approx(2 * hits / max(1, n_predicted + n_target))
    assert (scores.count, scores.threshold) == (len(pairs), 0.5)


def mean_ranks(values: Sequence[float]) -> list[float]:
    """Return the mean rank of each value among its ties."""
    return [sum(smaller < value for smaller in values) + (values.count(value) + 1) / 2 for value in values]


def pearson(a: Sequence[float], b: Sequence[float]) -> float:
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    covariance = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    variances = math.fsum((x - mean_a) ** 2 for x in a) * math.fsum((y - mean_b) ** 2 for y in b)
    return covariance / math.sqrt(variances)


@given(pairs=NUMBERS)
@example(pairs=[(1, 2), (2, 2), (2, 3), (5, 1)])
@example(pairs=[(0, 0), (0, 2.3e-308)])  # a variance that underflows
def test_regression_scores_equal_manual_results(pairs: list[tuple[float, float]]) -> None:
    predictions, expected = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    scores, n = regression_scores(predictions, expected, resamples=0), len(pairs)
    mean = math.fsum(expected) / n
    mean_squared_error = math.fsum((x - y) ** 2 for x, y in zip(predictions, expected, strict=True)) / n
    variance = math.fsum((y - mean) ** 2 for y in expected) / n
    assert scores.rmse == pytest.approx(math.sqrt(mean_squared_error))
    assert scores.mae == pytest.approx(math.fsum(abs(x - y) for x, y in zip(predictions, expected, strict=True)) / n)
    assert scores.constant_rmse == pytest.approx(math.sqrt(variance), abs=1e-9)
    assert scores.constant_mae == pytest.approx(math.fsum(abs(y - mean) for y in expected) / n, abs=1e-9)
    assert average_ranks(np.array(predictions)).tolist() == mean_ranks(predictions)
    if len(set(predictions)) > 1 < len(set(expected)):
        assert scores.spearman == pytest.approx(pearson(mean_ranks(predictions), mean_ranks(expected)), abs=1e-9)
        if min(np.ptp(predictions), np.ptp(expected)) > 1e-3:
            assert scores.pearson == pytest.approx(pearson(predictions, expected), abs=1e-6)
            assert scores.r2 == pytest.approx(1 - mean_squared_error / variance)
    else:
        assert scores.pearson == scores.spearman == 0


def test_invariants_of_a_correlation() -> None:
    draws = np.random.default_rng(1)
    a, b = draws.normal(size=(2, 50))
    scores = regression_scores(a, b)
    shifted_scores = regression_scores(1e9 + 1e-3 * a, b)
    assert shifted_scores.pearson == pytest.approx(scores.pearson, abs=1e-3)
    assert regression_scores(np.exp(a), b).spearman == pytest.approx(scores.spearman)
    assert regression_scores(-a, b).spearman == pytest.approx(-scores.spearman)
    assert correlation(np.array([1.0, 1, 2]), np.array([3.0, 3, 5])) == 1
    assert regression_scores([3, 3], [3, 3]).r2 == 0
    perfect = regression_scores(b, b)
    assert (perfect.rmse, perfect.r2, perfect.pearson) == (0, 1, pytest.approx(1))


def test_against_scikit_learn_and_scipy() -> None:
    metrics = pytest.importorskip("sklearn.metrics", reason="scikit-learn is not installed")
    stats = pytest.importorskip("scipy.stats", reason="scipy is not installed")
    draws = np.random.default_rng(5)
    predictions, expected = draws.random((2, 97, 3)) < 0.4
    sets = multi_label_scores(predictions, expected, NAMES)
    assert sets.f1 == pytest.approx(metrics.f1_score(expected, predictions, average="macro"))
    assert sets.micro_f1 == pytest.approx(metrics.f1_score(expected, predictions, average="micro"))
    assert sets.exact_match == pytest.approx(metrics.accuracy_score(expected, predictions))
    a, b = draws.integers(0, 9, (2, 97))
    numbers = regression_scores(a, b)
    assert numbers.r2 == pytest.approx(metrics.r2_score(b, a))
    assert numbers.pearson == pytest.approx(stats.pearsonr(a, b).statistic)
    assert numbers.spearman == pytest.approx(stats.spearmanr(a, b).statistic)


def model(kind: Any, labels: tuple[str, ...] = NAMES) -> EncoderOnly:
    settings = {"target_mean": 1e4, "target_std": 20.0} if kind == "regression" else {}
    head = Classifier(labels=labels if not settings else labels[:1], problem_type=kind, **settings)
    stack = StackSpec(d_model=24, n_layers=1, n_heads=2, d_ff=29)
    encoder = EncoderOnly(EncoderOnlySpec(vocab_size=TOKENIZER.vocab_size, max_len=19, stack=stack, classifier=head))
    with torch.no_grad():
        for weight in encoder.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.5)
    return encoder


def examples(kind: Any, names: tuple[str, ...] = NAMES) -> LabeledExamples:
    draws = np.random.default_rng(2)
    lengths = draws.integers(1, 23, 37)
    counts = draws.integers(0, 4, 37)
    starts = np.cumsum([0, *counts]) if kind != "regression" else None
    labels = (
        np.concatenate([draws.permutation(3)[:n] for n in counts]) if kind != "regression" else draws.normal(size=37)
    )
    return LabeledExamples(
        ids=draws.integers(3, TOKENIZER.vocab_size, lengths.sum()).astype(np.uint16), starts=np.cumsum([0, *lengths]),
        labels=labels, names=names if kind != "regression" else names[:1], problem_type=kind, label_starts=starts,
    )  # fmt: skip


def score_separately(encoder: EncoderOnly, labeled: LabeledExamples) -> np.ndarray:
    """Return scores (N, L) with each text in a separate batch."""
    rows = list[np.ndarray]()
    for number in range(len(labeled)):
        ids = labeled.ids[labeled.starts[number] : labeled.starts[number + 1]][:17].tolist()
        with torch.no_grad():
            tokens = torch.tensor([[TOKENIZER.bos_id, *ids, TOKENIZER.eos_id]])
            rows.append(encoder.eval().classify(encoder.hidden(tokens))[0].numpy())
    return np.stack(rows)


def test_label_set_scores_do_not_depend_on_batches() -> None:
    encoder, labeled = model("multi_label_classification"), examples("multi_label_classification")
    predictions = [
        predict_multi_label(encoder, TOKENIZER, labeled, batch_tokens=batch_tokens) for batch_tokens in (1, 50, 10_000)
    ]
    scores = [prediction.scores(resamples=9) for prediction in predictions]
    assert scores[2] == score_classifier(encoder, TOKENIZER, labeled, resamples=9)
    assert isinstance(scores[0], MultiLabelScores)
    expected, logits = labeled.targets(np.arange(37)) > 0, score_separately(encoder, labeled)
    for prediction, score in zip(predictions, scores, strict=True):
        assert prediction.probabilities == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-5)
        counted_only = {"auroc": None, "average_precision": None, "ece": None, "calibration": (), "intervals": {}}
        per_label = {
            name: {key: row[key] for key in ("precision", "recall", "f1", "count")}
            for name, row in score.per_label.items()
        }
        assert replace(score, truncated=0, per_label=per_label, **counted_only) == multi_label_scores(
            logits > 0, expected, NAMES, resamples=0
        )
        for name in ("auroc", "average_precision", "ece"):
            assert getattr(score, name) == pytest.approx(getattr(scores[0], name), abs=1e-4)
    assert scores[0].truncated == int((labeled.lengths > 17).sum()) > 0
    assert 0 < scores[0].exact_match < 1
    reordered = replace(labeled, names=tuple(reversed(NAMES)), labels=2 - labeled.labels)
    assert score_multi_label(encoder, TOKENIZER, reordered, resamples=9) == scores[2]
    assert score_multi_label(encoder, TOKENIZER, replace(labeled, names=(*NAMES, "emu")), resamples=9) == scores[2]
    with pytest.raises(UserError, match="has no label 'emu', only 'cat', 'dog', 'owl'"):
        score_multi_label(encoder, TOKENIZER, replace(labeled, names=("cat", "dog", "emu")))


def test_regression_scores_have_the_unit_of_the_labels() -> None:
    encoder, labeled = model("regression"), examples("regression")
    scores = score_regression(encoder, TOKENIZER, labeled, resamples=9)
    assert scores == score_classifier(encoder, TOKENIZER, labeled, resamples=9)
    assert isinstance(scores, RegressionScores)
    expected = regression_scores(1e4 + 20 * score_separately(encoder, labeled)[:, 0].astype(np.float64), labeled.labels)
    for name in ("rmse", "mae", "r2", "pearson", "spearman", "constant_rmse", "constant_mae"):
        assert getattr(scores, name) == pytest.approx(getattr(expected, name), rel=1e-5)
    assert (scores.count, scores.truncated) == (37, int((labeled.lengths > 17).sum()))
    with torch.no_grad():
        next(encoder.stack.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="training diverged"):
        score_regression(encoder, TOKENIZER, labeled)


def test_unsuitable_labels_are_rejected() -> None:
    single: Any = "single_label_classification"
    with pytest.raises(
        ValueError, match="problem_type of the model is regression, but these scores require multi_label"
    ):
        score_multi_label(model("regression"), TOKENIZER, examples("multi_label_classification"))
    with pytest.raises(ValueError, match="problem_type of the labels is regression, but these scores require single"):
        score_labels(model(single), TOKENIZER, examples("regression"))
    with pytest.raises(ValueError, match=r"of shape \(N, 3\), got \(1, 3\) and \(2, 3\)"):
        multi_label_scores(label_matrix([set()]), label_matrix([set(), set()]), NAMES)
    for work in (
        lambda: regression_scores([], []),
        lambda: multi_label_scores(label_matrix([]), label_matrix([]), NAMES),
    ):
        with pytest.raises(ValueError, match="nothing to score"):
            work()
    with pytest.raises(ValueError, match=r"one prediction per number, got shapes \(1,\) and \(2,\)"):
        regression_scores([1], [1, 2])


def test_displayed_scores() -> None:
    console = Console(file=io.StringIO(), width=120)
    pairs = [({"cat"}, {"cat"}), ({"cat"}, {"cat", "dog"}), (set[str](), {"owl"})]
    scores = multi_label_scores(
        label_matrix([prediction for prediction, _ in pairs]), label_matrix([target for _, target in pairs]), NAMES
    )
    console.print(replace(scores, truncated=2).view())
    console.print(regression_scores([1, 2, 4], [1, 2, 3]).view())
    text: str = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    rows = [" ".join(line.split()) for line in text.splitlines()]
    assert any(row.startswith("micro F1 66.7%") and row.endswith("57.1%") for row in rows)
    assert any(row.startswith("macro F1 33.3%") and row.endswith("26.7%") for row in rows)
    assert "3 texts; 2 cut" in text
    assert "RMSE" in text
    assert "0.57735" in text
    assert "Spearman" in text
