"""Scores of cross-validation: the corrected interval, paired differences, and the leaderboard over folds."""

import csv
import io
import json
import math
from pathlib import Path

import jsonschema
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from rich.console import Console
from scipy import special, stats

from tercet.evaluate.labels import LabelPredictions, label_scores
from tercet.evaluate.leaderboard import Leaderboard, RunResult, leaderboard
from tercet.evaluate.leaderboard_files import leaderboard_csv, leaderboard_dict
from tercet.evaluate.multi_label import MultiLabelPredictions
from tercet.evaluate.pooled import name_scores, pool_scores
from tercet.evaluate.regression import NumberPredictions
from tercet.evaluate.spreads import FoldSpread, fold_difference, t_probability, t_quantile
from tercet.evaluate.tasks.evaluation import HeldOutScores

SCHEMA = Path(__file__).parents[2] / "docs/reference/schemas/compare.schema.json"
FINITE = st.floats(-100, 100)


@given(t=st.floats(0, 50), degrees=st.integers(1, 300))
@example(t=2e-9, degrees=1)  # `stats.t.cdf` is 0.5 here, which would be a probability of 0
def test_probabilities_are_those_of_students_t(t: float, degrees: int) -> None:
    expected = special.betainc(0.5, degrees / 2, t * t / (degrees + t * t))
    assert t_probability(t, degrees) == pytest.approx(expected, abs=1e-12)
    assert t_quantile(degrees) == pytest.approx(stats.t.ppf(0.975, degrees), rel=1e-9)


def test_interval_has_the_correction_for_shared_training_data() -> None:
    values = [0.8, 0.9, 0.7, 0.85, 0.75]
    spread = FoldSpread.of_folds(values, 5)
    assert spread.mean == pytest.approx(0.8)
    assert spread.std == pytest.approx(np.std(values, ddof=1))
    reach = stats.t.ppf(0.975, 4) * math.sqrt((1 / 5 + 1 / 4) * np.var(values, ddof=1))  # n_validation : n_training
    assert spread.interval == pytest.approx((0.8 - reach, 0.8 + reach))
    repeated = FoldSpread.of_folds(values * 2, 5)
    reach = stats.t.ppf(0.975, 9) * math.sqrt((1 / 10 + 1 / 4) * np.var(values * 2, ddof=1))
    assert repeated.interval == pytest.approx((0.8 - reach, 0.8 + reach))


@given(pairs=st.lists(st.tuples(FINITE, FINITE), min_size=2, max_size=12), folds=st.integers(2, 12))
def test_difference_is_paired_and_antisymmetric(pairs: list[tuple[float, float]], folds: int) -> None:
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    one, other = fold_difference(first, second, folds), fold_difference(second, first, folds)
    assert one.difference == pytest.approx(-other.difference)
    assert one.interval == pytest.approx((-other.interval[1], -other.interval[0]))
    assert one.p_value == pytest.approx(other.p_value)
    assert 0 <= one.p_value <= 1
    if abs(one.p_value - 0.05) > 1e-6:
        assert (one.p_value < 0.05) == (not one.interval[0] <= 0 <= one.interval[1])


def test_equal_differences_are_certain_and_undefined_scores_have_no_interval() -> None:
    assert fold_difference([2.0, 3.0], [1.0, 2.0], 2).p_value == 0
    assert fold_difference([2.0, 3.0], [2.0, 3.0], 2).p_value == 1
    assert FoldSpread.of_folds([1.0, math.inf], 2).interval is None
    assert FoldSpread.of_folds([1.0], 2).interval is None


def result(name: str, fold: int, nats: float | None, seed: int = 1, tokenizer: str = "") -> RunResult:
    """Return a classifier's run; nats=None means that it diverged."""
    scores = nats and HeldOutScores(
        kind="classifier", scores={"nats_per_label": nats, "accuracy": 1 - nats / 4}, parameters=100,
        text=f"fold {fold} of {seed}", tokenizer=tokenizer or f"learned without fold {fold}", tokens=20 + fold,
    )  # fmt: skip
    return RunResult(name=name, seed=seed, fold=fold, scores=scores or None, tokens=640, seconds=2.0)


A, B = [1.0, 1.2, 1.4], [1.1, 1.3, 1.6]
RESULTS = [result(name, fold, nats) for name, values in (("b", B), ("a", A)) for fold, nats in enumerate(values, 1)]


def print_board(board: Leaderboard) -> str:
    console = Console(file=io.StringIO(), width=120)
    console.print(board.view())
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_variants_are_ranked_although_folds_differ() -> None:
    board = leaderboard(RESULTS, folds=3)
    assert board.ranked_by == {"classifier": "nats_per_label"}
    assert [(row.name, row.rank) for row in board.rows] == [("a", 1), ("b", 2)]
    assert board.rows[0].scores["nats_per_label"] == FoldSpread.of_folds(A, 3)
    assert board.differences == {"b": fold_difference(B, A, 3)}
    assert any("Nadeau and Bengio" in note for note in board.notes)
    assert not any("overlap" in note or "seeds" in note for note in board.notes)


def test_variants_of_one_fold_with_different_tokenizers_are_ranked_by_accuracy() -> None:
    board = leaderboard([*RESULTS[:5], result("a", 3, 1.4, tokenizer="other")], folds=3)
    assert board.ranked_by == {"classifier": "accuracy"}


