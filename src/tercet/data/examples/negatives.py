"""Negatives of queries: labeled pairs made from queries and their documents, without labels in the data.

Each pair of the data is relevant. Irrelevant are its hard negative, if it has one, and `count` documents of the source
that BM25 ranks among the first `DEPTH` for the query, drawn with a seed that depends on the query. A document that the
data pairs with the query, or that has the query's text, is never drawn. Such negatives resemble the documents that a
reranker is applied to; random documents share few words with the query and are easy to reject (Karpukhin et al. 2020).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from tercet.config import UserError
from tercet.data.examples.bm25 import bm25_scorer
from tercet.data.examples.labels import PairExample
from tercet.data.examples.queries import QuerySource
from tercet.data.text_hashes import hash_text

DEPTH = 100  # first documents of BM25 from which negatives are drawn


@dataclass(frozen=True, kw_only=True)
class NegativesSource:
    """Labeled pairs of the queries and documents in `source`.

    Attributes:
        source: Queries and documents.
        count: Number of drawn negatives of each query; fewer if there are not as many documents.
        label: Label of relevant pairs; others have none.
    """

    example_name: ClassVar[str] = "pair with a query and a document"
    source: QuerySource
    count: int
    label: str

    @property
    def name(self) -> str:
        return self.source.name

    def hash(self) -> str:
        return self.source.hash()

    def size(self) -> int | None:
        self.source.size()  # checks that a file exists
        return None  # unknown, because a document may be drawn many times

    def examples(self) -> Iterator[PairExample]:
        """Yield each pair of the data, followed by the hard negative of the pair and the drawn ones.

        Raises:
            UserError: If the source cannot be read, or bm25s is not installed.
        """
        queries = dict[str, None]()
        for query, document, negative in self.source.examples():
            yield PairExample((query, document), (self.label,))
            if negative:
                yield PairExample((query, negative), ())
            if query not in queries:  # a query of several pairs has one set of negatives
                queries[query] = None
                for number in self._drawn.get(query, ()):
                    yield PairExample((query, self._documents[number]), ())

    @cached_property
    def _relevant(self) -> dict[str, set[str]]:
        """Documents of each query."""
        relevant = dict[str, set[str]]()
        for pair in self.source.examples():
            if not pair.is_empty:
                relevant.setdefault(pair.query, set()).add(pair.document)
        return relevant

    @cached_property
    def _documents(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(document for documents in self._relevant.values() for document in documents))

    @cached_property
    def _drawn(self) -> dict[str, np.ndarray]:
        """Indices in `_documents` of the negatives of each query."""
        scorer = bm25_scorer(self._documents)
        if scorer is None:
            raise UserError(
                "data.negatives are drawn with bm25s, which is not installed; pip install 'tercet[bm25]', or use data "
                "with labels"
            )
        drawn = dict[str, np.ndarray]()
        for query, relevant in self._relevant.items():
            first = np.argsort(-scorer(query), kind="stable")[: DEPTH + len(relevant) + 1]
            others = [n for n in first.tolist() if self._documents[n] not in relevant and self._documents[n] != query]
            rng = np.random.Generator(np.random.PCG64(hash_text(query)))
            drawn[query] = rng.permutation(others[:DEPTH])[: self.count]
        return drawn
