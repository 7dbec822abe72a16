"""The methods of `tercet.Run` that evaluate a model and list its errors."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from tercet.checkpoint import TrainedModel

if TYPE_CHECKING:
    from tercet.data import CustomDataset
    from tercet.evaluate import ErrorOptions, EvaluationOptions, ModelErrors, Scores


@dataclass(frozen=True, kw_only=True, repr=False)
class RunEvaluation:
    """A trained model that can be evaluated."""

    trained_model: TrainedModel

    def evaluate(
        self, data: "str | Path | CustomDataset | None" = None, **settings: "Unpack[EvaluationOptions]"
    ) -> "Scores":
        """Return the scores of the model on held-out data, or on all of `data`.

        Held-out data is the validation part of the training data, or for translators the test part if there is one.

        Args:
            data: File, folder, named dataset, or dataset of your own. For a translator, pass `source` and `target`
                instead.
            settings: Settings of the model's task; see `tercet.evaluate.EvaluationOptions`.

        Raises:
            UserError: If the data is missing, or has changed since the training.
        """
        from tercet.evaluate import evaluation_of

        return evaluation_of(self.trained_model).evaluate(data, **settings)

    def find_errors(
        self, data: "str | Path | CustomDataset | None" = None, **options: "Unpack[ErrorOptions]"
    ) -> "ModelErrors":
        """Return the worst predictions of the model on held-out data, or on all of `data`, as `tercet errors` does.

        The losses and predictions are those from which `evaluate` computes its scores.

        Args:
            data: File, folder, named dataset, or dataset of your own. For a translator, pass `source` and `target`
                instead.
            options: Settings of `tercet.evaluate.ErrorOptions`, such as top=20 or min_length=5.

        Returns:
            Worst texts and tokens of a model of text, worst sentence pairs of a translator, confusions of a classifier,
            or largest errors of a regression.

        Raises:
            UserError: If a setting does not apply to the model, the data is missing or has changed since the training,
                or no text matches the filters.
        """
        from tercet.evaluate import find_errors

        return find_errors(self.trained_model, data, **options)