def test_tables_contain_folds_mean_and_difference() -> None:
    text = print_board(leaderboard(RESULTS, folds=3))
    lines = [line.split() for line in text.splitlines()]
    low, high = (f"{bound:.4f}" for bound in FoldSpread.of_folds(A, 3).interval or ())
    assert ["fold", "3", "1.4000", "65.0%"] in lines
    assert ["mean", "1.2000", "70.0%"] in lines
    assert ["standard", "deviation", "0.2000", "5.0%"] in lines
    assert any(line[:6] == ["95", "%", "interval", low, "to", high] for line in lines)
    assert any(line[:3] == ["*", "a", "1.2000"] and line[3:6] == [low, "to", high] for line in lines)
    assert any(line[:2] == ["b", "+0.1333"] for line in lines)
    single = print_board(leaderboard(RESULTS[:3], folds=3))
    assert "minus" not in single
    assert "fold 3" in single


def test_repeated_folds_are_labeled_by_seed() -> None:
    runs = [result("a", fold, 1 + fold / 10 + seed / 100, seed) for seed in (1, 2) for fold in (1, 2)]
    board = leaderboard(runs, folds=2)
    assert len(board.rows[0].runs) == 4
    text = print_board(board)
    assert "seed 2, fold 1" in text
    assert "2 folds of 2 divisions, one per seed" in text


def test_diverged_fold_is_shown_and_ranked_last() -> None:
    board = leaderboard([*RESULTS[:5], result("a", 3, None)], folds=3)
    assert [(row.name, row.rank, row.diverged) for row in board.rows] == [("b", 1, 0), ("a", None, 1)]
    assert board.differences == {}
    assert any(line.split()[:3] == ["fold", "3", "diverged"] for line in print_board(board).splitlines())


def classifier_result(fold: int, predicted: list[int], true: list[int], labels: str = "xyz") -> RunResult:
    predictions = LabelPredictions(np.array(predicted), np.array(true), tuple(labels))
    scores = HeldOutScores(
        kind="classifier", scores=name_scores(predictions.scores(resamples=0)), parameters=1, text=f"{fold}",
        tokenizer="", tokens=len(true), predictions=predictions,
    )  # fmt: skip
    return RunResult(name="a", seed=1, fold=fold, scores=scores)


def test_pooled_scores_are_those_of_all_predictions() -> None:
    folds = [([0, 1, 1], [0, 1, 2]), ([2, 2], [2, 0]), ([0], [1])]
    board = leaderboard([classifier_result(n, *fold) for n, fold in enumerate(folds, 1)], folds=3)
    together = label_scores([0, 1, 1, 2, 2, 0], [0, 1, 2, 2, 0, 1], "xyz", resamples=0)
    spreads = board.rows[0].scores
    assert {name: spread.pooled for name, spread in spreads.items() if isinstance(spread, FoldSpread)} == {
        "accuracy": together.accuracy, "f1": together.f1,
    }  # fmt: skip
    assert together.f1 != pytest.approx(spreads["f1"].mean)
    assert any(line.split()[:2] == ["pooled", f"{together.accuracy:.1%}"] for line in print_board(board).splitlines())
    assert leaderboard_dict(board)["rows"][0]["f1"]["pooled"] == together.f1


def test_different_labels_are_not_pooled() -> None:
    first, second = classifier_result(1, [0], [0]), classifier_result(2, [1], [1], "xy")
    assert "pooled" not in print_board(leaderboard([first, second], folds=2))
    assert "pooled" not in print_board(leaderboard([first], folds=2))  # a fold is missing
    numbers = [NumberPredictions(np.array([1.0, 2.0]), np.array([1.0, 4.0])), NumberPredictions(np.ones(1), np.ones(1))]
    assert pool_scores(numbers)["rmse"] == pytest.approx(math.sqrt(4 / 3))
    sets = [MultiLabelPredictions(np.eye(2) > 0, np.ones((2, 2)) > 0, ("x", "y"))] * 2
    assert pool_scores(sets) == name_scores(sets[0].scores(resamples=0))
    assert pool_scores([*numbers, None]) == {}


def test_files_contain_deviation_interval_and_difference() -> None:
    board = leaderboard(RESULTS, folds=3)
    table = json.loads(json.dumps(leaderboard_dict(board), allow_nan=False))
    spread, (low, high) = FoldSpread.of_folds(A, 3), FoldSpread.of_folds(A, 3).interval or (0, 0)
    assert table["folds"] == 3
    jsonschema.validate({**table, "picture": "comparison.png"}, json.loads(SCHEMA.read_text()))
    assert table["rows"][0]["nats_per_label"] == {
        "mean": spread.mean, "min": 1.0, "max": 1.4, "std": spread.std, "interval": [low, high],
    }  # fmt: skip
    assert [run["fold"] for run in table["rows"][0]["runs"]] == [1, 2, 3]
    assert table["differences"]["b"]["difference"] == pytest.approx(np.mean(B) - np.mean(A))
    first, _ = csv.DictReader(io.StringIO(leaderboard_csv(board)))
    assert (first["name"], first["runs"]) == ("a", "3")
    ends = ("_std", "_interval_low", "_interval_high")
    assert [float(first[f"nats_per_label{end}"]) for end in ends] == [spread.std, low, high]
    lost = leaderboard([*RESULTS[:3], result("a", 1, 1.0), result("a", 2, None), result("a", 3, None)], folds=3)
    assert json.loads(json.dumps(leaderboard_dict(lost), allow_nan=False))["rows"][1]["accuracy"]["interval"] is None
