"""What a run shows of itself: a line, a table with its loss curve, what its training noted, a picture."""

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint import Card, TrainedModel
from tercet.checkpoint.find_run import find_metrics
from tercet.checkpoint.metrics import read_metrics, to_history
from tercet.config import UserError
from tercet.models import AnyModel
from tercet.plots.loss_curve import loss_curve
from tercet.tokens import Tokenizer

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, kw_only=True, repr=False)
class RunView:
    """A trained model, and the training that it came from."""

    trained_model: TrainedModel

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.trained_model.describe()})"

    def _repr_html_(self) -> str:
        curve = ""
        with suppress(UserError):  # a model that was not trained here is shown without one
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
        """What the training noted, by column: "step", "train/loss", "val/loss", ...; NaN where nothing was measured at
        a step. `pandas.DataFrame(run.history)` is a row a logged step.

        Raises:
            UserError: where the model was not trained here, or the file is damaged.
        """
        return to_history(read_metrics(self._metrics))

    def plot(self) -> "Figure":
        """The losses against steps, and scores beside them where there are any; a notebook shows it, and
        `savefig("loss.png")` keeps it.

        Raises:
            UserError: as `history`, or where no loss was noted yet.
        """
        from tercet.plots import plot_loss

        return plot_loss(self._metrics, title=self._metrics.resolve().parent.name)

    @property
    def _metrics(self) -> Path:
        if (path := find_metrics(self.folder)) is not None:
            return path
        raise UserError(f"{self.folder} has no metrics.csv beside it: it was not trained here; load a run's folder")
