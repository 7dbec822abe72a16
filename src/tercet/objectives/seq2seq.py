"""Predict each target token from the whole source and the target tokens before it (Sutskever et al. 2014).

The decoder reads `<bos> a b c` and is to say `a b c <eos>`; the source ends with `<eos>` as well.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from tercet.data import PairRows
from tercet.models import EncoderDecoder
from tercet.objectives.likelihood import negative_log_likelihood
from tercet.objectives.loss import IGNORED, Loss


class PairBatch(NamedTuple):
    """Attributes:
    source: (B, S) token ids.
    source_padding: (B, S) True at real tokens; None where all are.
    inputs: (B, T) the target from its `<bos>` on, padded on the right, where no real token looks.
    targets: (B, T) the id after each input, or IGNORED.
    """

    source: Int[Tensor, "B S"]
    source_padding: Bool[Tensor, "B S"] | None
    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]


def pairs_to_learn(rows: PairRows) -> PairBatch:
    target, real = torch.from_numpy(rows.target), torch.from_numpy(rows.target_mask)
    padding = None if rows.source_mask.all() else torch.from_numpy(rows.source_mask)
    targets = target[:, 1:].masked_fill(~real[:, 1:], IGNORED)
    return PairBatch(torch.from_numpy(rows.source), padding, target[:, :-1], targets)


def seq2seq_loss(model: EncoderDecoder, batch: PairBatch, *, smoothing: float = 0.0) -> Loss:
    memory = model.encode(batch.source, padding=batch.source_padding)  # (B, S, D)
    hidden = model.hidden(batch.inputs, memory, memory_padding=batch.source_padding)  # (B, T, D)
    return negative_log_likelihood(hidden, model.unembedding, batch.targets, smoothing=smoothing)
