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
from tercet.evaluate.regression import average_ranks, correlation
from tercet.evaluate.tasks.labels import score_classifier
from tercet.models import Classifier, EncoderOnly, EncoderOnlySpec, StackSpec
from tercet.tokens import BPE, Tokenizer

TOKENIZER = Tokenizer.train(BPE(vocab_size=259, pad=True, bos=True), [])
NAMES = ("cat", "dog", "owl")
SETS = st.lists(st.tuples(*[st.sets(st.sampled_from(NAMES))] * 2), min_size=1, max_size=12)
NUMBERS = st.lists(st.tuples(*[st.integers(-4, 4) | st.floats(-1e6, 1e6)] * 2), min_size=1, max_size=12)


def as_rows(sets: Sequence[set[str]]) -> np.ndarray:
    return np.array([[name in one for name in NAMES] for one in sets], dtype=bool).reshape(len(sets), len(NAMES))


def counted(pairs: Sequence[tuple[set[str], set[str]]]) -> dict[str, Any]:
    """Count over (predicted, target) pairs, one text and one label at a time."""
    own, sums = dict[str, tuple[int, int, int]](), [0, 0, 0]
    for name in NAMES:
        both = sum(name in said and name in expected for said, expected in pairs)
        own[name] = both, sum(name in said for said, _ in pairs), sum(name in expected for _, expected in pairs)
        sums = [a + b for a, b in zip(sums, own[name], strict=True)]
    f1 = {name: 2 * both / (said + there) for name, (both, said, there) in own.items() if said + there}
    return {
        "f1": sum(f1.values()) / len(f1) if f1 else 0,
        "micro_f1": 2 * sums[0] / (sums[1] + sums[2]) if sums[1] + sums[2] else 0,
        "exact_match": sum(said == expected for said, expected in pairs) / len(pairs),
        "own": own,
    }


@given(pairs=SETS)
@example(pairs=[(set(), set())])
@example(pairs=[({"cat"}, {"cat"})])  # no text has the other labels
def test_label_set_scores_equal_manual_counts(pairs: list[tuple[set[str], set[str]]]) -> None:
    scores = multi_label_scores(as_rows([said for said, _ in pairs]), as_rows([there for _, there in pairs]), NAMES)
    by_hand = counted(pairs)
    most = {name for name in NAMES if sum(name in there for _, there in pairs) > len(pairs) / 2}
    constant = counted([(most, there) for _, there in pairs])
    for name in ("f1", "micro_f1", "exact_match"):
        assert getattr(scores, name) == pytest.approx(by_hand[name])
        assert getattr(scores, f"constant_{name}") == pytest.approx(constant[name])
    for name, (both, said, there) in by_hand["own"].items():
        row = scores.per_label[name]
        assert row["count"] == there
        assert row["precision"] * said == pytest.approx(both)
        assert row["recall"] * there == pytest.approx(both)
        assert row["f1"] == pytest.approx(2 * both / max(1, said + there))
    assert (scores.count, scores.threshold) == (len(pairs), 0.5)


def ranks_of(values: Sequence[float]) -> list[float]:
    """Return the mean rank of each value among its ties."""
    return [sum(other < value for other in values) + (values.count(value) + 1) / 2 for value in values]


def correlated(a: Sequence[float], b: Sequence[float]) -> float:
    mean_a, mean_b = math.fsum(a) / len(a), math.fsum(b) / len(b)
    together = math.fsum((x - mean_a) * (y - mean_b) for x, y in zip(a, b, strict=True))
    own = math.fsum((x - mean_a) ** 2 for x in a) * math.fsum((y - mean_b) ** 2 for y in b)
    return together / math.sqrt(own)


