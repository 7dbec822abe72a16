"""Texts through an encoder: cut to what it takes, and read in batches of like length.

A text by itself is bos, its ids and eos, as in training. What becomes of it does not depend on the texts around it:
padding is seen by no one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from jaxtyping import Shaped
from torch import Tensor

from tercet.config import UserError
from tercet.data.encode.unknown_text import encode_located
from tercet.data.rows.batching import BATCH_TOKENS, map_by_length
from tercet.models import EncoderOnly
from tercet.models.inference import inference_mode
from tercet.objectives import pad_rows
from tercet.objectives.batch import to_device, wait_for_copies
from tercet.tokens import Tokenizer

Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class EncodedTexts:
    """Texts as the model reads them.

    Attributes:
        rows: of each text bos, its ids, eos.
        cut: whether each was longer than the model takes.
    """

    rows: list[list[int]]
    cut: list[bool]

    @property
    def truncated(self) -> int:
        """How many texts were cut."""
        return sum(self.cut)


@dataclass(frozen=True, kw_only=True)
class HiddenBatch:
    """Attributes:
    numbers: which rows these are.
    hidden: (B, T, D).
    token_mask: (B, T) True at real tokens; None where all are.
    """

    numbers: list[int]
    hidden: Tensor
    token_mask: Tensor | None


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], *, max_len: int) -> EncodedTexts:
    """Each text between bos and eos, cut before its eos where that makes more than `max_len` tokens.

    Raises:
        UserError: where the tokenizer has no bos or eos, or a text cannot be encoded.
    """
    return frame_rows(tokenizer, [ids.tolist() for ids in encode_located(tokenizer, texts)], max_len=max_len)


def frame_rows(tokenizer: Tokenizer, texts: Sequence[list[int]], *, max_len: int) -> EncodedTexts:
    """`encode_texts` of texts that are ids already."""
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if bos is None or eos is None:
        raise UserError(
            f"the tokenizer ({tokenizer.kind}) has no token for the beginning or the end of a text, and an encoder "
            "reads between them; train with the kind wordpiece, or set bos: true and eos: true in data.tokenizer"
        )
    if max_len < 3:
        raise ValueError(f"max_len={max_len} leaves no room for a token between bos and eos; it must be at least 3")
    max_ids = max_len - 2
    return EncodedTexts(rows=[[bos, *ids[:max_ids], eos] for ids in texts], cut=[len(ids) > max_ids for ids in texts])


def pick_places(table: Shaped[Tensor, "B T D"], places: Sequence[tuple[int, int]]) -> Shaped[Tensor, "N D"]:
    """The vectors at (row, position) places, without a wait for a GPU."""
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
) -> list[Result]:
    """One answer for each row, in the order of the rows.

    Args:
        lengths: of the rows, by number.
        get_row: the ids of the row with this number; asked for when its batch is made.
        function: for a batch, as many answers as it has rows; tensors by `to_host` are waited for once, at the end.
        pad: fills rows up; any id does, for nobody sees it.
        batch_tokens: the most tokens of a batch, padding included; a row that is longer stands alone.
    """
    device = model.embedding.weight.device

    def read(numbers: list[int]) -> Sequence[Result]:
        rows = [get_row(number) for number in numbers]
        tokens, real = pad_rows(rows, device, pad=pad or 0)
        token_mask = None if len(set(map(len, rows))) == 1 else real
        with inference_mode(model.modules()):
            return function(
                HiddenBatch(numbers=numbers, hidden=model.hidden(tokens, token_mask=token_mask), token_mask=token_mask)
            )

    results = map_by_length(read, lengths, batch_tokens)
    wait_for_copies(device)
    return results
