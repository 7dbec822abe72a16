"""A classifier: how often it is right on the validation part of its labelled texts."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.checkpoint import Encoder
from tercet.config import UserError, parse
from tercet.data import Labelled, LabelsSpec, prepare_labelled
from tercet.evaluate.labels import LabelScores, score_labels
from tercet.evaluate.tasks.evaluation import Evaluation, HeldOutScores, check_present, check_unchanged, digest


@dataclass(frozen=True)
class LabelsEvaluation(Evaluation[Labelled]):
    trained: Encoder

    def load(
        self, data: str | Path | None = None, *, encoding: str | None = None, text_field: str | None = None
    ) -> Labelled:
        """The labelled texts of its own data's validation part, or all of the file `data`.

        Args:
            encoding, text_field: how `data` is read, as in `LabelsSpec`; the second by default as in training.

        Raises:
            UserError: where the data is not there, or no longer what the model was trained on.
        """
        trained, over = self.trained, self.trained.label_head.over
        trained_on = trained.trained_on(LabelsSpec)
        if data is not None:
            fields = {"text_field": trained_on.text_field, "label_field": trained_on.label_field} if trained_on else {}
            fields |= {} if text_field is None else {"text_field": text_field}
            settings = {"source": str(data), "over": over, "encoding": encoding or "utf-8", **fields}
            spec = parse(LabelsSpec, {**settings, "validation": {"kind": "held_out", "source": str(data)}})
            return prepare_labelled(spec, tokenizer=trained.tokenizer).validation
        if trained_on is None:
            raise UserError(f"{trained.folder} does not say what it was trained on; give --data")
        check_present(trained, trained_on, "--data")
        corpus = prepare_labelled(trained_on, tokenizer=trained.tokenizer)
        check_unchanged(trained, trained_on.source, corpus.hash, "--data")
        return corpus.validation

    def load_held_out(self) -> Labelled:
        return self.load()

    def score(self, labelled: Labelled, **settings: Any) -> LabelScores:
        """How often it is right; settings as in `score_labels`."""
        return score_labels(self.trained.model, self.trained.tokenizer, labelled, **settings)

    def score_held_out(self, data: Labelled) -> HeldOutScores:
        scores, card = self.score(data), self.trained.card
        loss = card.metrics.get("val/loss")  # over the same labels, by the training
        return HeldOutScores(
            kind="classifier",
            scores={
                **({} if loss is None else {"nats_per_label": loss}), "accuracy": scores.accuracy, "f1": scores.f1,
            },
            parameters=self.trained.n_parameters,
            text=digest(card.data_hash, str(scores.count), *scores.labels),
            tokenizer=self.trained.tokenizer.hash,
            tokens=scores.count,
        )  # fmt: skip

    def evaluate(self, data: str | Path | None = None, **settings: Any) -> LabelScores:
        return self.score(self.load(data), **settings)