@given(pairs=NUMBERS)
@example(pairs=[(1, 2), (2, 2), (2, 3), (5, 1)])
def test_regression_scores_equal_manual_results(pairs: list[tuple[float, float]]) -> None:
    said, expected = [float(x) for x, _ in pairs], [float(y) for _, y in pairs]
    scores, n = regression_scores(said, expected), len(pairs)
    mean = math.fsum(expected) / n
    squared = math.fsum((x - y) ** 2 for x, y in zip(said, expected, strict=True)) / n
    variance = math.fsum((y - mean) ** 2 for y in expected) / n
    assert scores.rmse == pytest.approx(math.sqrt(squared))
    assert scores.mae == pytest.approx(math.fsum(abs(x - y) for x, y in zip(said, expected, strict=True)) / n)
    assert scores.constant_rmse == pytest.approx(math.sqrt(variance), abs=1e-9)
    assert scores.constant_mae == pytest.approx(math.fsum(abs(y - mean) for y in expected) / n, abs=1e-9)
    assert average_ranks(np.array(said)).tolist() == ranks_of(said)
    if len(set(said)) > 1 < len(set(expected)):
        assert scores.spearman == pytest.approx(correlated(ranks_of(said), ranks_of(expected)), abs=1e-9)
        if min(np.ptp(said), np.ptp(expected)) > 1e-3:
            assert scores.pearson == pytest.approx(correlated(said, expected), abs=1e-6)
            assert scores.r2 == pytest.approx(1 - squared / variance)
    else:
        assert scores.pearson == scores.spearman == 0


def test_invariants_of_a_correlation() -> None:
    draws = np.random.default_rng(1)
    a, b = draws.normal(size=(2, 50))
    scores = regression_scores(a, b)
    moved = regression_scores(1e9 + 1e-3 * a, b)
    assert moved.pearson == pytest.approx(scores.pearson, abs=1e-3)
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
    said, expected = draws.random((2, 97, 3)) < 0.4
    sets = multi_label_scores(said, expected, NAMES)
    assert sets.f1 == pytest.approx(metrics.f1_score(expected, said, average="macro"))
    assert sets.micro_f1 == pytest.approx(metrics.f1_score(expected, said, average="micro"))
    assert sets.exact_match == pytest.approx(metrics.accuracy_score(expected, said))
    a, b = draws.integers(0, 9, (2, 97))
    numbers = regression_scores(a, b)
    assert numbers.r2 == pytest.approx(metrics.r2_score(b, a))
    assert numbers.pearson == pytest.approx(stats.pearsonr(a, b).statistic)
    assert numbers.spearman == pytest.approx(stats.spearmanr(a, b).statistic)


def model(kind: Any, labels: tuple[str, ...] = NAMES) -> EncoderOnly:
    settings = {"target_mean": 1e4, "target_std": 20.0} if kind == "regression" else {}
    head = Classifier(labels=labels if not settings else labels[:1], problem_type=kind, **settings)
    stack = StackSpec(d_model=24, n_layers=1, n_heads=2, d_ff=29)
    made = EncoderOnly(EncoderOnlySpec(vocab_size=TOKENIZER.vocab_size, max_len=19, stack=stack, classifier=head))
    with torch.no_grad():
        for weight in made.parameters():
            weight.add_(torch.randn(weight.shape, generator=torch.Generator().manual_seed(1)) * 0.5)
    return made


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


def scores_alone(made: EncoderOnly, labelled: LabeledExamples) -> np.ndarray:
    """Return scores (N, L) with each text in a separate batch."""
    rows = list[np.ndarray]()
    for number in range(len(labelled)):
        ids = labelled.ids[labelled.starts[number] : labelled.starts[number + 1]][:17].tolist()
        with torch.no_grad():
            tokens = torch.tensor([[TOKENIZER.bos_id, *ids, TOKENIZER.eos_id]])
            rows.append(made.eval().classify(made.hidden(tokens))[0].numpy())
    return np.stack(rows)


