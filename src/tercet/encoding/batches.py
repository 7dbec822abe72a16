"""Texts through an encoder: cut to what it takes, sorted by length, read in batches, and put back in their order.

A text by itself is bos, its ids and eos, as in training. What becomes of it does not depend on the texts around it:
padding is seen by no one.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.config import UserError
from tercet.models import EncoderOnly
from tercet.models.rest import at_rest
from tercet.tokens import Tokenizer

BATCH_TOKENS = 16_384
LOGITS_AT_ONCE = 1 << 24  # 64 MiB of float32, whatever the vocabulary

Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True)
class Encoded:
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
class Batch:
    """Attributes:
    numbers: which rows these are.
    hidden: (B, T, D).
    padding: (B, T) True at real tokens; None where all are.
    """

    numbers: list[int]
    hidden: Tensor
    padding: Tensor | None


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str], *, max_len: int) -> Encoded:
    """Each text between bos and eos, cut before its eos where that makes more than `max_len` tokens.

    Raises:
        UserError: where the tokenizer has no bos or eos, or a text cannot be encoded.
    """
    return framed(tokenizer, [ids.tolist() for ids in tokenizer.encode_batch(texts)], max_len=max_len)


def framed(tokenizer: Tokenizer, every: Sequence[list[int]], *, max_len: int) -> Encoded:
    """`encode_texts` of texts that are ids already."""
    bos, eos = tokenizer.bos_id, tokenizer.eos_id
    if bos is None or eos is None:
        raise UserError(
            f"the tokenizer ({tokenizer.kind}) has no token for the beginning or the end of a text, and an encoder "
            "reads between them; train with the kind wordpiece, or set bos: true and eos: true in data.tokenizer"
        )
    if max_len < 3:
        raise ValueError(f"max_len={max_len} leaves no room for a token between bos and eos; it must be at least 3")
    room = max_len - 2
    return Encoded(rows=[[bos, *ids[:room], eos] for ids in every], cut=[len(ids) > room for ids in every])


def in_batches(
    model: EncoderOnly,
    lengths: Sequence[int],
    row: Callable[[int], Sequence[int]],
    answer: Callable[[Batch], Sequence[Answer]],
    *,
    pad: int | None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[Answer]:
    """One answer for each row, in the order of the rows.

    Args:
        lengths: of the rows, by number.
        row: the ids of the row with this number; asked for when its batch is made.
        answer: for a batch, as many answers as it has rows.
        pad: fills rows up; any id does, for nobody sees it.
        batch_tokens: the most tokens of a batch, padding included; a row that is longer stands alone.
    """
    if batch_tokens < 1:
        raise ValueError(f"batch_tokens={batch_tokens} must be 1 or more")
    device = model.embedding.weight.device
    found: dict[int, Answer] = {}
    for numbers in by_length(lengths, batch_tokens):
        rows = [row(number) for number in numbers]
        n_real = np.array([len(ids) for ids in rows])
        tokens = np.full((len(rows), n_real.max()), pad or 0, dtype=np.int64)
        for place, ids in enumerate(rows):
            tokens[place, : len(ids)] = ids
        real = np.arange(tokens.shape[1]) < n_real[:, None]
        padding = None if real.all() else torch.from_numpy(real).to(device)
        with at_rest(model.modules()):
            hidden = model.hidden(torch.from_numpy(tokens).to(device), padding=padding)
            answers = answer(Batch(numbers=numbers, hidden=hidden, padding=padding))
        found.update(zip(numbers, answers, strict=True))
    return [found[number] for number in range(len(lengths))]


def by_length(lengths: Sequence[int], batch_tokens: int) -> Iterator[list[int]]:
    """Numbers of rows of like length together, the longest first: what does not fit into memory fails at once."""
    rest = sorted(range(len(lengths)), key=lambda number: -lengths[number])
    start = 0
    while start < len(rest):
        size = max(1, batch_tokens // max(1, lengths[rest[start]]))
        yield rest[start : start + size]
        start += size


def target_logprobs(model: EncoderOnly, hidden: Tensor, targets: Tensor) -> Tensor:
    """ln p of one token (N,) at each place whose hidden state is given (N, D), in float32."""
    n = max(1, LOGITS_AT_ONCE // model.vocab_size)
    both = zip(hidden.split(n), targets.split(n), strict=True)
    return torch.cat([-F.cross_entropy(model.logits(h), t, reduction="none") for h, t in both])
