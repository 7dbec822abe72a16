"""Base classes of all scores, which convert them for JSON."""

import math
from dataclasses import asdict, dataclass, field
from typing import Any

from tercet.evaluate.bootstrap import Interval, format_interval
from tercet.notebook import Summary, Table


@dataclass(frozen=True, kw_only=True, repr=False)
class ScoreSummary(Summary):
    """Scores of a model on some data."""

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON; NaN and infinity, which JSON does not support, become None."""
        return {name: finite(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, kw_only=True)
class MetricScore:
    """Score of a metric of another package.

    Attributes:
        value: Score of all documents; None if it is undefined or not finite.
        interval: 95 % interval; None if it was not computed.
    """

    value: float | None
    interval: Interval | None


@dataclass(frozen=True, kw_only=True, repr=False)
class PredictionScores(ScoreSummary):
    """Scores of predictions, to which metrics of other packages can be applied.

    Attributes:
        metrics: Scores of metrics of other packages, by name.
    """

    metrics: dict[str, MetricScore] = field(default_factory=dict[str, MetricScore])

    def metrics_table(self) -> tuple[Table | str, ...]:
        """Return a table of `metrics` and the empty line above it; empty without metrics."""
        rows = [
            (name, "undefined" if score.value is None else f"{score.value:.4g}", format_interval(score.interval, ".4g"))
            for name, score in self.metrics.items()
        ]
        return ("", Table(header=("metric", "score", "95 % interval"), rows=rows)) if rows else ()


def finite(value: Any) -> Any:
    """Return None for NaN and infinity, and any other value unchanged."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
