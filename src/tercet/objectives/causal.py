"""Causal language modeling: predict each token from the tokens before it.

The loss of a target is -ln p(next token).
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data import TokenRows
from tercet.models import DecoderOnly
from tercet.objectives.batch import move_batch
from tercet.objectives.custom import likelihood_or_objective
from tercet.objectives.logprobs import target_logprobs
from tercet.objectives.loss import IGNORE_INDEX, Loss
from tercet.objectives.specs import CustomObjective


class CausalBatch(NamedTuple):
    """A batch for causal language modeling.

    Attributes:
        inputs: (B, T) Token ids.
        targets: (B, T) Id after each input, or IGNORE_INDEX if it does not count.
        token_mask: (B, T) True at real inputs; None if the model needs no mask.
        documents: (B, T) Document number of each input; None without a document mask.
    """

    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    token_mask: Bool[Tensor, "B T"] | None = None
    documents: Int[Tensor, "B T"] | None = None


def collate_causal(rows: TokenRows) -> CausalBatch:
    """Return rows as a batch.

    A target counts if it and its input are real tokens and, with a document mask, belong to the same document.
    """
    tokens = torch.from_numpy(rows.tokens)
    is_real = None if rows.mask is None else torch.from_numpy(rows.mask)
    targets = tokens[:, 1:]
    if is_real is not None:
        targets = targets.masked_fill(~(is_real[:, :-1] & is_real[:, 1:]), IGNORE_INDEX)
    documents, targets = _split_documents(rows, targets)
    return CausalBatch(tokens[:, :-1], targets, None if is_real is None else is_real[:, :-1], documents)


def collate_windows(rows: TokenRows) -> CausalBatch:
    """Return the rows of `Windows` as a batch. Their mask marks the targets to score.

    With a document mask, the first token of each document is not scored. Padding of the last window is to the right of
    all real tokens, so a causal model does not attend to it.
    """
    tokens = torch.from_numpy(rows.tokens)
    targets = tokens[:, 1:]
    if rows.mask is not None:
        targets = targets.masked_fill(~torch.from_numpy(rows.mask)[:, 1:], IGNORE_INDEX)
    documents, targets = _split_documents(rows, targets)
    return CausalBatch(tokens[:, :-1], targets, None, documents)


def causal_loss(
    model: DecoderOnly, batch: CausalBatch, *, smoothing: float = 0.0, objective: CustomObjective | None = None
) -> Loss:
    """Return the loss of a batch.

    Args:
        model: Language model.
        batch: Batch on the model's device.
        smoothing: Share of each target that is spread over the whole vocabulary.
        objective: Objective that replaces -ln p, without smoothing.
    """
    return likelihood_or_objective(
        _hidden_states(model, batch), model.unembedding, batch.targets, smoothing=smoothing, objective=objective
    )


def causal_logprobs(model: DecoderOnly, batch: CausalBatch) -> Float[Tensor, " N"]:
    """Return ln p of each target that is not IGNORE_INDEX, in row order, in float32.

    Args:
        model: Language model.
        batch: Batch on the CPU. It is copied to the model's device.
    """
    return target_logprobs(model, _hidden_states(model, move_batch(batch, model)), batch.targets)


def _hidden_states(model: DecoderOnly, batch: CausalBatch) -> Float[Tensor, "B T D"]:
    return model.hidden(batch.inputs, token_mask=batch.token_mask, documents=batch.documents)


def _split_documents(rows: TokenRows, targets: Tensor) -> tuple[Tensor | None, Tensor]:
    """Return the documents of the inputs and the targets without the first token of each document.

    The documents are None without a document mask.
    """
    if rows.documents is None:
        return None, targets
    documents = torch.from_numpy(rows.documents)
    return documents[:, :-1], targets.masked_fill(documents[:, :-1] != documents[:, 1:], IGNORE_INDEX)
