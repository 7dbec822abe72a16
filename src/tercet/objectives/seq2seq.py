"""Translation (Sutskever et al. 2014): predict each target token from the source and the target tokens before it.

The decoder's input is `<bos> a b c` and its targets are `a b c <eos>`. The source ends with `<eos>` too.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data import PairRows
from tercet.models import EncoderDecoder
from tercet.objectives.batch import move_batch
from tercet.objectives.custom import likelihood_or_objective
from tercet.objectives.logprobs import target_logprobs
from tercet.objectives.loss import IGNORE_INDEX, Loss
from tercet.objectives.specs import CustomObjective


class PairBatch(NamedTuple):
    """A batch of sentence pairs.

    Attributes:
        source: (B, S) Token ids.
        source_token_mask: (B, S) True at real tokens; None if all are real.
        inputs: (B, T) Ids of the target from `<bos>` on. Padding is on the right, so no real token attends to it.
        targets: (B, T) Id after each input, or IGNORE_INDEX at padding.
    """

    source: Int[Tensor, "B S"]
    source_token_mask: Bool[Tensor, "B S"] | None
    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]


def collate_pairs(rows: PairRows) -> PairBatch:
    """Return rows as a batch."""
    target, is_real = torch.from_numpy(rows.target), torch.from_numpy(rows.target_mask)
    token_mask = None if rows.source_mask.all() else torch.from_numpy(rows.source_mask)
    targets = target[:, 1:].masked_fill(~is_real[:, 1:], IGNORE_INDEX)
    return PairBatch(torch.from_numpy(rows.source), token_mask, target[:, :-1], targets)


def seq2seq_loss(
    model: EncoderDecoder, batch: PairBatch, *, smoothing: float = 0.0, objective: CustomObjective | None = None
) -> Loss:
    """Return the loss of a batch.

    Args:
        model: Translation model.
        batch: Batch on the model's device.
        smoothing: Share of each target that is spread over the whole vocabulary.
        objective: Objective that replaces -ln p, without smoothing.
    """
    return likelihood_or_objective(
        _hidden_states(model, batch), model.unembedding, batch.targets, smoothing=smoothing, objective=objective
    )


def seq2seq_logprobs(model: EncoderDecoder, batch: PairBatch) -> Float[Tensor, " N"]:
    """Return ln p of each target that is not IGNORE_INDEX, in row order, in float32.

    Args:
        model: Translation model.
        batch: Batch on the CPU. It is copied to the model's device.
    """
    return target_logprobs(model, _hidden_states(model, move_batch(batch, model)), batch.targets)


def _hidden_states(model: EncoderDecoder, batch: PairBatch) -> Float[Tensor, "B T D"]:
    memory = model.encode(batch.source, token_mask=batch.source_token_mask)  # (B, S, D)
    return model.hidden(batch.inputs, memory, memory_token_mask=batch.source_token_mask)
