"""The reliability diagram shows the accuracy and the number of predictions of each bin."""

import numpy as np
import pytest

from tercet.evaluate import label_scores
from tercet.plots import NothingToDraw, ReliabilityBin, plot_calibration


def test_reliability_diagram_shows_the_bins() -> None:
    confidence = np.array([0.9, 0.91, 0.55])
    probabilities = np.stack((confidence, 1 - confidence), 1)
    scores = label_scores([0, 0, 0], [0, 1, 0], ("a", "b"), probabilities=probabilities, resamples=0)
    assert scores.ece is not None
    bins = [ReliabilityBin(row.low, row.high, row.confidence, row.accuracy, row.count) for row in scores.calibration]
    figure = plot_calibration(bins, error=scores.ece, title="run")
    upper, lower = figure.axes
    assert np.array(upper.lines[1].get_xydata()) == pytest.approx(np.array([[0.55, 1], [0.905, 0.5]]))
    heights = [patch.get_height() for patch in lower.patches]  # pyright: ignore[reportAttributeAccessIssue]
    assert heights == [row.predictions for row in bins]
    assert len(bins) == 15
    with pytest.raises(NothingToDraw, match="no predictions"):
        plot_calibration([row._replace(predictions=0) for row in bins], error=0.0, title="run")
