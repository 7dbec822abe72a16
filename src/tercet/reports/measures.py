"""Validation measures other than the loss, and their formats in a report."""

from typing import NamedTuple


class ValidationMeasure(NamedTuple):
    heading: str
    form: str  # for `str.format`
    higher_is_better: bool = True


MEASURES = {  # by the column of metrics.csv
    "val/bleu": ValidationMeasure("BLEU, greedy", "{:.2f}"),
    "val/accuracy": ValidationMeasure("Accuracy", "{:.1%}"),
    "val/f1": ValidationMeasure("F1", "{:.1%}"),
    "val/rmse": ValidationMeasure("RMSE", "{:.4g}", False),
    "val/pearson": ValidationMeasure("Pearson correlation", "{:.3f}"),
    "val/spearman": ValidationMeasure("Spearman correlation", "{:.3f}"),
}
