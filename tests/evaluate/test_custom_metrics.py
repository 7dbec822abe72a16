"""Metrics of other packages have the intervals of the built-in scores, and their faults are reported by name."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.evaluate import CustomMetric, MetricScore, label_scores, paired_differences
from tercet.evaluate.custom_metrics import check_metrics, measure_metrics, read_metrics, weigh_metrics
from tercet.evaluate.labels import LabelPredictions
from tercet.evaluate.multi_label import MultiLabelPredictions
from tercet.evaluate.regression import NumberPredictions
from tercet.evaluate.tasks.labels import name_outputs
from tercet.spec import Share, spec


@spec
class Accuracy(CustomMetric):
    def score(self, predictions: Sequence[Any], references: Sequence[Any]) -> float:
        return float(np.mean([a == b for a, b in zip(predictions, references, strict=True)]))


@spec
class Correct(CustomMetric):
    """Accuracy, as one number per document."""

    value: Share = 1.0

    def score(self, predictions: Sequence[Any], references: Sequence[Any]) -> list[float]:
        return [self.value * (a == b) for a, b in zip(predictions, references, strict=True)]


def returning(function: Any) -> CustomMetric:
    @spec
    class Part(CustomMetric):
        def score(self, predictions: Sequence[Any], references: Sequence[Any]) -> Any:
            return function(predictions, references)

    return Part()


def draws(n: int = 60) -> tuple[list[str], list[str]]:
    generator = np.random.default_rng(1)
    references = generator.choice(["a", "b", "c"], n).tolist()
    predictions = [text if keep else "a" for text, keep in zip(references, generator.random(n) < 0.7, strict=True)]
    return predictions, references


def test_both_forms_of_accuracy_have_the_interval_of_the_classifier_score() -> None:
    predictions, references = draws()
    built_in = label_scores(*(np.array(["abc".index(x) for x in side]) for side in (predictions, references)), "abc")
    scores = measure_metrics([Accuracy(), Correct()], predictions, references)
    assert list(scores) == ["Accuracy", "Correct"]
    for score in scores.values():
        assert score.value == pytest.approx(built_in.accuracy)
        assert score.interval == pytest.approx(built_in.intervals["accuracy"])


def test_numbers_per_document_need_one_call() -> None:
    calls = list[int]()

    def count(predictions: Sequence[Any], references: Sequence[Any]) -> np.ndarray:
        calls.append(len(references))
        return np.arange(len(references))

    scores = measure_metrics([returning(count)], [0] * 9, [0] * 9)
    assert (calls, scores["Part"].value) == ([9], 4.0)


def test_mapping_has_a_score_for_each_name_and_may_mix_forms() -> None:
    metric = returning(lambda predictions, _: {"sum": sum(predictions), "each": predictions, "none": math.nan})
    scores = measure_metrics([metric], [1, 2, 6], [0, 0, 0])
    assert (scores["Part.sum"].value, scores["Part.each"].value) == (9.0, 3.0)
    assert scores["Part.none"] == MetricScore(value=None, interval=None)
    low, high = scores["Part.sum"].interval or (0, 0)
    assert 3 <= low < 9 < high <= 18
    assert measure_metrics([metric], [1, 2, 6], [0, 0, 0], resamples=0)["Part.sum"].interval is None


@given(weights=st.lists(st.integers(0, 5), min_size=4, max_size=4).filter(any))
@settings(max_examples=30)
def test_weights_repeat_documents(weights: list[int]) -> None:
    predictions, references = ["a", "b", "b", "a"], ["a", "b", "a", "c"]
    weighted = weigh_metrics([Accuracy(), Correct(value=0.5)], predictions, references)
    expected = sum(weights[:2]) / sum(weights)
    assert weighted.measure(np.array(weights, dtype=np.float64)) == pytest.approx([expected, expected / 2])


def test_differences_of_two_models_are_paired() -> None:
    predictions, references = draws()
    better = [a if i % 3 else b for i, (a, b) in enumerate(zip(predictions, references, strict=True))]
    first, second = (weigh_metrics([Accuracy()], side, references) for side in (better, predictions))
    difference = paired_differences(first, second)["Accuracy"]
    assert difference.difference == pytest.approx(difference.first - difference.second)
    assert difference.interval[0] <= difference.difference <= difference.interval[1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda p, r: [1.0], r"Part is shape \(1,\), expected a number, or 3 numbers, one per document"),
        (lambda p, r: "0.5", "Part is '0.5', expected a number"),
        (lambda p, r: {"x": [1.0, 2.0]}, r"Part.x is shape \(2,\), expected a number"),
        (lambda p, r: None, "Part is None, expected a number"),
        (lambda p, r: 1 / 0, "score failed for 3 documents: division by zero; correct it, and return nan if"),
    ],
)
def test_wrong_result_is_rejected_by_the_name_of_the_metric(function: Any, message: str) -> None:
    with pytest.raises(UserError, match=rf"test_custom_metrics:.*Part: {message}"):
        check_metrics([returning(function)], [1, 2, 3])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (["fbeta"], "an import path such as"),
        (["null"], "expected an import path such as"),
        (["{kind: 'other_package.fbeta:FBeta', beta: 2}"], "code of the package other_package, which is not allowed"),
        ([f"{{kind: '{Correct.kind}', value: 2}}"], "value=2.0 must be at least 0 and at most 1"),
        ([Correct.kind, Correct.kind], "two metrics are called Correct"),
        (["{kind"], "is not valid YAML"),
    ],
)
def test_wrong_selection_is_rejected(texts: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        read_metrics(texts)


def test_selection_has_settings() -> None:
    assert read_metrics([f"{{kind: '{Correct.kind}', value: 0.5}}", Accuracy()]) == (Correct(value=0.5), Accuracy())
    assert read_metrics([Accuracy.kind]) == (Accuracy(),)


def test_outputs_are_named_per_text() -> None:
    numbers = np.array([0, 1, 1, 0, 2])
    words = LabelPredictions(numbers, numbers[::-1].copy(), ("O", "B", "I"), documents=np.array([0, 0, 2, 5, 5]))
    assert name_outputs(words, over="tokens") == ([["O", "B"], ["B"], ["O", "I"]], [["I", "O"], ["B"], ["B", "O"]])
    assert name_outputs(words, over="texts")[0] == ["O", "B", "B", "O", "I"]
    several = np.array([[True, False], [True, True]])
    assert name_outputs(MultiLabelPredictions(several, ~several, ("x", "y")), over="texts") == (
        [["x"], ["x", "y"]], [["y"], []],
    )  # fmt: skip
    values = np.array([1.5, 2.0])
    assert name_outputs(NumberPredictions(values, values + 1), over="texts") == ([1.5, 2.0], [2.5, 3.0])


def test_class_in_place_of_a_metric_is_rejected() -> None:
    with pytest.raises(
        TypeError, match=r"the metric CustomMetric is a class; pass an object, such as CustomMetric\(\)"
    ):
        read_metrics([CustomMetric])  # type: ignore[list-item]
