"""Evaluation of a classifier or regression on the validation part of its labeled examples."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tercet.checkpoint import Encoder
from tercet.checkpoint.training_data import open_training_data, other_data_hint
from tercet.config import UserError, parse
from tercet.data import LabelCorpus, LabeledExamples, LabelsSpec, prepare_labels
from tercet.data.sources.custom_dataset import CustomDataset, plain_source
from tercet.data.sources.fasta import SUFFIXES
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.specs import SEQUENCE_SETTINGS
from tercet.evaluate.bootstrap import RESAMPLES, WeightedScores, join_scores
from tercet.evaluate.custom_metrics import Metrics, measure_metrics, read_metrics, weigh_metrics
from tercet.evaluate.digest import digest
from tercet.evaluate.labels import LabelPredictions, LabelScores, predict_labels
from tercet.evaluate.multi_label import MultiLabelPredictions, MultiLabelScores, predict_multi_label
from tercet.evaluate.pooled import Predictions, name_scores
from tercet.evaluate.regression import NumberPredictions, RegressionScores, predict_numbers
from tercet.evaluate.tasks.evaluation import Evaluation, HeldOutScores, Kind
from tercet.models import EncoderOnly
from tercet.tokens import Tokenizer

AnyLabelScores = LabelScores | MultiLabelScores | RegressionScores
KINDS: dict[type, Kind] = {
    LabelScores: "classifier", MultiLabelScores: "multi-label classifier", RegressionScores: "regression",
}  # fmt: skip
FIELDS = (  # settings that also apply to other files
    "text_field", "label_field", "label_separator", "label_fields", "label_pattern", *SEQUENCE_SETTINGS,
)  # fmt: skip


@dataclass(frozen=True)
class LabelsEvaluation(Evaluation[LabeledExamples]):
    trained_model: Encoder

    def load(
        self,
        data: str | Path | CustomDataset | None = None,
        *,
        encoding: str | None = None,
        text_field: str | None = None,
    ) -> LabeledExamples:
        """Return the validation part of the model's data, or all labeled examples of the file `data`.

        Args:
            data: A file of labeled examples.
            encoding, text_field: How `data` is read, as in `LabelsSpec`; `text_field` is by default that of training.

        Raises:
            UserError: If the data is missing, or has changed since the training.
        """
        trained_model, head = self.trained_model, self.trained_model.label_head
        trained_on = trained_model.trained_on(LabelsSpec)
        if data is not None:
            fields = {name: getattr(trained_on, name) for name in FIELDS} if trained_on else dict[str, Any]()
            if uncompressed_suffix(Path(str(data))) not in SUFFIXES:
                fields.pop("label_pattern", None)  # a table has no headers
            fields |= {} if text_field is None else {"text_field": text_field}
            fields |= {"over": head.over, "problem_type": head.problem_type}
            settings = {"source": plain_source(data), "encoding": encoding or "utf-8", **fields}
            spec = parse(LabelsSpec, {**settings, "validation": {"kind": "held_out", "source": settings["source"]}})
            return prepare_labels(spec, tokenizer=trained_model.tokenizer).validation
        corpus = open_training_data(trained_model, download=True)
        if corpus is None:
            raise UserError(
                f"{trained_model.folder} does not contain its training data settings; {other_data_hint(trained_model)}"
            )
        assert isinstance(corpus, LabelCorpus)
        return corpus.validation

    def load_held_out(self) -> LabeledExamples:
        return self.load()

    def score(
        self, labeled: LabeledExamples, *, metrics: Metrics = (), resamples: int = RESAMPLES, **settings: Any
    ) -> AnyLabelScores:
        """Return the scores for the examples' kind of labels.

        Args:
            labeled: Labeled examples.
            metrics: Metrics of other packages, or their import paths.
            resamples: Number of resamples of the intervals; 0 for no intervals.
            settings: Other arguments of `score_labels`.

        Raises:
            UserError: If a metric cannot be imported or fails, or as in `score_labels`.
        """
        own_metrics = read_metrics(metrics)
        predictions = predict(self.trained_model.model, self.trained_model.tokenizer, labeled, **settings)
        scores = predictions.scores(resamples=resamples)
        if not own_metrics:
            return scores
        outputs = name_outputs(predictions, over=labeled.over)
        return replace(scores, metrics=measure_metrics(own_metrics, *outputs, resamples=resamples))

    def weighted(self, data: LabeledExamples, *, metrics: Metrics = ()) -> WeightedScores:
        own_metrics = read_metrics(metrics)
        predictions = predict(self.trained_model.model, self.trained_model.tokenizer, data)
        if not own_metrics:
            return predictions.weighted
        return join_scores(predictions.weighted, weigh_metrics(own_metrics, *name_outputs(predictions, over=data.over)))

    def score_held_out(self, data: LabeledExamples) -> HeldOutScores:
        predictions = predict(self.trained_model.model, self.trained_model.tokenizer, data)
        scores, card = predictions.scores(resamples=0), self.trained_model.card
        loss = card.metrics.get("val/loss")  # over the same labels, from the training
        kind, labels = KINDS[type(scores)], self.trained_model.label_head.labels
        nats = {} if loss is None or kind == "regression" else {"nats_per_label": loss}
        return HeldOutScores(
            kind=kind,
            scores=nats | name_scores(scores),
            parameters=self.trained_model.n_parameters,
            text=digest(card.data_hash, str(scores.count), *labels),
            tokenizer=self.trained_model.tokenizer.hash,
            tokens=scores.count,
            predictions=predictions,
        )

    def evaluate(self, data: str | Path | CustomDataset | None = None, **settings: Any) -> AnyLabelScores:
        return self.score(self.load(data), **settings)


def name_outputs(predictions: Predictions, *, over: Literal["texts", "tokens"]) -> tuple[list[Any], list[Any]]:
    """Return the prediction and the reference of each text, as in `CustomMetric.score`.

    Args:
        predictions: Predictions for the labels of texts or words.
        over: Labeled unit.
    """
    match predictions:
        case LabelPredictions():
            names = np.array(predictions.labels, dtype=object)
            predicted, references = names[predictions.predicted], names[predictions.targets]
            if over == "texts" or predictions.documents is None:
                return predicted.tolist(), references.tolist()
            ends = np.flatnonzero(np.diff(predictions.documents)) + 1  # words are in the order of their texts
            texts, true_texts = np.split(predicted, ends), np.split(references, ends)
            return [part.tolist() for part in texts], [part.tolist() for part in true_texts]
        case MultiLabelPredictions():
            names = np.array(predictions.labels, dtype=object)
            predicted, references = predictions.predicted, predictions.targets
            return [names[row].tolist() for row in predicted], [names[row].tolist() for row in references]
        case NumberPredictions():
            return predictions.predicted.tolist(), predictions.targets.tolist()


def score_classifier(
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, *, resamples: int = RESAMPLES, **settings: Any
) -> AnyLabelScores:
    """Return the scores for the examples' kind of labels; arguments as in `score_labels`."""
    return predict(model, tokenizer, labeled, **settings).scores(resamples=resamples)


def predict(model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, **settings: Any) -> Predictions:
    """Return the predictions for the examples' kind of labels; arguments as in `score_labels`."""
    match labeled.problem_type:
        case "single_label_classification":
            return predict_labels(model, tokenizer, labeled, **settings)
        case "multi_label_classification":
            return predict_multi_label(model, tokenizer, labeled, **settings)
        case "regression":
            return predict_numbers(model, tokenizer, labeled, **settings)
