"""Batches of queries and documents."""

from dataclasses import dataclass

import numpy as np

from tercet.data.corpora.query_corpus import QueryPairs
from tercet.data.rows.padding import pad_texts


@dataclass(frozen=True, kw_only=True)
class QueryRows:
    """Batch of queries and documents, padded on the right.

    Attributes:
        queries: (B, S) int64: bos, the query, eos.
        query_mask: (B, S) bool, True at real tokens.
        documents: (C, T) int64: bos, a document, eos. The first B are those of the queries, the others are negatives.
        document_mask: (C, T) bool, True at real tokens.
        candidates: (B, C) bool, True at the document of each query and at the documents that are not relevant to it.
    """

    queries: np.ndarray
    query_mask: np.ndarray
    documents: np.ndarray
    document_mask: np.ndarray
    candidates: np.ndarray


def query_rows(pairs: QueryPairs, numbers: np.ndarray, *, max_len: int, bos: int, eos: int, pad: int) -> QueryRows:
    """Return the pairs `numbers` (B,) as a batch, with their negatives. Arguments and errors as in `pad_texts`."""
    special = {"max_len": max_len, "bos": bos, "eos": eos, "pad": pad}
    queries, query_mask = pad_texts(pairs.queries, pairs.query_starts, numbers, **special)
    with_negative = numbers[pairs.lengths[2][numbers] > 0]
    parts = [pad_texts(pairs.documents, pairs.document_starts, numbers, **special)]
    if len(with_negative):
        parts.append(pad_texts(pairs.negatives, pairs.negative_starts, with_negative, **special))
    longest = max(tokens.shape[1] for tokens, _ in parts)
    padded = [np.pad(tokens, ((0, 0), (0, longest - tokens.shape[1])), constant_values=pad) for tokens, _ in parts]
    masks = [np.pad(mask, ((0, 0), (0, longest - mask.shape[1]))) for _, mask in parts]
    hashes = pairs.hashes.reshape(-1, 3)
    documents = np.concatenate([hashes[numbers, 1], hashes[with_negative, 2]])
    candidates = pairs.find_negatives(hashes[numbers, 0], documents)
    np.fill_diagonal(candidates, True)
    return QueryRows(
        queries=queries,
        query_mask=query_mask,
        documents=np.concatenate(padded),
        document_mask=np.concatenate(masks),
        candidates=candidates,
    )
