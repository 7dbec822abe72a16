"""The texts of a request as rows of token ids: long ones in overlapping chunks, or cut, with a count."""

from collections.abc import Sequence
from dataclasses import dataclass

from tercet.config import UserError
from tercet.data import encode_words
from tercet.data.rows.pair_rows import PAIR_FRAME
from tercet.encoding import Chunking, encode_texts
from tercet.encoding.batches import frame_rows
from tercet.encoding.chunks import SPECIAL, chunk_rows
from tercet.limits import MAX_CHUNK_TOKENS, MAX_CHUNKS
from tercet.serve.engine.batch_tasks import EncodedRow
from tercet.serve.http.errors import APIError
from tercet.serve.http.requests import LongTextRequest
from tercet.serve.http.responses import PromptUsage
from tercet.tokens import Tokenizer

LENGTHS = ("chunk", "overlap", "truncate_prompt_tokens")  # fields of a `LongTextRequest`
WHOLE = -1  # truncate_prompt_tokens for the maximum length of the model, as in vLLM


@dataclass(frozen=True, kw_only=True)
class RequestRows:
    """Texts as rows of token ids.

    Attributes:
        rows: Row of each chunk, in the order of the texts.
        tokens: Number of tokens of each row, without special tokens.
        counts: Number of rows of each text; 1 if it was not split.
        cut_tokens: Number of tokens that were cut from each text.
    """

    rows: list[EncodedRow]
    tokens: list[int]
    counts: list[int]
    cut_tokens: list[int]

    @property
    def usage(self) -> PromptUsage:
        return make_usage(self.tokens, self.cut_tokens)


def make_usage(tokens: Sequence[int], cut_tokens: Sequence[int]) -> PromptUsage:
    """Return the usage of a request.

    Args:
        tokens: Number of tokens of each chunk that is read.
        cut_tokens: Number of tokens that were cut from each text.
    """
    return PromptUsage(
        prompt_tokens=sum(tokens), total_tokens=sum(tokens), chunks=len(tokens),
        truncated_texts=sum(count > 0 for count in cut_tokens), truncated_tokens=sum(cut_tokens),
    )  # fmt: skip


def read_texts(tokenizer: Tokenizer, texts: Sequence[str], body: LongTextRequest, *, max_len: int) -> RequestRows:
    """Return the rows of texts; arguments and errors as in `read_ids`, and UserError if a text cannot be encoded."""
    return read_ids(tokenizer, [ids.tolist() for ids in tokenizer.encode_batch(texts)], body, max_len=max_len)


def read_ids(tokenizer: Tokenizer, texts: Sequence[list[int]], body: LongTextRequest, *, max_len: int) -> RequestRows:
    """Return the rows of texts that are already token ids.

    Args:
        tokenizer: Tokenizer of the model.
        texts: Ids of each text, without bos and eos.
        body: The request, which defines how long texts are read.
        max_len: Maximum number of tokens of a row, including bos and eos.

    Raises:
        APIError: If fields of the request exclude each other or do not fit the model, or there are too many chunks.
        UserError: If the tokenizer has no bos or eos.
    """
    longest = _select_length(body, max_len)
    chunking = _select_chunking(body, max_len, is_cut=longest is not None)
    if chunking is None:
        encoded = frame_rows(tokenizer, texts, max_len=longest or max_len)
        rows, counts, cut_tokens = encoded.rows, [1] * len(texts), encoded.cut_tokens
    else:
        _check_chunks(chunking, list(map(len, texts)))
        chunked = chunk_rows(tokenizer, texts, chunking)
        rows, counts, cut_tokens = chunked.rows, chunked.counts, [0] * len(texts)
    return RequestRows(
        rows=[EncodedRow(tuple(row)) for row in rows], tokens=[len(row) - SPECIAL for row in rows], counts=counts,
        cut_tokens=cut_tokens,
    )  # fmt: skip


def read_pairs(tokenizer: Tokenizer, pairs: Sequence[tuple[str, str]], *, max_len: int) -> RequestRows:
    """Return the rows of pairs of texts, which are cut to `max_len` tokens, including the special ones.

    Raises:
        UserError: If the tokenizer has no bos or eos, or a text cannot be encoded.
    """
    encoded = encode_texts(tokenizer, pairs, max_len=max_len)
    assert encoded.second_starts is not None, "pairs have a second text"
    return RequestRows(
        rows=[EncodedRow(tuple(row), start) for row, start in zip(encoded.rows, encoded.second_starts, strict=True)],
        tokens=[len(row) - PAIR_FRAME for row in encoded.rows], counts=[1] * len(pairs), cut_tokens=encoded.cut_tokens,
    )  # fmt: skip


def count_words(tokenizer: Tokenizer, texts: Sequence[str], *, max_len: int) -> PromptUsage:
    """Return the usage of texts whose words are labeled; they are cut to `max_len` tokens, including bos and eos.

    Raises:
        UserError: If a word cannot be encoded.
    """
    lengths = [len(ids) for ids, _ in encode_words(tokenizer, [text.split() for text in texts])]
    room = max_len - SPECIAL
    return make_usage([min(length, room) for length in lengths], [max(0, length - room) for length in lengths])


def check_no_lengths(body: LongTextRequest, texts: str) -> None:
    """Check that a request does not change how long texts are read, because they are always cut to the context.

    Args:
        body: The request.
        texts: Name of such texts in the message, such as "pairs of texts".

    Raises:
        APIError: If a field of `LENGTHS` is set.
    """
    for name in LENGTHS:
        if getattr(body, name) not in (None, WHOLE):
            raise APIError(400, f"{name} does not apply to {texts}, which are cut to the context; omit it", param=name)


def _select_length(body: LongTextRequest, max_len: int) -> int | None:
    """Return the number of tokens to which long texts are cut, including bos and eos; None to read them in chunks."""
    length = body.truncate_prompt_tokens
    if length is None:
        return max_len if body.truncate else None
    if length == WHOLE:
        return max_len
    if not SPECIAL < length <= max_len:
        message = f"truncate_prompt_tokens must be {WHOLE}, or {SPECIAL + 1} to {max_len:,}, the maximum of the model"
        raise APIError(400, message, param="truncate_prompt_tokens")
    return length


def _select_chunking(body: LongTextRequest, max_len: int, *, is_cut: bool) -> Chunking | None:
    try:
        return Chunking.select(max_len, chunk=body.chunk, overlap=body.overlap, truncate=is_cut)
    except UserError as error:
        raise APIError(400, str(error), param="overlap" if body.chunk is None else "chunk") from None


def _check_chunks(chunking: Chunking, lengths: Sequence[int]) -> None:
    """Check the number of chunks, and of their tokens, before they are made.

    Args:
        chunking: Lengths of the chunks.
        lengths: Number of tokens of each text.

    Raises:
        APIError: If there may be more than `MAX_CHUNKS` chunks or `MAX_CHUNK_TOKENS` tokens in split texts.
    """
    counts = [count for count in map(chunking.max_chunks, lengths) if count > 1]
    if sum(counts) > MAX_CHUNKS or sum(counts) * chunking.size > MAX_CHUNK_TOKENS:
        raise APIError(
            400,
            f"the texts have up to {sum(counts):,} chunks of {chunking.size:,} tokens, more than the limit of "
            f"{MAX_CHUNKS:,} chunks and {MAX_CHUNK_TOKENS:,} tokens per request; send fewer or shorter texts at once, "
            "or truncate: true",
            code="context_length_exceeded",
        )
