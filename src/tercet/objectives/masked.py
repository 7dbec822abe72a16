"""Masked language modeling (BERT, Devlin et al. 2018): predict masked tokens from all others.

Only the hidden states at masked positions are scored. Their number is constant: N = B · ceil(rate · T).
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from tercet.config import UserError
from tercet.data import TokenRows
from tercet.models import EncoderOnly
from tercet.objectives.custom import likelihood_or_objective
from tercet.objectives.loss import IGNORE_INDEX, Loss
from tercet.objectives.masking import mask_rows
from tercet.objectives.specs import CustomObjective, Masking
from tercet.tokens import Tokenizer


class MaskedBatch(NamedTuple):
    """A batch for masked language modeling.

    Attributes:
        inputs: (B, T) Token ids, some of them masked.
        positions: (N,) Positions to predict among all B · T; 0 for unused entries.
        targets: (N,) Original tokens at these positions, or IGNORE_INDEX.
        token_mask: (B, T) True at real tokens; None if all are real.
        documents: (B, T) Document number of each token; None without a document mask.
    """

    inputs: Int[Tensor, "B T"]
    positions: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]
    token_mask: Bool[Tensor, "B T"] | None = None
    documents: Int[Tensor, "B T"] | None = None


def collate_masked(
    rows: TokenRows, tokenizer: Tokenizer, *, masking: Masking, generator: np.random.Generator
) -> MaskedBatch:
    """Return rows of T tokens as a batch with some of the tokens masked.

    bos and eos replace the first and the last real token of each row, so that it starts and ends like a text. Special
    tokens are never masked, and never used as a random replacement.

    Args:
        rows: Rows of T tokens.
        tokenizer: Tokenizer of the model.
        masking: Share of tokens to mask, and how to mask them.
        generator: Source of randomness.

    Raises:
        UserError: If the tokenizer has no mask token, bos or eos.
    """
    mask_id, bos, eos = _required_ids(tokenizer)
    is_real = np.ones(rows.tokens.shape, bool) if rows.mask is None else rows.mask
    tokens = _put_bos_eos(rows.tokens, is_real, bos, eos)
    is_text = np.ones(tokenizer.vocab_size, bool)  # (V,)
    is_text[unmaskable_ids(tokenizer)] = False
    masked = mask_rows(
        tokens,
        is_text[tokens] & is_real,
        masking=masking,
        generator=generator,
        mask_id=mask_id,
        random_ids=np.flatnonzero(is_text),
        word_starts=None if masking.unit == "tokens" else tokenizer.word_starts(tokens),
    )
    return MaskedBatch(
        torch.from_numpy(masked.inputs),
        torch.from_numpy(masked.positions),
        torch.from_numpy(masked.targets),
        None if rows.mask is None else torch.from_numpy(rows.mask),
        None if rows.documents is None else torch.from_numpy(rows.documents),
    )


def concatenate_masked(batches: Sequence[MaskedBatch]) -> MaskedBatch:
    """Concatenate batches along the rows."""
    offsets = np.cumsum([0, *(batch.inputs.numel() for batch in batches)]).tolist()
    positions = [
        torch.where(batch.targets == IGNORE_INDEX, 0, batch.positions + start)
        for batch, start in zip(batches, offsets, strict=False)
    ]
    masks = [torch.ones_like(b.inputs, dtype=torch.bool) if b.token_mask is None else b.token_mask for b in batches]
    documents = [batch.documents for batch in batches if batch.documents is not None]
    return MaskedBatch(
        torch.cat([batch.inputs for batch in batches]),
        torch.cat(positions),
        torch.cat([batch.targets for batch in batches]),
        None if all(batch.token_mask is None for batch in batches) else torch.cat(masks),
        torch.cat(documents) if documents else None,
    )


def unmaskable_ids(tokenizer: Tokenizer) -> list[int]:
    """Return the ids that are never masked and never used as a replacement.

    These are the special tokens, pad, bos, eos and the mask token.
    """
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id)
    return sorted(tokenizer.special_ids | {token for token in ids if token is not None})


def masked_states(model: EncoderOnly, batch: MaskedBatch) -> Float[Tensor, "N D"]:
    """Return the hidden states from which the targets are predicted."""
    hidden = model.hidden(batch.inputs, token_mask=batch.token_mask, documents=batch.documents)  # (B, T, D)
    return hidden.flatten(0, 1).index_select(0, batch.positions)


def masked_loss(
    model: EncoderOnly,
    batch: MaskedBatch,
    *,
    smoothing: float = 0.0,
    objective: CustomObjective | None = None,
    states: Float[Tensor, "N D"] | None = None,
) -> Loss:
    """Return the loss of a batch.

    Args:
        model: Model with a head for masked language modeling.
        batch: Batch on the model's device.
        smoothing: Share of each target that is spread over the whole vocabulary.
        objective: Objective that replaces -ln p, without smoothing.
        states: Result of `masked_states`, if it was computed before.
    """
    states = masked_states(model, batch) if states is None else states
    return likelihood_or_objective(
        model.mlm_transform(states), model.unembedding, batch.targets, smoothing=smoothing, objective=objective
    )


def _required_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """Return the ids of the mask token, bos and eos."""
    mask_id, bos, eos = tokenizer.mask_id, tokenizer.bos_id, tokenizer.eos_id
    if mask_id is None:
        raise UserError(
            f"masked language modeling requires a mask token, which the {tokenizer.kind} tokenizer lacks; "
            f"use kind: wordpiece, or set mask: true in data.tokenizer"
        )
    if bos is None or eos is None:
        raise UserError(
            f"masked language modeling requires bos and eos tokens, which the {tokenizer.kind} tokenizer lacks; "
            f"use kind: wordpiece, or set bos: true and eos: true in data.tokenizer"
        )
    return mask_id, bos, eos


def _put_bos_eos(tokens: np.ndarray, is_real: np.ndarray, bos: int, eos: int) -> np.ndarray:
    """Replace the first real token of each row by bos and the last by eos; a single token becomes bos."""
    result = tokens.copy()
    rows = np.flatnonzero(is_real.any(1))
    last = is_real.shape[1] - 1 - is_real[rows, ::-1].argmax(1)
    result[rows, last] = eos
    result[rows, is_real[rows].argmax(1)] = bos
    return result
