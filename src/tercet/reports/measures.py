"""Validation measures other than the loss, and their formats in a report."""

from typing import NamedTuple


class ValidationMeasure(NamedTuple):
    """A measure of the quality of a model.

    Attributes:
        heading: Title of its row in a table and of its chart.
        form: Format of a value, for `str.format`.
        higher_is_better: If True, the best value is the highest one.
    """

    heading: str
    form: str
    higher_is_better: bool = True


MEASURES = {  # by the column of metrics.csv
    "val/objective": ValidationMeasure("Objective", "{:.4g}", False),
    "val/bleu": ValidationMeasure("BLEU, greedy", "{:.2f}"),
    "val/accuracy": ValidationMeasure("Accuracy", "{:.1%}"),
    "val/f1": ValidationMeasure("F1", "{:.1%}"),
    "val/rmse": ValidationMeasure("RMSE", "{:.4g}", False),
    "val/pearson": ValidationMeasure("Pearson correlation", "{:.3f}"),
    "val/spearman": ValidationMeasure("Spearman correlation", "{:.3f}"),
    "val/recall_at_1": ValidationMeasure("Recall@1", "{:.1%}"),
    "val/recall_at_10": ValidationMeasure("Recall@10", "{:.1%}"),
    "val/mrr": ValidationMeasure("MRR", "{:.3f}"),
    "val/ndcg_at_10": ValidationMeasure("nDCG@10", "{:.3f}"),
}
