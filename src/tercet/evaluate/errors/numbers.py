"""Texts whose predicted numbers are farthest from the true ones."""

from dataclasses import dataclass

import numpy as np

from tercet.checkpoint import Encoder
from tercet.data import LabeledExamples
from tercet.evaluate.errors.labels import MAX_SHOWN, read_texts
from tercet.evaluate.errors.selection import ErrorSelection
from tercet.evaluate.regression import predict_numbers, regression_scores
from tercet.evaluate.score_summary import ScoreSummary
from tercet.messages import one_line, shorten
from tercet.notebook import Table, View


@dataclass(frozen=True, kw_only=True)
class WrongNumber:
    """A text with its true and predicted number.

    Attributes:
        index: Number of the text in the data, from 0.
        text: The text, as the tokenizer decodes it.
        pair: The second text of a pair; None for a single text.
        true, predicted: Numbers, in the unit of the labels.
        error: The predicted number minus the true one.
    """

    index: int
    text: str
    pair: str | None
    true: float
    predicted: float
    error: float


@dataclass(frozen=True, kw_only=True, repr=False)
class RegressionErrors(ScoreSummary):
    """Texts of a regression with the largest errors.

    Attributes:
        rmse, mae: Root mean square and mean absolute error of all texts, as `tercet evaluate` reports them.
        mean_error: Mean of the errors of all texts; above 0 if predictions are too large on average.
        count: Number of texts.
        selected: Number of texts that the filters select.
        worst: Texts with the largest absolute errors.
    """

    rmse: float
    mae: float
    mean_error: float
    count: int
    selected: int
    worst: tuple[WrongNumber, ...]

    def view(self) -> View:
        rows = [
            (f"{wrong.index:,}", f"{wrong.true:.5g}", f"{wrong.predicted:.5g}", f"{wrong.error:+.5g}",
             shorten(one_line(" | ".join(filter(None, (wrong.text, wrong.pair)))), MAX_SHOWN))
            for wrong in self.worst
        ]  # fmt: skip
        header = "text", "true", "predicted", "error", ""
        facts = (
            f"RMSE {self.rmse:.5g}; MAE {self.mae:.5g}; mean error {self.mean_error:+.5g}; {self.selected:,} of "
            f"{self.count:,} texts selected"
        )
        return View((Table(header=header, rows=rows, left=(4,), flush=True), "", facts))


def find_number_errors(
    regression: Encoder,
    labeled: LabeledExamples,
    selection: ErrorSelection,
    *,
    rare_tokens: np.ndarray | None,
    batch_tokens: int,
) -> RegressionErrors:
    """Return the texts with the largest errors; arguments and errors as in `find_label_errors`."""
    selected = selection.select(labeled.lengths, rare_tokens)
    predictions = predict_numbers(regression.model, regression.tokenizer, labeled, batch_tokens=batch_tokens)
    predicted, true = predictions.predicted, predictions.targets
    scores = regression_scores(predicted, true, resamples=0)
    errors = predicted - true
    order = selection.rank(np.where(selected, np.abs(errors), -np.inf))
    worst = list[WrongNumber]()
    for number in order.tolist():
        text, pair = read_texts(regression, labeled, number)
        worst.append(
            WrongNumber(
                index=number,
                text=text,
                pair=pair,
                true=float(true[number]),
                predicted=float(predicted[number]),
                error=float(errors[number]),
            )
        )
    return RegressionErrors(
        rmse=scores.rmse,
        mae=scores.mae,
        mean_error=float(errors.mean()),
        count=len(errors),
        selected=int(selected.sum()),
        worst=tuple(worst),
    )
