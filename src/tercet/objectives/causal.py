"""Predict each token from those before it: the loss of a language model is the mean of -ln p(next token)."""

from typing import NamedTuple, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.data import TokenRows
from tercet.objectives.loss import IGNORED, Loss, negative_log_likelihood


class CausalModel(Protocol):
    def __call__(
        self, tokens: Tensor, *, padding: Tensor | None = None, documents: Tensor | None = None
    ) -> Float[Tensor, "B T V"]: ...


class Batch(NamedTuple):
    """Attributes:
    inputs: (B, T) token ids.
    targets: (B, T) the id after each input, or IGNORED.
    padding: (B, T) True at real inputs; None where all are.
    documents: (B, T) number of each input's document; None where rows may look across.
    """

    inputs: Int[Tensor, "B T"]
    targets: Int[Tensor, "B T"]
    padding: Bool[Tensor, "B T"] | None = None
    documents: Int[Tensor, "B T"] | None = None


def rows_to_learn(rows: TokenRows) -> Batch:
    """A target counts where it and its input are real and of one document."""
    tokens = torch.from_numpy(rows.tokens)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    padding = documents = None
    if rows.mask is not None:
        real = torch.from_numpy(rows.mask)
        padding = real[:, :-1]
        targets = targets.masked_fill(~(real[:, :-1] & real[:, 1:]), IGNORED)
    if rows.documents is not None:
        number = torch.from_numpy(rows.documents)
        documents = number[:, :-1]
        targets = targets.masked_fill(number[:, :-1] != number[:, 1:], IGNORED)
    return Batch(inputs, targets, padding, documents)


def windows_to_score(rows: TokenRows) -> Batch:
    """Batches of `Windows`, whose mask marks the targets to score.

    Where documents are kept apart, their first tokens are not among them. What pads the last window stands to the
    right of all real tokens, where a causal model does not look.
    """
    tokens = torch.from_numpy(rows.tokens)
    targets = tokens[:, 1:]
    if rows.mask is not None:
        targets = targets.masked_fill(~torch.from_numpy(rows.mask)[:, 1:], IGNORED)
    documents = None
    if rows.documents is not None:
        number = torch.from_numpy(rows.documents)
        documents = number[:, :-1]
        targets = targets.masked_fill(number[:, :-1] != number[:, 1:], IGNORED)
    return Batch(tokens[:, :-1], targets, None, documents)


def causal_loss(model: CausalModel, batch: Batch) -> Loss:
    return negative_log_likelihood(model(batch.inputs, padding=batch.padding, documents=batch.documents), batch.targets)
