"""Metrics of other packages: numbers that `tercet evaluate` reports with their 95 % intervals.

A metric is called with the predictions and the references of all documents, in the same order. If it returns one number
per document, the score is their mean, and resamples need no further calls. If it returns a single number, such as a
corpus score, it is called again for each resample of the documents (see `bootstrap`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from tercet.config import UserError, parse, to_plain
from tercet.evaluate.bootstrap import RESAMPLES, WeightedScores
from tercet.evaluate.score_summary import MetricScore, finite
from tercet.messages import describe_error, show
from tercet.settings_yaml import parse_value
from tercet.spec import Custom, spec

CALL_COST = 100  # numbers read per document by one call, for the number of resamples


class CustomMetric(Custom):
    """Base class of the specs of metrics in other packages."""

    def score(
        self, predictions: Sequence[Any], references: Sequence[Any]
    ) -> "float | Sequence[float] | Mapping[str, float | Sequence[float]]":
        """Return the score of the predictions of all documents.

        Args:
            predictions: Prediction for each document. Translators: a text. One label per text: its name. One label per
                word: a list of names, one for each labeled word. Several labels per text: a list of names. Regression:
                a number. Language models and masked language models: a float32 array (T,) of ln p of each scored token.
            references: Reference of each document, in the same form. Language models and masked language models: the
                text of the document.

        Returns:
            A number; one number per document, whose mean is the score; or a mapping from names to these. NaN stands for
            an undefined score.
        """
        raise NotImplementedError(f"{self.kind} has no method score")


Metrics = Sequence[CustomMetric | str]


@spec
class _Selection:
    """A metric as it is selected on the command line."""

    metric: CustomMetric | None = None


def read_metrics(metrics: Metrics) -> tuple[CustomMetric, ...]:
    """Return metrics; texts are YAML: an import path, or `{kind: "my_package.fbeta:FBeta", beta: 2}`.

    Raises:
        UserError: If a metric cannot be imported, is not allowed, has invalid settings, or two are equal.
        TypeError: If a metric is a class.
    """
    read = list[CustomMetric]()
    for metric in metrics:
        if isinstance(metric, type):
            raise TypeError(f"the metric {metric.__name__} is a class; pass an object, such as {metric.__name__}()")
        if isinstance(metric, str):
            selection = parse(_Selection, {"metric": parse_value(metric, name=f"--metric {show(metric)}")})
            if selection.metric is None:
                raise UserError(f"--metric {show(metric)}: expected an import path such as my_package.fbeta:FBeta")
            metric = selection.metric
        read.append(metric)
    name_metrics(read)
    return tuple(read)


def name_metrics(metrics: Sequence[CustomMetric]) -> list[str]:
    """Return the names of metrics: their classes, such as FBeta.

    Several metrics of one class are called like FBeta(beta=2), with the settings that differ between them. Classes of
    the same name are called by their import paths.

    Raises:
        UserError: If two have the same name, because they are equal.
    """
    names = list[str]()
    for metric in metrics:
        name = type(metric).__name__
        kinds = {other.kind for other in metrics if type(other).__name__ == name}
        settings = [to_plain(other) for other in metrics if other.kind == metric.kind]
        differing = [
            f"{key}={show(value)}"
            for key, value in to_plain(metric).items()
            if any(other[key] != value for other in settings)
        ]
        name = metric.kind if len(kinds) > 1 else name
        names.append(f"{name}({', '.join(differing)})" if differing else name)
    if repeated := [name for name in names if names.count(name) > 1]:
        raise UserError(f"two metrics are called {repeated[0]}; pass one of them, or change a setting of the other")
    return names


def check_metrics(
    metrics: Sequence[CustomMetric], references: Sequence[Any], predictions: Sequence[Any] | None = None
) -> None:
    """Check that metrics accept some predictions, before those of a model are computed.

    Args:
        metrics: Metrics.
        references: Reference of each document.
        predictions: Predictions to try; by default the references.

    Raises:
        UserError: If a metric raises, or returns something else than numbers.
    """
    for metric in metrics:
        _call(metric, type(metric).__name__, references if predictions is None else predictions, references)


def measure_metrics(
    metrics: Sequence[CustomMetric],
    predictions: Sequence[Any],
    references: Sequence[Any],
    *,
    resamples: int = RESAMPLES,
) -> dict[str, MetricScore]:
    """Return the scores of all documents by name, with intervals unless `resamples` is 0.

    A single number is called like its metric (see `name_metrics`); the numbers of a mapping are called
    `FBeta.precision`.

    Args:
        metrics: Metrics.
        predictions, references: Prediction and reference of each document, as in `CustomMetric.score`.
        resamples: Number of resamples of the intervals.

    Raises:
        UserError: If a metric raises, or returns something else than numbers, or two metrics are equal.
    """
    if not metrics:
        return {}
    weighted = weigh_metrics(metrics, predictions, references)
    intervals = weighted.intervals(resamples=resamples)
    scores = dict[str, MetricScore]()
    for name, value in weighted.values().items():
        interval = intervals.get(name)
        is_finite = interval is not None and bool(np.isfinite(interval).all())
        scores[name] = MetricScore(value=finite(value), interval=interval if is_finite else None)
    return scores


def weigh_metrics(
    metrics: Sequence[CustomMetric], predictions: Sequence[Any], references: Sequence[Any], *, digest: str = ""
) -> WeightedScores:
    """Return the scores of metrics as functions of the weights of the documents; arguments as in `measure_metrics`.

    Args:
        metrics: Metrics.
        predictions, references: Prediction and reference of each document.
        digest: SHA-256 of the references.

    Raises:
        UserError: If a metric raises, or returns something else than numbers, or two metrics are equal.
    """
    titles = name_metrics(metrics)
    parts = [_weigh(metric, title, predictions, references) for metric, title in zip(metrics, titles, strict=True)]
    names = tuple(name for part_names, _, _ in parts for name in part_names)

    def measure(weights: np.ndarray) -> np.ndarray:
        return np.concatenate([measure_part(weights) for _, measure_part, _ in parts])

    return WeightedScores(
        names=names,
        documents=len(references),
        measure=measure,
        digest=digest,
        size=sum(size for _, _, size in parts),
    )


def _weigh(
    metric: CustomMetric, title: str, predictions: Sequence[Any], references: Sequence[Any]
) -> tuple[list[str], Callable[[np.ndarray], np.ndarray], int]:
    """Return the names of the scores of a metric, a function of the weights, and the numbers that one call reads."""
    results = _call(metric, title, predictions, references)
    whole = len(references)
    has_corpus_score = any(isinstance(result, float) for result in results.values())

    def measure(weights: np.ndarray) -> np.ndarray:
        drawn = results
        if has_corpus_score and not (weights == 1).all():
            numbers = np.repeat(np.arange(whole), weights.astype(np.int64)).tolist()
            drawn = _call(metric, title, [predictions[i] for i in numbers], [references[i] for i in numbers])
        scores = list[float]()
        for name, result in results.items():
            if isinstance(result, float):
                scores.append(float(np.mean(drawn.get(name, np.nan))))
            else:
                scores.append(float(weights @ result / weights.sum()))
        return np.array(scores)

    return list(results), measure, whole * (CALL_COST if has_corpus_score else len(results))


def _call(
    metric: CustomMetric, title: str, predictions: Sequence[Any], references: Sequence[Any]
) -> dict[str, float | np.ndarray]:
    """Return the results of a metric by name: a number, or an array with a number for each document."""
    try:
        result: Any = metric.score(list(predictions), list(references))
    except Exception as error:  # the code is the user's, and may raise anything
        raise UserError(
            f"{metric.kind}: score failed for {len(references):,} documents: {describe_error(error)}; correct it, and "
            "return nan if a score is undefined"
        ) from None
    named = {title: result}
    if isinstance(result, Mapping):
        named = {f"{title}.{name}": value for name, value in cast("Mapping[Any, Any]", result).items()}
    return {name: _number_or_array(metric, name, value, len(references)) for name, value in named.items()}


def _number_or_array(metric: CustomMetric, name: str, value: Any, documents: int) -> float | np.ndarray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        array = None
    if isinstance(value, str) or value is None or array is None or array.shape not in ((), (documents,)):
        found = show(value) if array is None or value is None or isinstance(value, str) else f"shape {array.shape}"
        raise UserError(
            f"{metric.kind}: {name} is {found}, expected a number, or {documents:,} numbers, one per document"
        )
    return float(array) if array.ndim == 0 else array
