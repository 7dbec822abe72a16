"""Training task of classifiers: predict labels of texts or of their words, or a number for each text.

The texts of a step are sorted by length, so that micro-batches need little padding. The choice of texts for a step is a
function of the seed and the step.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from pathlib import Path

import numpy as np
from torch import Tensor

from tercet.checkpoint import Card, TrainedModel, save_model
from tercet.config import UserError
from tercet.data import LabeledExamples, label_rows, prepare_labels
from tercet.data.rows.batching import BATCH_TOKENS, cut_rows, deal_micro_batches
from tercet.data.rows.pair_rows import MIN_PAIR_LEN
from tercet.data.rows.strands import Strands
from tercet.evaluate.labels import LabelScores
from tercet.evaluate.multi_label import MultiLabelScores
from tercet.evaluate.tasks.labels import score_classifier
from tercet.messages import counted
from tercet.models import EncoderOnly
from tercet.models.inference import inference_mode
from tercet.objectives import (
    IGNORE_INDEX,
    THRESHOLD,
    LabeledBatch,
    Loss,
    classify_loss,
    collate_labels,
    label_logits,
    move_batch,
)
from tercet.training.recipe.recipe import LabelsRecipe
from tercet.training.tasks.plan import RowSums, plan_of
from tercet.training.tasks.task import describe_validation

SAMPLE_TOKENS = 40  # maximum tokens of a sample


class LabelsTask:
    static = False

    def __init__(self, recipe: LabelsRecipe, *, pretrained: TrainedModel | None = None, progress: bool = False) -> None:
        self.length = recipe.row_len
        is_pair = recipe.data.pair_field is not None
        if self.length < (MIN_PAIR_LEN if is_pair else 3):
            texts = "two texts and three" if is_pair else "a token between two"
            raise UserError(f"max_len={self.length} is too small for {texts} special tokens; increase it")
        corpus = self.corpus = prepare_labels(
            recipe.data, tokenizer=pretrained and pretrained.tokenizer, progress=progress
        )
        self.strands = Strands(corpus.tokenizer) if recipe.data.reverse_complement else None
        scale = corpus.scale
        recipe = recipe.with_labels(corpus.labels, mean=scale.mean, std=scale.std)
        self.recipe = recipe.with_vocabulary(corpus.tokenizer.vocab_size)
        self.head = self.recipe.classifier
        self.lengths = np.minimum(corpus.train.row_lengths, self.length)
        self.tokens = RowSums(self.lengths)
        self.micro = recipe.task.micro_batch(recipe.training.data_parallel_size)
        self.plan = plan_of(recipe.training, len(corpus.train), batch=recipe.task.batch_size, micro=self.micro)
        self.data_name, self.data_hash = corpus.name, corpus.hash
        self.tokenizer, self.tokenizer_hash = corpus.tokenizer, corpus.tokenizer.hash

    def describe(self) -> str:
        corpus, scale = self.corpus, self.corpus.scale
        cut, held_out_cut = (int((part.row_lengths > self.length).sum()) for part in (corpus.train, corpus.validation))
        texts = "texts" if corpus.train.first_lengths is None else "pairs"
        facts = [
            f"{len(corpus.train):,} training {texts}",
            f"numbers with mean {scale.mean:.4g} and deviation {scale.std:.4g}"
            if self.head.problem_type == "regression"
            else counted(len(corpus.labels), "label", "labels"),
            *([f"{corpus.skipped:,} left out for having no text"] if corpus.skipped else []),
            *([f"{corpus.lost:,} words without a token"] if corpus.lost else []),
            *([f"{cut:,} truncated to max_len"] if cut else []),
            *describe_validation(
                len(corpus.validation), texts, near_duplicates=corpus.near_duplicates, cut=held_out_cut
            ),
        ]
        return ", ".join(facts)

    def batches(self, step: int, rank: int, world: int) -> list[LabeledBatch]:
        numbers, epochs = self.plan.rows(step)
        lengths = self.lengths[numbers]
        groups = deal_micro_batches(np.arange(len(numbers)), lengths, size=self.micro, rank=rank, world=world)
        if self.strands is None:
            return [self._batch(self.corpus.train, numbers[group]) for group in groups]
        chosen = self.plan.strands(numbers, epochs)
        return [self._batch(self.corpus.train, numbers[group], chosen[group]) for group in groups]

    def tokens_before(self, step: int) -> int:
        return self.tokens.sum_before(self.plan, step)

    def validation_groups(self) -> list[np.ndarray]:
        lengths = np.minimum(self.corpus.validation.row_lengths, self.length)
        sorted_by_length = np.argsort(lengths, kind="stable")
        return cut_rows(sorted_by_length, ceil(int(lengths.max()) * len(lengths) / BATCH_TOKENS))

    def validation_batch(self, group: np.ndarray) -> LabeledBatch:
        return self._batch(self.corpus.validation, group)

    def loss(self, model: EncoderOnly, batch: LabeledBatch, *, smoothing: float = 0.0) -> Loss:
        return classify_loss(model, batch, smoothing=smoothing, objective=self.recipe.task.objective)

    def validate_batch(self, model: EncoderOnly, batch: LabeledBatch) -> tuple[Loss, dict[str, Tensor]]:
        logits = label_logits(model, batch)  # (N, L)
        loss = classify_loss(model, batch, logits=logits, objective=self.recipe.task.objective)
        match self.head.problem_type:
            case "single_label_classification":
                return loss, {"accuracy": (self._predict(logits) == batch.targets.flatten()).sum()}
            case "multi_label_classification":
                return loss, {"accuracy": (self._predict(logits) == batch.targets).all(-1).sum()}
            case "regression":
                return loss, {}

    def scores(self, model: EncoderOnly) -> dict[str, float]:
        """Return the macro F1; for regression the correlations, and the RMSE in the unit of the data."""
        match score_classifier(model, self.corpus.tokenizer, self.corpus.validation, resamples=0):
            case LabelScores(f1=f1) | MultiLabelScores(f1=f1):
                return {"val/f1": f1}
            case scores:
                return {"val/rmse": scores.rmse, "val/pearson": scores.pearson, "val/spearman": scores.spearman}

    def sample(self, model: EncoderOnly) -> str:
        """Return some validation texts with their labels and the predictions of the model."""
        held_out = self.corpus.validation
        numbers = np.arange(min(self.recipe.task.sample_texts, len(held_out)))
        batch = self._batch(held_out, numbers)
        with inference_mode(model.modules()):
            predictions = self._predict(label_logits(model, move_batch(batch, model))).cpu().view_as(batch.targets)
        over_tokens = self.head.over == "tokens"
        several = over_tokens or self.head.problem_type == "multi_label_classification"
        blocks = list[str]()
        for tokens, target, prediction in zip(batch.inputs, batch.targets, predictions, strict=True):
            if over_tokens:
                real = target != IGNORE_INDEX
                target, prediction = target[real], prediction[real]
            lines = {
                "text": " ".join(self.corpus.tokenizer.decode(tokens[:SAMPLE_TOKENS].tolist()).split()),
                "labels" if several else "label": self._format_target(target),
                "output": self._format_target(prediction),
            }
            blocks.append("\n".join(f"{name:<7} {line}" for name, line in lines.items()))
        return "\n\n".join(blocks)

    def _predict(self, logits: Tensor) -> Tensor:
        """Return predictions in the same form as the targets of a batch.

        Args:
            logits: Logits, shape (N, L).

        Returns:
            Depending on the problem type: label indices of shape (N,); for each label 0 or 1, of shape (N, L); or
            standardized numbers of shape (N,).
        """
        match self.head.problem_type:
            case "single_label_classification":
                return logits.argmax(-1)
            case "multi_label_classification":
                return (logits.sigmoid() > THRESHOLD).float()
            case "regression":
                return logits[:, 0]

    def _format_target(self, target: Tensor) -> str:
        """Format the targets of one text: its label or labels, those of its words, or its number."""
        names = np.array(self.corpus.labels)
        match self.head.problem_type:
            case "single_label_classification":
                return " ".join(names[target.flatten().numpy()][:SAMPLE_TOKENS])
            case "multi_label_classification":
                return ", ".join(names[target.numpy() > 0][:SAMPLE_TOKENS]) or "-"
            case "regression":
                return f"{self.head.target_mean + self.head.target_std * target.item():.5g}"

    def save(self, folder: Path, model: EncoderOnly, card: Card, state: Mapping[str, Tensor]) -> None:
        save_model(folder, model, self.corpus.tokenizer, card, state=state)

    def _batch(
        self, texts: LabeledExamples, numbers: np.ndarray, reversed_texts: np.ndarray | None = None
    ) -> LabeledBatch:
        """Return texts as a batch; `reversed_texts` (B,) is True at those that are read from the other strand."""
        tokenizer = self.corpus.tokenizer
        assert tokenizer.bos_id is not None
        assert tokenizer.eos_id is not None
        # Without a padding token any token can be used, because the mask excludes padding.
        special = {"bos": tokenizer.bos_id, "eos": tokenizer.eos_id, "pad": tokenizer.pad_id or 0}
        rows = label_rows(texts, numbers, max_len=self.length, **special)
        if self.strands is not None and reversed_texts is not None:
            rows = replace(rows, tokens=self.strands.reverse(rows.tokens, reversed_texts, mask=rows.mask))
        return collate_labels(rows, self.head)
