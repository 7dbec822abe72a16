"""Encoding of texts: truncated to the model's context, in batches of similar length.

Each text begins with bos and ends with eos, as in training; both texts of a pair end with eos. The result of a text
does not depend on the other texts of its batch, because padding is masked.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import torch
from jaxtyping import Shaped
from torch import Tensor

from tercet.config import UserError
from tercet.data.encode.unknown_text import encode_located
from tercet.data.rows.batching import BATCH_TOKENS, map_by_length
from tercet.data.rows.pair_rows import PAIR_FRAME, frame_pair
from tercet.models import EncoderOnly
from tercet.models.inference import inference_mode
from tercet.objectives import pad_rows
from tercet.objectives.batch import to_device, wait_for_copies
from tercet.tokens import Tokenizer

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class EncodedTexts:
    """Texts as token ids.

    Attributes:
        rows: Ids of each text, from bos to eos.
        cut_tokens: Number of tokens that were cut from each text; 0 for a text that fits.
        second_starts: For pairs, the position of the second text in each row; None for single texts.
    """

    rows: list[list[int]]
    cut_tokens: list[int]
    second_starts: list[int] | None = None

    @property
    def cut(self) -> list[bool]:
        """True for each text that was truncated."""
        return [count > 0 for count in self.cut_tokens]

    @property
    def truncated(self) -> int:
        """Number of truncated texts."""
        return sum(self.cut)


@dataclass(frozen=True, kw_only=True)
class HiddenBatch:
    """Hidden states of a batch of rows.

    Attributes:
        numbers: Index of each row of the batch among the rows of `map_hidden`.
        hidden: (B, T, D) hidden states.
        token_mask: (B, T), True at real tokens, or None if all are real.
    """

    numbers: list[int]
    hidden: Tensor
    token_mask: Tensor | None


def encode_texts(
    tokenizer: Tokenizer, texts: Sequence[str] | Sequence[tuple[str, str]], *, max_len: int
) -> EncodedTexts:
    """Encode texts, or pairs of texts, and add bos and eos.

    Texts of more than `max_len` tokens, including bos and eos, are truncated before eos; for pairs see `frame_pair`.

    Raises:
        UserError: If the tokenizer has no bos or eos, or a text cannot be encoded.
        ValueError: If `max_len` is less than 3, or for pairs less than `MIN_PAIR_LEN`.
    """
    if texts and isinstance(texts[0], tuple):
        return _encode_pairs(tokenizer, cast("Sequence[tuple[str, str]]", texts), max_len)
    texts = cast("Sequence[str]", texts)
    return frame_rows(tokenizer, [ids.tolist() for ids in encode_located(tokenizer, texts)], max_len=max_len)


def frame_rows(tokenizer: Tokenizer, texts: Sequence[list[int]], *, max_len: int) -> EncodedTexts:
    """Truncate texts that are already ids, and add bos and eos, as `encode_texts` does."""
    bos, eos = _frame_tokens(tokenizer)
    if max_len < 3:
        raise ValueError(f"max_len={max_len} must be at least 3, for bos, one token and eos")
    max_ids = max_len - 2
    return EncodedTexts(
        rows=[[bos, *ids[:max_ids], eos] for ids in texts], cut_tokens=[max(0, len(ids) - max_ids) for ids in texts]
    )


def _encode_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], max_len: int) -> EncodedTexts:
    bos, eos = _frame_tokens(tokenizer)
    distinct = list(dict.fromkeys(text for pair in pairs for text in pair))  # a query is in many pairs
    ids = dict(zip(distinct, (ids.tolist() for ids in encode_located(tokenizer, distinct)), strict=True))
    rows = [frame_pair(ids[first], ids[second], max_len=max_len, bos=bos, eos=eos) for first, second in pairs]
    return EncodedTexts(
        rows=[row.ids for row in rows],
        cut_tokens=[
            len(ids[first]) + len(ids[second]) + PAIR_FRAME - len(row.ids)
            for (first, second), row in zip(pairs, rows, strict=True)
        ],
        second_starts=[row.second_start for row in rows],
    )


def _frame_tokens(tokenizer: Tokenizer) -> tuple[int, int]:
    """Return the ids of bos and eos. Raises UserError if the tokenizer lacks one of them."""
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if bos is None or eos is None:
        raise UserError(
            f"the tokenizer ({tokenizer.kind}) has no token for the beginning or the end of a text, but an encoder "
            "requires both; train with the kind wordpiece, or set bos: true and eos: true in data.tokenizer"
        )
    return bos, eos


def pick_places(table: Shaped[Tensor, "B T D"], places: Sequence[tuple[int, int]]) -> Shaped[Tensor, "N D"]:
    """Return the vectors of `table` at pairs of a row and a position, without synchronizing with a GPU."""
    rows, positions = to_device(torch.tensor(places, dtype=torch.long).view(-1, 2), table.device).unbind(1)
    return table[rows, positions]


def map_hidden(
    model: EncoderOnly,
    lengths: Sequence[int],
    get_row: Callable[[int], Sequence[int]],
    function: Callable[[HiddenBatch], Sequence[Result]],
    *,
    pad: int | None,
    batch_tokens: int = BATCH_TOKENS,
    second_starts: Sequence[int] | None = None,
) -> list[Result]:
    """Compute hidden states of rows in batches, and return one result per row, in the order of the rows.

    Args:
        model: Model that computes the hidden states.
        lengths: Length of each row.
        get_row: Function that returns the token ids of the row with this index. It is called when the batch of the row
            is made.
        function: Function of a batch that returns one result for each row. The results may be tensors from `to_host`,
            which are complete when `map_hidden` returns.
        pad: Padding id. Any id works, because padding is masked.
        batch_tokens: Maximum number of tokens per batch, including padding. A longer row forms its own batch.
        second_starts: For rows of two texts, the position of the second text in each row. It begins the second segment,
            if the model has one.
    """
    device = model.embedding.weight.device

    def read(numbers: list[int]) -> Sequence[Result]:
        rows = [get_row(number) for number in numbers]
        tokens, real = pad_rows(rows, device, pad=pad or 0)
        token_mask = None if len(set(map(len, rows))) == 1 else real
        segments = None
        if second_starts is not None and model.spec.n_segments > 1:
            starts = to_device(torch.tensor([second_starts[number] for number in numbers]), device)
            segments = (torch.arange(tokens.shape[1], device=device) >= starts[:, None]).long()  # (B, T)
        with inference_mode(model.modules()):
            hidden = model.hidden(tokens, token_mask=token_mask, segments=segments)
            return function(HiddenBatch(numbers=numbers, hidden=hidden, token_mask=token_mask))

    results = map_by_length(read, lengths, batch_tokens)
    wait_for_copies(device)
    return results
