"""Views of a run for notebooks: one line, a table with the loss curve, the metrics, or a figure."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint import Card, TrainedModel
from tercet.checkpoint.find_run import find_metrics
from tercet.checkpoint.metrics import read_metrics, to_history
from tercet.checkpoint.run_folder import RunFolder
from tercet.checkpoint.training_problems import TrainingProblem
from tercet.config import UserError
from tercet.models import AnyModel
from tercet.plots.loss_curve import loss_curve
from tercet.tokens import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, repr=False)
class RunView:
    """Views of a trained model and of the metrics of its training."""

    trained_model: TrainedModel

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.trained_model.describe()})"

    def _repr_html_(self) -> str:
        curve = ""
        with suppress(UserError):  # a model without a run has no curve
            curve = loss_curve(read_metrics(self._metrics))
        return self.trained_model.to_html() + curve

    @property
    def model(self) -> AnyModel:
        return self.trained_model.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.trained_model.tokenizer

    @property
    def card(self) -> Card:
        return self.trained_model.card

    @property
    def folder(self) -> Path:
        return self.trained_model.folder

    @property
    def history(self) -> dict[str, list[float]]:
        """The metrics of the training by column: "step", "train/loss", "val/loss", ...

        Values are NaN at steps without a measurement. `pandas.DataFrame(run.history)` has one row per logged step.

        Raises:
            UserError: If the model was not trained here, or the file is damaged.
        """
        return to_history(read_metrics(self._metrics))

    @property
    def problems(self) -> list[TrainingProblem]:
        """Problems of the training that the metrics show, such as divergence or overfitting; empty if there are none.

        Raises:
            UserError: If a file of the run is damaged.
        """
        run = RunFolder(self._metrics.parent)
        run.metrics.refresh()
        return run.problems()

    def plot(self) -> "Figure":
        """Plot the losses against steps, and scores if there are any.

        Notebooks display the figure; `savefig("loss.png")` writes it to a file.

        Raises:
            UserError: If the model was not trained here, the file is damaged, or no loss above 0 was logged yet.
        """
        from tercet.plots import plot_loss

        return plot_loss(self._metrics, title=self._metrics.resolve().parent.name)

    @property
    def _metrics(self) -> Path:
        if (path := find_metrics(self.folder)) is not None:
            return path
        raise UserError(f"{self.folder} has no metrics.csv, because it was not trained here; load a run folder")
