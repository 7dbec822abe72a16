"""Say what a text is, or what each of its words is: the loss is the mean of -ln p(label)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data import LabelRows
from tercet.models import EncoderOnly
from tercet.objectives.loss import IGNORED, Loss


class LabelledBatch(NamedTuple):
    """Attributes:
    inputs: (B, T) token ids, from bos to eos.
    token_mask: (B, T) True at real tokens; None where all are.
    targets: (B,) the number of each text's label; over tokens (B, T), IGNORED on all but a word's first piece.
    """

    inputs: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"] | None
    targets: Int[Tensor, "*B"]


def collate_labels(rows: LabelRows) -> LabelledBatch:
    token_mask = None if rows.mask.all() else torch.from_numpy(rows.mask)
    return LabelledBatch(torch.from_numpy(rows.tokens), token_mask, torch.from_numpy(rows.targets))


def label_logits(model: EncoderOnly, batch: LabelledBatch) -> Float[Tensor, "N L"]:
    """A score for each label, in float32: of each text, or of every token of the batch."""
    return model.classify(model.hidden(batch.inputs, token_mask=batch.token_mask), batch.token_mask).flatten(0, -2)


def classify_loss(
    model: EncoderOnly, batch: LabelledBatch, *, smoothing: float = 0.0, logits: Float[Tensor, "N L"] | None = None
) -> Loss:
    """The loss of the batch's labels.

    Args:
        smoothing: the share of each target that is spread over all labels, as PyTorch defines it.
        logits: the batch's `label_logits`, where they are known already.
    """
    logits = label_logits(model, batch) if logits is None else logits
    targets = batch.targets.flatten()  # (N,)
    plain = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")
    total = plain
    if smoothing:
        total = F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return Loss(total, plain.detach(), (targets != IGNORED).sum())
