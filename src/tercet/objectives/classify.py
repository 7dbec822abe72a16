"""Say what a text is, or what each of its words is: the loss is the mean of -ln p(label)."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.data import LabelRows
from tercet.models import EncoderOnly
from tercet.objectives.loss import IGNORED, Loss


class LabelledBatch(NamedTuple):
    """Attributes:
    inputs: (B, T) token ids, from bos to eos.
    padding: (B, T) True at real tokens; None where all are.
    targets: (B,) the number of each text's label; over tokens (B, T), IGNORED on all but a word's first piece.
    """

    inputs: Int[Tensor, "B T"]
    padding: Bool[Tensor, "B T"] | None
    targets: Int[Tensor, "*B"]


def rows_to_classify(rows: LabelRows) -> LabelledBatch:
    padding = None if rows.mask.all() else torch.from_numpy(rows.mask)
    return LabelledBatch(torch.from_numpy(rows.tokens), padding, torch.from_numpy(rows.targets))


def classify_loss(model: EncoderOnly, batch: LabelledBatch, *, smoothing: float = 0.0) -> Loss:
    """`smoothing` is the share of each target that is spread over all labels, as PyTorch defines it."""
    hidden = model.hidden(batch.inputs, padding=batch.padding)  # (B, T, D)
    scores = model.classify(hidden, batch.padding).flatten(0, -2)  # (N, L), float32
    targets = batch.targets.flatten()  # (N,)
    plain = F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum")
    total = plain
    if smoothing:
        total = F.cross_entropy(scores, targets, ignore_index=IGNORED, reduction="sum", label_smoothing=smoothing)
    return Loss(total, plain.detach(), (targets != IGNORED).sum())
