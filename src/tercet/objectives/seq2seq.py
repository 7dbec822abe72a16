"""Predict each target token from the whole source and the target tokens before it (Sutskever et al. 2014).

The decoder reads `<bos> a b c` and is to say `a b c <eos>`; the source ends with `<eos>` as well.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data import PairRows
from tercet.models import EncoderDecoder
from tercet.objectives.batch import move_batch
from tercet.objectives.likelihood import negative_log_likelihood
from tercet.objectives.logprobs import target_logprobs
from tercet.objectives.loss import IGNORE_INDEX, Loss


class PairBatch(NamedTuple):
    """Attributes:
    source: (B, S) token ids.
    source_token_mask: (B, S) True at real tokens; None where all are.
    inputs: (B, T) the target from its `<bos>` on, padded on the right, where no real token looks.
    targets: (B, T) the id after each input, or IGNORE_INDEX.
    """

    source: Int[Tensor, "B S"]
    source_token_mask: Bool[Tensor, "B S"] | None
    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]


def collate_pairs(rows: PairRows) -> PairBatch:
    target, is_real = torch.from_numpy(rows.target), torch.from_numpy(rows.target_mask)
    token_mask = None if rows.source_mask.all() else torch.from_numpy(rows.source_mask)
    targets = target[:, 1:].masked_fill(~is_real[:, 1:], IGNORE_INDEX)
    return PairBatch(torch.from_numpy(rows.source), token_mask, target[:, :-1], targets)


def seq2seq_loss(model: EncoderDecoder, batch: PairBatch, *, smoothing: float = 0.0) -> Loss:
    return negative_log_likelihood(_hidden_states(model, batch), model.unembedding, batch.targets, smoothing=smoothing)


def seq2seq_logprobs(model: EncoderDecoder, batch: PairBatch) -> Float[Tensor, " N"]:
    """ln p of each target that is not IGNORE_INDEX, in the order of the rows, in float32.

    Args:
        batch: On the CPU; it is copied to the model's device.
    """
    return target_logprobs(model, _hidden_states(model, move_batch(batch, model)), batch.targets)


def _hidden_states(model: EncoderDecoder, batch: PairBatch) -> Float[Tensor, "B T D"]:
    memory = model.encode(batch.source, token_mask=batch.source_token_mask)  # (B, S, D)
    return model.hidden(batch.inputs, memory, memory_token_mask=batch.source_token_mask)
