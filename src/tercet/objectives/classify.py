"""Say what a text is, or what each of its words is.

one label        -ln p(label)
several labels   the mean over all labels of -ln p(whether the text has it): binary cross-entropy
a number         (score - (number - mean) / std)², where 1 is what the constant answer, the mean, costs
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data import LabelRows
from tercet.models import Classifier, EncoderOnly
from tercet.objectives.loss import IGNORE_INDEX, Loss, count_targets

THRESHOLD = 0.5  # of a label's probability, above which a text that may have several is said to have it


class LabeledBatch(NamedTuple):
    """Attributes:
    inputs: (B, T) token ids, from bos to eos.
    token_mask: (B, T) True at real tokens; None where all are.
    targets: (B,) the number of each text's label; over tokens (B, T), IGNORE_INDEX on all but a word's first piece; of
        several labels (B, L) float32, 1 where the text has it; of numbers (B,) float32, standard deviations from the
        mean.
    """

    inputs: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"] | None
    targets: Int[Tensor, "*B"] | Float[Tensor, "*B"]


def collate_labels(rows: LabelRows, head: Classifier | None = None) -> LabeledBatch:
    """The rows as a batch; `head` knows the scale of labels that are numbers."""
    token_mask, targets = None if rows.mask.all() else torch.from_numpy(rows.mask), rows.targets
    if head is not None and head.problem_type == "regression":
        targets = ((targets - head.target_mean) / head.target_std).astype(np.float32)
    return LabeledBatch(torch.from_numpy(rows.tokens), token_mask, torch.from_numpy(targets))


def label_logits(model: EncoderOnly, batch: LabeledBatch) -> Float[Tensor, "N L"]:
    """A score for each label, in float32: of each text, or of every token of the batch."""
    return model.classify(model.hidden(batch.inputs, token_mask=batch.token_mask), batch.token_mask).flatten(0, -2)


def classify_loss(
    model: EncoderOnly, batch: LabeledBatch, *, smoothing: float = 0.0, logits: Float[Tensor, "N L"] | None = None
) -> Loss:
    """The loss of the batch's labels.

    Args:
        smoothing: the share of each target that is spread over all labels, as PyTorch defines it; of one label alone.
        logits: the batch's `label_logits`, where they are known already.
    """
    logits = label_logits(model, batch) if logits is None else logits
    if batch.targets.is_floating_point():
        if smoothing:
            raise ValueError(f"smoothing={smoothing} spreads a share of one label over the others; leave it 0")
        total = (
            _regression_loss(logits[:, 0], batch.targets)
            if batch.targets.ndim == 1
            else _multi_label_loss(logits, batch.targets)
        )
        return Loss(total, total.detach(), count_targets(batch.targets))
    targets = batch.targets.flatten()  # (N,)
    plain = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum")
    total = plain
    if smoothing:
        total = F.cross_entropy(logits, targets, ignore_index=IGNORE_INDEX, reduction="sum", label_smoothing=smoothing)
    return Loss(total, plain.detach(), count_targets(targets))


def _regression_loss(scores: Float[Tensor, " B"], targets: Float[Tensor, " B"]) -> Float[Tensor, ""]:
    return F.mse_loss(scores, targets, reduction="sum")


def _multi_label_loss(logits: Float[Tensor, "B L"], targets: Float[Tensor, "B L"]) -> Float[Tensor, ""]:
    return F.binary_cross_entropy_with_logits(logits, targets, reduction="sum") / targets.shape[1]
