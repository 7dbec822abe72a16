"""Predict the tokens that were hidden from all the others: the loss of BERT (Devlin et al. 2018).

Only the hidden states at the masked positions are scored, and there are always as many of them: N = B · ceil(rate · T).
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
from tercet.objectives.likelihood import negative_log_likelihood
from tercet.objectives.loss import IGNORE_INDEX, Loss
from tercet.objectives.masking import mask_rows
from tercet.objectives.specs import Masking
from tercet.tokens import Tokenizer


class MaskedBatch(NamedTuple):
    """Attributes:
    inputs: (B, T) token ids, some of them hidden.
    positions: (N,) where the tokens to predict stand in all B · T; 0 where N has more than are needed.
    targets: (N,) the tokens that stood there, or IGNORE_INDEX.
    token_mask: (B, T) True at real tokens; None where all are.
    documents: (B, T) number of each token's document; None without a document mask.
    """

    inputs: Int[Tensor, "B T"]
    positions: Int[Tensor, " N"]
    targets: Int[Tensor, " N"]
    token_mask: Bool[Tensor, "B T"] | None = None
    documents: Int[Tensor, "B T"] | None = None


def collate_masked(
    rows: TokenRows, tokenizer: Tokenizer, *, masking: Masking, generator: np.random.Generator
) -> MaskedBatch:
    """Rows of T tokens, all of them inputs, with some hidden.

    A row begins and ends as a text does: where it cuts a document, its first token gives way to bos, its last to eos.
    Special tokens are never hidden, and never put in place of another.

    Raises:
        UserError: where the tokenizer has no mask token, bos or eos.
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
    """Batches below each other."""
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
    """Ids that are never hidden, nor put in place of another: special ones, pad, bos, eos and the mask token."""
    ids = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id)
    return sorted(tokenizer.special_ids | {token for token in ids if token is not None})


def masked_states(model: EncoderOnly, batch: MaskedBatch) -> Float[Tensor, "N D"]:
    """The hidden states from which the targets are predicted."""
    hidden = model.hidden(batch.inputs, token_mask=batch.token_mask, documents=batch.documents)  # (B, T, D)
    return hidden.flatten(0, 1).index_select(0, batch.positions)


def masked_loss(
    model: EncoderOnly, batch: MaskedBatch, *, smoothing: float = 0.0, states: Float[Tensor, "N D"] | None = None
) -> Loss:
    """`states` are the batch's `masked_states`, where they are known already."""
    states = masked_states(model, batch) if states is None else states
    return negative_log_likelihood(model.mlm_transform(states), model.unembedding, batch.targets, smoothing=smoothing)


def _required_ids(tokenizer: Tokenizer) -> tuple[int, int, int]:
    """The ids of the mask token, bos and eos."""
    mask_id, bos, eos = tokenizer.mask_id, tokenizer.bos_id, tokenizer.eos_id
    if mask_id is None:
        raise UserError(
            f"the tokenizer ({tokenizer.kind}) has no mask token, which a masked language model needs; "
            f"use the kind wordpiece, or set mask: true in data.tokenizer"
        )
    if bos is None or eos is None:
        raise UserError(
            f"the tokenizer ({tokenizer.kind}) has no token for the beginning or the end of a text, and a masked "
            f"language model reads between them; use the kind wordpiece, or set bos: true and eos: true in "
            f"data.tokenizer"
        )
    return mask_id, bos, eos


def _put_bos_eos(tokens: np.ndarray, is_real: np.ndarray, bos: int, eos: int) -> np.ndarray:
    """The rows with bos at each one's first real token and eos at its last; a single one becomes bos."""
    result = tokens.copy()
    rows = np.flatnonzero(is_real.any(1))
    last = is_real.shape[1] - 1 - is_real[rows, ::-1].argmax(1)
    result[rows, last] = eos
    result[rows, is_real[rows].argmax(1)] = bos
    return result
