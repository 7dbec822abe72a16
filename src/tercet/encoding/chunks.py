"""Overlapping chunks of texts that are longer than the context of a model.

    chunk 1 |bos ........... eos|
    chunk 2              |bos ........... eos|          the overlap is read twice, so no word lacks its neighbors

A chunk ends before a word if one begins in its last eighth, and starts at a word if one begins in the first half of the
overlap. All characters of a text are in a chunk.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np

from tercet.config import UserError
from tercet.data.encode.unknown_text import encode_located
from tercet.encoding.batches import frame_rows
from tercet.tokens import Tokenizer

OVERLAP_SHARE = 8  # the default overlap is the tokens of a chunk divided by this number
SPECIAL = 2  # bos and eos


@dataclass(frozen=True, kw_only=True)
class Chunk:
    """Part of a text, or a whole text that fits into the context.

    Attributes:
        document: Number of the text, from 0.
        start, end: Indices of its characters: the chunk is `text[start:end]`.
        tokens: Number of its tokens, without bos and eos.
    """

    document: int
    start: int
    end: int
    tokens: int


@dataclass(frozen=True, kw_only=True)
class Chunking:
    """Lengths of chunks.

    Attributes:
        size: Maximum number of tokens of a chunk, including bos and eos. Longer texts are split.
        overlap: Maximum number of tokens that a chunk shares with the one before it.
    """

    size: int
    overlap: int

    @classmethod
    def create(cls, max_len: int, size: int | None = None, overlap: int | None = None) -> "Chunking":
        """Return lengths that suit a model.

        Args:
            max_len: Context of the model.
            size: Maximum number of tokens of a chunk (default: the context).
            overlap: Maximum number of shared tokens (default: an eighth of the tokens of a chunk).

        Raises:
            UserError: If the chunks exceed the context or are too short for a token, or the overlap is longer than the
                chunks.
        """
        size = max_len if size is None else size
        if not SPECIAL < size <= max_len:
            raise UserError(
                f"chunks of {size:,} tokens: a chunk has 3 to {max_len:,} tokens, the context of the model; pass a "
                "number in this range"
            )
        room = size - SPECIAL
        overlap = room // OVERLAP_SHARE if overlap is None else overlap
        if not 0 <= overlap < room:
            raise UserError(
                f"an overlap of {overlap:,} tokens: chunks of {size:,} tokens can share 0 to {room - 1:,}, because two "
                "are bos and eos"
            )
        return cls(size=size, overlap=overlap)

    @classmethod
    def select(
        cls,
        max_len: int,
        *,
        chunk: int | None = None,
        overlap: int | None = None,
        truncate: bool | None = False,
        prefix: str = "",
    ) -> "Chunking | None":
        """Return the lengths of chunks that settings define for a model, or None if long texts are to be truncated.

        Args:
            max_len: Context of the model.
            chunk, overlap: Lengths as in `create`.
            truncate: If True, long texts are truncated.
            prefix: Characters before the names of the settings in messages, such as "--" for flags.

        Raises:
            UserError: If `truncate` is combined with a length, or as in `create`.
        """
        if not truncate:
            return cls.create(max_len, chunk, overlap)
        for name, length in (("chunk", chunk), ("overlap", overlap)):
            if length is not None:
                raise UserError(f"{prefix}truncate and {prefix}{name} exclude each other; pass one of them")
        return None

    def max_chunks(self, tokens: int) -> int:
        """Return an upper limit of the number of chunks of a text with `tokens` tokens, without bos and eos."""
        room = self.size - SPECIAL
        step = max(1, room - room // OVERLAP_SHARE - self.overlap)  # tokens between the starts of the closest chunks
        return 1 + max(0, -(-(tokens - room) // step))


@dataclass(frozen=True, kw_only=True)
class ChunkedRows:
    """Texts as rows of token ids, one for each chunk.

    Attributes:
        rows: Ids of each chunk, from bos to eos, in the order of the texts.
        spans: First token of each chunk in its text, and the end.
        counts: Number of chunks of each text; 1 if it was not split.
    """

    rows: list[list[int]]
    spans: list[tuple[int, int]]
    counts: list[int]

    @property
    def tokens(self) -> list[int]:
        """Number of tokens of each chunk, without bos and eos."""
        return [end - start for start, end in self.spans]


@dataclass(frozen=True, kw_only=True)
class ChunkedTexts(ChunkedRows):
    """Texts as chunks, with their places.

    Attributes:
        chunks: Place of each chunk, in the order of the texts.
    """

    chunks: list[Chunk]


def chunk_texts(tokenizer: Tokenizer, texts: Sequence[str], chunking: Chunking) -> ChunkedTexts:
    """Encode texts, and split those of more than `chunking.size` tokens. An empty text is one chunk without tokens.

    Raises:
        UserError: If the tokenizer has no bos or eos, or a text cannot be encoded.
    """
    split = chunk_rows(tokenizer, [ids.tolist() for ids in encode_located(tokenizer, texts)], chunking)
    chunks, spans = list[Chunk](), iter(split.spans)
    for number, (text, count) in enumerate(zip(texts, split.counts, strict=True)):
        if count == 1:
            chunks.append(Chunk(document=number, start=0, end=len(text), tokens=next(spans)[1]))
            continue
        places = [*tokenizer.token_starts(text).tolist(), len(text)]
        chunks += [
            Chunk(document=number, start=places[start], end=places[end], tokens=end - start)
            for start, end in islice(spans, count)
        ]
    return ChunkedTexts(rows=split.rows, spans=split.spans, counts=split.counts, chunks=chunks)


def chunk_rows(tokenizer: Tokenizer, texts: Sequence[list[int]], chunking: Chunking) -> ChunkedRows:
    """Split texts that are already ids, as `chunk_texts` does, and add bos and eos.

    Raises:
        UserError: If the tokenizer has no bos or eos.
    """
    room, spans, counts, parts = chunking.size - SPECIAL, list[tuple[int, int]](), list[int](), list[list[int]]()
    for ids in texts:
        is_long = len(ids) > room
        places = chunk_spans(tokenizer.word_starts(np.array(ids)), chunking) if is_long else [(0, len(ids))]
        spans += places
        counts.append(len(places))
        parts += [ids[start:end] for start, end in places]
    return ChunkedRows(rows=frame_rows(tokenizer, parts, max_len=chunking.size).rows, spans=spans, counts=counts)


def chunk_spans(word_starts: np.ndarray, chunking: Chunking) -> list[tuple[int, int]]:
    """Return the first token and the end of each chunk of a text.

    Args:
        word_starts: (N,) True at tokens that begin a word.
        chunking: Lengths of the chunks.
    """
    words, room, overlap = np.flatnonzero(word_starts), chunking.size - SPECIAL, chunking.overlap
    spans, start = list[tuple[int, int]](), 0
    while start + room < len(word_starts):
        earliest = start + max(overlap + 1, room - room // OVERLAP_SHARE)  # later chunks must start later
        last = int(np.searchsorted(words, start + room, side="right")) - 1
        end = int(words[last]) if last >= 0 and words[last] >= earliest else start + room
        spans.append((start, end))
        start = end - overlap
        first = int(np.searchsorted(words, start))
        if first < len(words) and words[first] <= start + overlap // 2:
            start = int(words[first])
    return [*spans, (start, len(word_starts))]


def mean_of_chunks(values: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """Return the mean (L,) of the values (C, L) of the chunks of one text, weighted by their tokens."""
    return np.average(values.astype(np.float64), axis=0, weights=tokens)
