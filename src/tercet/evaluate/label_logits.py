"""Logits of a classifier for labeled examples, with their targets, for all kinds of labels."""

from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tercet.config import UserError
from tercet.data import LabeledExamples, LabelRows, label_rows
from tercet.data.rows.batching import batch_by_length
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.models import Classifier, EncoderOnly
from tercet.models.inference import inference_mode
from tercet.objectives import IGNORE_INDEX, collate_labels, label_logits, move_batch
from tercet.objectives.batch import overlap_copies
from tercet.spec import ProblemType
from tercet.tokens import Tokenizer


def check_head(model: EncoderOnly, labeled: LabeledExamples, problem_type: ProblemType) -> Classifier:
    """Return the classifier of the model, after checking that it and the labels have the given problem type.

    Raises:
        ValueError: If the model has no classifier, the problem type of the model or of the labels differs, or one is
            for texts and the other for tokens.
    """
    head = model.spec.classifier
    if head is None:
        raise ValueError("the model has no classifier; train one on labeled texts")
    if head.over != labeled.over:
        raise ValueError(f"the model classifies {head.over}, but the labels are of {labeled.over}")
    for name, kind in {"model": head.problem_type, "labels": labeled.problem_type}.items():
        if kind != problem_type:
            raise ValueError(f"the problem_type of the {name} is {kind}, but these scores require {problem_type}")
    return head


def find_places(labeled: LabeledExamples, model_labels: tuple[str, ...]) -> np.ndarray:
    """Return the index in `model_labels` of each label of the examples; -1 for unused labels that the model lacks.

    Raises:
        UserError: If the model lacks a label that an example uses.
    """
    used = set(np.unique(labeled.labels[labeled.labels != IGNORE_INDEX]).tolist())
    missing = [name for number, name in enumerate(labeled.names) if number in used and name not in model_labels]
    if missing:
        raise UserError(
            f"the model has no label {missing[0]!r}, only {', '.join(map(repr, model_labels[:12]))}"
            f"{' and more' if len(model_labels) > 12 else ''}; correct the labels, or train on texts with these labels"
        )
    places = {name: number for number, name in enumerate(model_labels)}
    return np.array([places.get(name, -1) for name in labeled.names])


def read_logits(
    model: EncoderOnly, tokenizer: Tokenizer, labeled: LabeledExamples, batch_tokens: int
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield batches of the numbers (B,) of their texts, logits and targets.

    Logits are (N, L), for N = B texts, or the N = B · T tokens of padded rows, each of which begins with bos. Targets
    are as in `LabeledExamples.targets`; those of tokens are (N,).

    Raises:
        UserError: If a logit of a labeled item is not finite, or the tokenizer has no bos or eos.
    """
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if bos is None or eos is None:
        raise UserError("the tokenizer has no beginning or end token; train a tokenizer for an encoder")
    special = {"bos": bos, "eos": eos, "pad": tokenizer.pad_id or 0}
    lengths = np.minimum(labeled.row_lengths, model.max_len)

    def launch() -> Iterator[tuple[tuple[np.ndarray, LabelRows], Tensor]]:
        for numbers in map(np.array, batch_by_length(lengths, batch_tokens)):
            rows = label_rows(labeled, numbers, max_len=model.max_len, **special)
            batch = collate_labels(rows, model.spec.classifier)
            with inference_mode(model.modules()):
                logits = label_logits(model, move_batch(batch, model))  # (N, L)
            yield (numbers, rows), logits

    for (numbers, rows), logits in overlap_copies(launch()):
        targets = rows.targets.flatten() if labeled.over == "tokens" else rows.targets
        scored_logits = logits[torch.from_numpy(targets != IGNORE_INDEX)] if targets.dtype == np.int64 else logits
        if not bool(torch.isfinite(scored_logits).all()):
            raise UserError(DIVERGENCE_MESSAGE)
        yield numbers, logits.numpy(), targets
