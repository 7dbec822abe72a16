"""Tokenized pairs of queries and documents, built once and kept in the cache.

A vocabulary is learned from the training pairs only. The hashes of the texts show which documents are relevant to a
query, so that training never treats one of them as a negative.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from tercet.data.cache import id_dtype
from tercet.data.corpora.array_files import ArrayFile
from tercet.data.corpora.example_preparation import ExampleCorpus, ExamplePreparation
from tercet.data.datasets.query_datasets import QUERY_DATASETS, find_queries
from tercet.data.encode.unknown_text import encode_located
from tercet.data.examples.queries import QueryPair
from tercet.data.specs import QueriesSpec, Side
from tercet.data.split_specs import HeldOut
from tercet.data.text_hashes import hash_text
from tercet.tokens import Tokenizer

HASH_FACTOR = np.uint64(0x9E3779B97F4A7C15)  # odd, so that a pair of hashes becomes one hash without loss of randomness


@dataclass(frozen=True, kw_only=True)
class QueryPairs:
    """Tokenized queries with their documents and negatives, memory-mapped.

    Attributes:
        queries, documents, negatives: Ids of all texts of a kind, concatenated, without bos and eos.
        query_starts, document_starts, negative_starts: (P + 1,) int64 position of the start of each text, and of the
            end of the last one. A pair without a negative has an empty one.
        hashes: (3 P,) uint64 hashes of the query, document and negative of each pair.
    """

    queries: np.ndarray
    query_starts: np.ndarray
    documents: np.ndarray
    document_starts: np.ndarray
    negatives: np.ndarray
    negative_starts: np.ndarray
    hashes: np.ndarray

    def __len__(self) -> int:
        return len(self.query_starts) - 1

    @property
    def lengths(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Number of tokens of each query, document and negative, (P,) int64 each."""
        return np.diff(self.query_starts), np.diff(self.document_starts), np.diff(self.negative_starts)

    def find_negatives(self, queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
        """Return the documents that may serve as negatives of each query, (Q, D) bool, from hashes (Q,) and (D,).

        These are all documents except those that the data pairs with the query, and the text of the query itself.
        """
        keys = _join_hashes(queries[:, None], documents[None])
        return ~np.isin(keys, self._relevant) & (queries[:, None] != documents[None])

    @cached_property
    def _relevant(self) -> np.ndarray:
        """Joined hashes of each query and its document."""
        table = self.hashes.reshape(-1, 3)
        return np.unique(_join_hashes(table[:, 0], table[:, 1]))


@dataclass(frozen=True, kw_only=True)
class QueryCorpus(ExampleCorpus[QueryPairs]):
    """Tokenized pairs in two parts.

    A pair with an empty side counts as empty. Near duplicates are found by comparing queries.

    Attributes:
        validation_texts: The pairs of `validation` as text.
    """

    validation_texts: tuple[QueryPair, ...]


def prepare_queries(
    spec: QueriesSpec,
    *,
    tokenizer: Tokenizer | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> QueryCorpus:
    """Return the corpus that `spec` describes, from the cache if it is there.

    Args:
        spec: Settings of the data.
        tokenizer: Tokenizer of a pretrained model, used instead of the spec's.
        expected_hash: Hash that the data must have, or None to accept any data. It is compared before any text is
            tokenized, printed or cached.
        progress: If True, show a bar on stderr, if that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: If pairs cannot be read, tokenized or divided, the tokenizer lacks bos or eos, or the cache cannot be
            written.
    """
    return _QueryPreparation(spec, tokenizer).prepare(expected_hash=expected_hash, progress=progress)


class _QueryPreparation(ExamplePreparation[QueryPair, QueryCorpus]):
    folder, title, singular, plural = "queries", "queries and documents", "query", "queries"

    def __init__(self, spec: QueriesSpec, tokenizer: Tokenizer | None = None) -> None:
        self._spec, self._custom_tokenizer, train = spec, tokenizer, find_queries(spec)
        self._validation_texts = list[QueryPair]()
        is_named = spec.source in QUERY_DATASETS
        settings = [] if is_named else [spec.encoding, spec.query_field, spec.document_field, spec.negative_field]
        match spec.validation:
            case HeldOut(source=source):
                held_out = find_queries(replace(spec, source=source))
            case None if is_named:
                held_out = find_queries(spec, "validation")
            case _:
                held_out = None
        super().__init__(str(spec.source), train, held_out, validation=spec.validation, settings=settings)

    def _choose_tokenizer(self) -> Tokenizer:
        return self._encoder_tokenizer(self._custom_tokenizer, self._spec.tokenizer, lambda pair: pair.texts)

    def _files(self) -> list[ArrayFile]:
        dtype = id_dtype(self.tokenizer)
        return [
            ArrayFile("queries.bin", dtype, "query_starts.npy"),
            ArrayFile("documents.bin", dtype, "document_starts.npy"),
            ArrayFile("negatives.bin", dtype, "negative_starts.npy"),
            ArrayFile("hashes.bin", np.dtype(np.uint64)),
        ]

    def _encode(self, examples: Sequence[QueryPair], side: Side, first: int) -> list[list[Any]]:
        if side == "validation":
            self._validation_texts += examples
        ids = list[list[Any]]()
        for kind in QueryPair._fields:
            places = (f"{self.name}, {side} {kind} {number:,}" for number in count(first))
            ids.append([*encode_located(self.tokenizer, [getattr(pair, kind) for pair in examples], places)])
        hashes = [np.array([hash_text(text) for text in pair], dtype=np.uint64) for pair in examples]
        return [*ids, hashes]

    def _write(self, folder: Path, bar: Progress) -> dict[str, Any]:
        meta = super()._write(folder, bar)
        texts = json.dumps(self._validation_texts, ensure_ascii=False)
        (folder / "validation.json").write_text(texts, encoding="utf-8")
        return meta

    def _load(self, folder: Path, meta: dict[str, Any]) -> QueryCorpus:
        texts = json.loads((folder / "validation.json").read_text(encoding="utf-8"))
        return QueryCorpus(
            **self._fields(folder, meta, QueryPairs), validation_texts=tuple(QueryPair(*pair) for pair in texts)
        )


def _join_hashes(queries: np.ndarray, documents: np.ndarray) -> np.ndarray:
    """Return one hash for each pair of a query's and a document's hash."""
    return queries * HASH_FACTOR ^ documents
