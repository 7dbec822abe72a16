"""Embeddings of texts: the pooled hidden states, normalized to length 1.

    v = (1/T) · sum of h_t        v / |v|

The mean is over all real tokens, including bos and eos, as in sentence-transformers (Reimers and Gurevych 2019). The
dot product of normalized vectors is their cosine. A model may have dense layers between the mean and the
normalization.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypedDict, Unpack

import numpy as np
import torch.nn.functional as F
from torch import nn

from tercet.config import UserError
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.encoding.batches import HiddenBatch, encode_texts, map_hidden
from tercet.encoding.chunks import Chunk, Chunking, chunk_texts, mean_of_chunks
from tercet.models import EncoderOnly
from tercet.nn.pooling import pool
from tercet.nn.specs import Pooling
from tercet.objectives.batch import to_host
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Embeddings:
    """Embeddings of texts.

    Attributes:
        vectors: (N, D) float32, one vector per text, in their order.
        truncated: Number of texts that exceed the model's context and were cut.
    """

    vectors: np.ndarray
    truncated: int


@dataclass(frozen=True, kw_only=True)
class DocumentEmbeddings:
    """Embeddings of texts of any length.

    Attributes:
        vectors: (N, D) float32, one vector per text, in their order.
        counts: Number of chunks of each text; 1 if it fits into the context.
    """

    vectors: np.ndarray
    counts: list[int]


@dataclass(frozen=True, kw_only=True)
class ChunkEmbeddings:
    """Embeddings of the chunks of texts.

    Attributes:
        vectors: (C, D) float32, one vector per chunk, in the order of the texts.
        chunks: Place of each chunk in its text.
    """

    vectors: np.ndarray
    chunks: list[Chunk]


class VectorSettings(TypedDict, total=False):
    """Settings of the vectors of texts.

    Attributes:
        pooling: `mean` of the hidden states of all tokens (default), `first`, the hidden state of bos, or `max` of each
            number.
        projection: Dense layers that are applied to the pooled vector; they are moved to the device of the model.
        normalize: If True, normalize vectors to length 1 (default: True).
        size: Number of elements to which vectors are cut, before they are normalized (default: all).
        batch_tokens: Maximum number of tokens per batch, including padding.
    """

    pooling: Pooling
    projection: nn.Sequential | None
    normalize: bool
    size: int | None
    batch_tokens: int


def embed(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    max_len: int | None = None,
    **settings: Unpack[VectorSettings],
) -> Embeddings:
    """Return the vectors of the texts. The vector of an empty text is that of bos and eos.

    Args:
        model: Model that computes the hidden states.
        tokenizer: Tokenizer of the model.
        texts: Texts to embed.
        max_len: Maximum number of tokens per text, including bos and eos (default: the model's context, which is also
            the upper limit).
        settings: Settings of the vectors; see `VectorSettings`.

    Raises:
        UserError: If the tokenizer has no bos or eos, or a text cannot be encoded.
        ValueError: If `max_len` is less than 3.
    """
    longest = model.max_len if max_len is None else min(model.max_len, max_len)
    encoded_texts = encode_texts(tokenizer, texts, max_len=longest)
    vectors = embed_rows(model, encoded_texts.rows, pad=tokenizer.pad_id, **settings)
    return Embeddings(vectors=_stack(vectors, model, settings), truncated=encoded_texts.truncated)


def embed_chunks(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    chunking: Chunking,
    **settings: Unpack[VectorSettings],
) -> ChunkEmbeddings:
    """Return the vectors of the chunks of texts. The vector of a text that fits into the context is that of `embed`.

    Args:
        chunking: Lengths of the chunks; the other arguments and the errors are those of `embed`.
    """
    chunked = chunk_texts(tokenizer, texts, chunking)
    vectors = embed_rows(model, chunked.rows, pad=tokenizer.pad_id, **settings)
    return ChunkEmbeddings(vectors=_stack(vectors, model, settings), chunks=chunked.chunks)


def embed_documents(
    model: EncoderOnly,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    *,
    chunking: Chunking,
    **settings: Unpack[VectorSettings],
) -> DocumentEmbeddings:
    """Return one vector per text, also for texts that are longer than the context.

    The vector of a long text is the mean of the vectors of its chunks, weighted by their tokens, before it is
    normalized. The vector of a text that fits into the context is that of `embed`.

    Args:
        chunking: Lengths of the chunks; the other arguments and the errors are those of `embed`.
    """
    chunked = chunk_texts(tokenizer, texts, chunking)
    is_part = [count > 1 for count in chunked.counts for _ in range(count)]

    def embed_selected(settings: VectorSettings, *, parts: bool) -> list[np.ndarray]:
        rows = [row for row, part in zip(chunked.rows, is_part, strict=True) if part == parts]
        return embed_rows(model, rows, pad=tokenizer.pad_id, **settings)

    whole = iter(embed_selected(settings, parts=False))
    parts = embed_selected({**settings, "normalize": False}, parts=True)
    tokens = [n for n, part in zip(chunked.tokens, is_part, strict=True) if part]
    counts = [count for count in chunked.counts if count > 1]
    means = iter(mean_vectors(parts, tokens, counts, normalize=settings.get("normalize", True)))
    vectors = [next(whole if count == 1 else means) for count in chunked.counts]
    return DocumentEmbeddings(vectors=_stack(vectors, model, settings), counts=chunked.counts)


def mean_vectors(
    vectors: Sequence[np.ndarray], tokens: Sequence[int], counts: Sequence[int], *, normalize: bool
) -> list[np.ndarray]:
    """Return the vector (D,) of each text, which is the mean of those of its chunks, weighted by their tokens.

    Args:
        vectors: Vectors (D,) of all chunks, not normalized, in the order of the texts.
        tokens: Number of tokens of each chunk.
        counts: Number of chunks of each text.
        normalize: If True, normalize the vectors of the texts to length 1.
    """
    means, first = list[np.ndarray](), 0
    for count in counts:
        chunks = slice(first, first + count)
        mean = mean_of_chunks(np.stack(vectors[chunks]), tokens[chunks]) if count > 1 else vectors[first]
        length = np.linalg.norm(mean.astype(np.float64))
        means.append((mean / length if normalize and length else mean).astype(np.float32))
        first += count
    return means


def _stack(vectors: Sequence[np.ndarray], model: EncoderOnly, settings: VectorSettings) -> np.ndarray:
    if vectors:
        return np.stack(vectors)
    return np.zeros((0, settings.get("size") or vector_width(model, settings.get("projection"))), np.float32)


def vector_width(model: EncoderOnly, projection: nn.Sequential | None = None) -> int:
    """Return the number of elements of the vectors that `embed` returns."""
    widths = [layer.out_features for layer in projection or () if isinstance(layer, nn.Linear)]
    return widths[-1] if widths else model.spec.stack.d_model


def check_size(size: int | None, trained_sizes: Sequence[int], width: int) -> None:
    """Check a size to which vectors of `width` elements are to be cut; None for the whole vector.

    Raises:
        UserError: If the model was not trained for vectors of this size (`task.sizes`).
    """
    if size is None or size in (*trained_sizes, width):
        return
    sizes = " or ".join(map(str, (*trained_sizes, width)))
    raise UserError(f"the vectors of this model have {sizes} numbers, not {size}; smaller ones require task.sizes")


def embed_rows(
    model: EncoderOnly,
    rows: Sequence[list[int]],
    *,
    pad: int | None,
    pooling: Pooling = "mean",
    projection: nn.Sequential | None = None,
    normalize: bool = True,
    size: int | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list[np.ndarray]:
    """Return the vector (D,) of each row of token ids, which begins with bos and ends with eos; see `embed`."""

    def embed_batch(batch: HiddenBatch) -> list[np.ndarray]:
        vectors = pool(batch.hidden.float(), batch.token_mask, pooling)  # (B, D)
        if projection is not None:
            vectors = projection.to(vectors.device)(vectors)  # (B, D')
        vectors = vectors[:, :size]
        return list(to_host(F.normalize(vectors, dim=-1) if normalize else vectors).numpy())

    lengths = [len(row) for row in rows]
    return map_hidden(model, lengths, rows.__getitem__, embed_batch, pad=pad, batch_tokens=batch_tokens)