def test_label_set_scores_do_not_depend_on_batches() -> None:
    made, labelled = model("multi_label_classification"), examples("multi_label_classification")
    scores = [score_multi_label(made, TOKENIZER, labelled, batch_tokens=most) for most in (1, 50, 10_000)]
    assert scores[0] == scores[1] == scores[2] == score_classifier(made, TOKENIZER, labelled)
    assert isinstance(scores[0], MultiLabelScores)
    expected = labelled.targets(np.arange(37)) > 0
    assert replace(scores[0], truncated=0) == multi_label_scores(scores_alone(made, labelled) > 0, expected, NAMES)
    assert scores[0].truncated == int((labelled.lengths > 17).sum()) > 0
    assert 0 < scores[0].exact_match < 1
    turned = replace(labelled, names=tuple(reversed(NAMES)), labels=2 - labelled.labels)
    assert score_multi_label(made, TOKENIZER, turned) == scores[0]
    assert score_multi_label(made, TOKENIZER, replace(labelled, names=(*NAMES, "emu"))) == scores[0]
    with pytest.raises(UserError, match="has no label 'emu', only 'cat', 'dog', 'owl'"):
        score_multi_label(made, TOKENIZER, replace(labelled, names=("cat", "dog", "emu")))


def test_regression_scores_have_the_unit_of_the_labels() -> None:
    made, labelled = model("regression"), examples("regression")
    scores = score_regression(made, TOKENIZER, labelled)
    assert scores == score_classifier(made, TOKENIZER, labelled)
    assert isinstance(scores, RegressionScores)
    alone = regression_scores(1e4 + 20 * scores_alone(made, labelled)[:, 0].astype(np.float64), labelled.labels)
    for name in ("rmse", "mae", "r2", "pearson", "spearman", "constant_rmse", "constant_mae"):
        assert getattr(scores, name) == pytest.approx(getattr(alone, name), rel=1e-5)
    assert (scores.count, scores.truncated) == (37, int((labelled.lengths > 17).sum()))
    with torch.no_grad():
        next(made.stack.parameters()).fill_(torch.nan)
    with pytest.raises(UserError, match="training diverged"):
        score_regression(made, TOKENIZER, labelled)


def test_unsuitable_labels_are_rejected() -> None:
    single: Any = "single_label_classification"
    with pytest.raises(
        ValueError, match="problem_type of the model is regression, but these scores require multi_label"
    ):
        score_multi_label(model("regression"), TOKENIZER, examples("multi_label_classification"))
    with pytest.raises(ValueError, match="problem_type of the labels is regression, but these scores require single"):
        score_labels(model(single), TOKENIZER, examples("regression"))
    with pytest.raises(ValueError, match=r"of shape \(N, 3\), got \(1, 3\) and \(2, 3\)"):
        multi_label_scores(as_rows([set()]), as_rows([set(), set()]), NAMES)
    for work in (lambda: regression_scores([], []), lambda: multi_label_scores(as_rows([]), as_rows([]), NAMES)):
        with pytest.raises(ValueError, match="nothing to score"):
            work()
    with pytest.raises(ValueError, match=r"one prediction per number, got shapes \(1,\) and \(2,\)"):
        regression_scores([1], [1, 2])


def test_displayed_scores() -> None:
    console = Console(file=io.StringIO(), width=120)
    pairs = [({"cat"}, {"cat"}), ({"cat"}, {"cat", "dog"}), (set[str](), {"owl"})]
    scores = multi_label_scores(as_rows([said for said, _ in pairs]), as_rows([there for _, there in pairs]), NAMES)
    console.print(replace(scores, truncated=2).view())
    console.print(regression_scores([1, 2, 4], [1, 2, 3]).view())
    text: str = console.file.getvalue()  # pyright: ignore[reportAttributeAccessIssue]
    assert (
        "micro F1 66.7% (constant prediction 57.1%); macro F1 33.3% (26.7%); exact match 33.3% (33.3%); 3 texts" in text
    )
    assert "2 cut" in text
    assert "RMSE" in text
    assert "0.57735" in text
    assert "Spearman" in text
