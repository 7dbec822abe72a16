"""Classification and regression of texts, and classification of their tokens.

one label        -ln p(label)
several labels   binary cross-entropy: the mean over all labels of -ln p(present or absent)
a number         (score - (number - mean) / std)², on average 1 if the mean is always predicted
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data import LabelRows
from tercet.models import Classifier, EncoderOnly
from tercet.objectives.custom import sum_losses
from tercet.objectives.loss import IGNORE_INDEX, Loss, count_targets
from tercet.objectives.specs import CustomObjective

THRESHOLD = 0.5  # probability above which a label is assigned in multi-label classification


class LabeledBatch(NamedTuple):
    """A batch of labeled examples.

    Attributes:
        inputs: (B, T) Token ids, from bos to eos.
        token_mask: (B, T) True at real tokens; None if all are real.
        targets: One label per text: (B,) index of the label. One label per word: (B, T) index of the label at the first
            token of the word, and IGNORE_INDEX elsewhere. Several labels per text: (B, L) float32, 1 for each label of
            the text. Numbers: (B,) float32 distances from the mean in standard deviations.
        segments: (B, T) segment of each token of a pair; None for single texts.
    """

    inputs: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"] | None
    targets: Int[Tensor, "*B"] | Float[Tensor, "*B"]
    segments: Int[Tensor, "B T"] | None = None


def collate_labels(rows: LabelRows, head: Classifier | None = None) -> LabeledBatch:
    """Return rows as a batch.

    Args:
        rows: Rows of labeled examples.
        head: Classifier settings; required for numbers, which are scaled by its mean and standard deviation.
    """
    token_mask, targets = None if rows.mask.all() else torch.from_numpy(rows.mask), rows.targets
    if head is not None and head.problem_type == "regression":
        targets = ((targets - head.target_mean) / head.target_std).astype(np.float32)
    segments = None if rows.segments is None else torch.from_numpy(rows.segments)
    return LabeledBatch(torch.from_numpy(rows.tokens), token_mask, torch.from_numpy(targets), segments)


def label_logits(model: EncoderOnly, batch: LabeledBatch) -> Float[Tensor, "N L"]:
    """Return the float32 logits of each label, for each text (N = B) or for each token (N = B T) of the batch.

    A model without a second segment ignores the segments of pairs.
    """
    segments = batch.segments if model.spec.n_segments > 1 else None
    hidden = model.hidden(batch.inputs, token_mask=batch.token_mask, segments=segments)
    return model.classify(hidden, batch.token_mask).flatten(0, -2)


def classify_loss(
    model: EncoderOnly,
    batch: LabeledBatch,
    *,
    smoothing: float = 0.0,
    objective: CustomObjective | None = None,
    logits: Float[Tensor, "N L"] | None = None,
) -> Loss:
    """Return the loss of a batch.

    Args:
        model: Model with a classifier.
        batch: Batch on the model's device.
        smoothing: Label smoothing as in PyTorch: share of each target that is spread over all labels. Must be 0 for
            several labels and for numbers.
        objective: Objective that replaces the loss of the labels or numbers, without smoothing.
        logits: Result of `label_logits`, if it was computed before.

    Raises:
        ValueError: If `smoothing` is not 0 for several labels or numbers.
    """
    logits = label_logits(model, batch) if logits is None else logits
    if batch.targets.is_floating_point():
        if smoothing:
            raise ValueError(f"label smoothing requires one label per target: smoothing={smoothing}; set it to 0")
        is_number = batch.targets.ndim == 1
        scores, targets = logits[:, 0] if is_number else logits, batch.targets
        total = plain = _regression_loss(scores, targets) if is_number else _multi_label_loss(scores, targets)
    else:
        scores, targets = logits, batch.targets.flatten()  # (N,)
        total = plain = F.cross_entropy(scores, targets, ignore_index=IGNORE_INDEX, reduction="sum")
        if smoothing:
            total = F.cross_entropy(
                scores, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing
            )
    if objective is not None:
        total = sum_losses(objective, scores, targets)
    return Loss(total, plain.detach(), count_targets(targets))


def _regression_loss(scores: Float[Tensor, " B"], targets: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    return F.mse_loss(scores, targets, reduction="sum")


def _multi_label_loss(logits: Float[Tensor, "B L"], targets: Float[Tensor, "B L"]) -> Float[Tensor, ""]:
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / targets.shape[1]
