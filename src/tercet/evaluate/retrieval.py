"""Scores of text vectors or a reranker in search, next to BM25 on the same documents.

    recall@k   share of a query's relevant documents among the first k     MRR   1 / rank of the first relevant one
    nDCG@10    sum over relevant documents at ranks r <= 10 of 1 / log2(r + 1), divided by its maximum

All scores are means over the queries (Manning et al. 2008, 8.4; Järvelin and Kekäläinen 2002). The candidates are all
distinct documents and hard negatives of the data; a document is relevant to a query if the data pairs them. A query
is not compared with a document of the same text, unless that is its own document. Documents with equal scores are in a
pseudo-random order that depends only on their texts. A reranker sorts only the first documents of BM25, and the others
follow in the order of BM25.

The 95 % intervals are those of the bootstrap over queries. For the difference to BM25, both are resampled together.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from jaxtyping import Float

from tercet.config import UserError
from tercet.data import QueryPair
from tercet.data.examples.bm25 import bm25_scorer
from tercet.data.text_hashes import hash_text
from tercet.encoding import embed
from tercet.evaluate.bootstrap import Interval, WeightedScores, format_interval, mean_scores
from tercet.evaluate.digest import digest
from tercet.evaluate.score_summary import ScoreSummary
from tercet.messages import counted
from tercet.models import EncoderOnly
from tercet.nn.specs import Pooling
from tercet.notebook import Table, View
from tercet.tokens import Tokenizer

MEASURES = {"recall_at_1": "recall@1", "recall_at_10": "recall@10", "mrr": "MRR", "ndcg_at_10": "nDCG@10"}
CUTOFF = 10  # rank
CANDIDATES = 100  # first documents of BM25 that a reranker sorts


@dataclass(frozen=True, kw_only=True, repr=False)
class RetrievalScores(ScoreSummary):
    """Scores of text vectors or a reranker in search.

    Attributes:
        recall_at_1, recall_at_10: Share of the relevant documents among the first one and the first ten.
        mrr: Mean reciprocal rank of the first relevant document.
        ndcg_at_10: Normalized discounted cumulative gain of the first ten documents.
        intervals: 95 % interval of each score.
        bm25: The same scores of BM25; None if bm25s is not installed.
        bm25_intervals: 95 % interval of each of them.
        difference_intervals: 95 % interval of the difference between the model and BM25, for each score.
        ndcg_by_size: nDCG@10 of the vectors cut to each size that the model was trained for.
        queries, documents: Number of distinct queries, and of candidates.
        reranked: Number of the first documents of BM25 that a reranker sorts; None for text vectors.
        truncated: Number of texts, or pairs of a query and a document, whose end the model did not see.
    """

    recall_at_1: float
    recall_at_10: float
    mrr: float
    ndcg_at_10: float
    intervals: dict[str, Interval]
    bm25: dict[str, float] | None
    bm25_intervals: dict[str, Interval] | None
    difference_intervals: dict[str, Interval] | None
    queries: int
    documents: int
    reranked: int | None = None
    ndcg_by_size: dict[str, float] = field(default_factory=dict[str, float])
    truncated: int = 0

    def view(self) -> View:
        """Return each score with its interval, next to BM25."""
        rows = [(title, *self._cells(name)) for name, title in MEASURES.items()]
        header = ("", "model", "95 % interval")
        noun = ("pair", "pairs") if self.reranked else ("text", "texts")
        facts = [
            counted(self.queries, "query", "queries"),
            counted(self.documents, "document", "documents"),
            *([f"the first {self.reranked} of BM25 reranked"] if self.reranked else []),
            *([f"{counted(self.truncated, *noun)} cut"] if self.truncated else []),
        ]
        bm25 = () if self.bm25 is None else ("BM25", "95 % interval", "difference", "95 % interval")
        sizes = ", ".join(f"{size}: {ndcg:.3f}" for size, ndcg in self.ndcg_by_size.items())
        lines = [f"nDCG@10 of vectors cut to {sizes}"] if sizes else []
        return View((Table(header=(*header, *bm25), rows=rows), "", "; ".join(facts), *lines))

    def _cells(self, name: str) -> tuple[str, ...]:
        value: float = getattr(self, name)
        cells = f"{value:.3f}", format_interval(self.intervals[name])
        if self.bm25 is None or self.bm25_intervals is None or self.difference_intervals is None:
            return cells
        return (
            *cells, f"{self.bm25[name]:.3f}", format_interval(self.bm25_intervals[name]),
            f"{value - self.bm25[name]:+.3f}", format_interval(self.difference_intervals[name], "+.3f"),
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Collection:
    """Distinct queries and candidates of some pairs.

    Attributes:
        queries: Distinct queries.
        documents: Distinct documents and hard negatives, in the order of their hashes.
        relevant: For each query, the indices of its documents.
        excluded: For each query, the index of the candidate with the same text, or -1 if there is none or it is
            relevant.
    """

    queries: tuple[str, ...]
    documents: tuple[str, ...]
    relevant: tuple[np.ndarray, ...]
    excluded: tuple[int, ...]

    @staticmethod
    def of(pairs: Sequence[QueryPair]) -> "Collection":
        """Return the collection of pairs.

        Raises:
            UserError: If there are no pairs, or all have the same document.
        """
        texts = {text for pair in pairs for text in pair[1:] if text}
        if len(texts) < 2:
            raise UserError("search requires at least two different documents; pass more pairs")
        documents = tuple(sorted(texts, key=lambda text: (hash_text(text), text)))
        places = {text: place for place, text in enumerate(documents)}
        relevant = dict[str, set[int]]()
        for pair in pairs:
            relevant.setdefault(pair.query, set()).add(places[pair.document])
        excluded = (places.get(query, -1) for query in relevant)
        return Collection(
            queries=tuple(relevant),
            documents=documents,
            relevant=tuple(np.array(sorted(numbers)) for numbers in relevant.values()),
            excluded=tuple(
                -1 if place in numbers else place for place, numbers in zip(excluded, relevant.values(), strict=True)
            ),
        )

    @property
    def digest(self) -> str:
        """SHA-256 of the queries, the documents and their relevance."""
        relevance = (",".join(map(str, numbers.tolist())) for numbers in self.relevant)
        return digest(*self.queries, *self.documents, *relevance)

    def measure(self, score: Callable[[int], Float[np.ndarray, " D"]]) -> Float[np.ndarray, "Q 4"]:
        """Return the `MEASURES` of each query.

        Args:
            score: Function that returns the scores of all documents (D,) for the query with this index.
        """
        table = np.zeros((len(self.queries), len(MEASURES)))
        for number, (relevant, excluded) in enumerate(zip(self.relevant, self.excluded, strict=True)):
            scores = np.array(score(number), dtype=np.float64)
            if excluded >= 0:
                scores[excluded] = -np.inf
            table[number] = measure_ranking(np.sort(ranks_of(scores, relevant)))
        return table


def ranks_of(scores: Float[np.ndarray, " D"], numbers: np.ndarray) -> np.ndarray:
    """Return the ranks, from 1, of the documents `numbers` (R,); documents with equal scores keep their order."""
    own = scores[numbers][:, None]  # (R, 1)
    before = (scores > own) | ((scores == own) & (np.arange(len(scores)) < numbers[:, None]))
    return 1 + before.sum(1)


def measure_ranking(ranks: np.ndarray) -> tuple[float, float, float, float]:
    """Return the `MEASURES` of a query from the ranks of its relevant documents (R,), in ascending order."""
    gains = 1 / np.log2(np.arange(1, CUTOFF + 1) + 1)
    ideal = gains[: len(ranks)].sum()
    return (
        float((ranks <= 1).mean()),
        float((ranks <= CUTOFF).mean()),
        float(1 / ranks[0]),
        float(gains[ranks[ranks <= CUTOFF] - 1].sum() / ideal),
    )


def validation_measures(
    model: EncoderOnly, tokenizer: Tokenizer, pairs: Sequence[QueryPair], *, pooling: Pooling
) -> dict[str, float]:
    """Return the mean of each of `MEASURES` over the queries, without intervals and BM25."""
    collection = Collection.of(pairs)
    queries, documents = (
        embed(model, tokenizer, texts, pooling=pooling).vectors for texts in (collection.queries, collection.documents)
    )
    means = collection.measure(lambda query: documents @ queries[query]).mean(0)
    return dict(zip(MEASURES, means.tolist(), strict=True))


@dataclass(frozen=True, kw_only=True)
class SearchResults:
    """`MEASURES` of each query in search.

    Attributes:
        own, bm25: (Q, 4) measures of the model and of BM25; None if bm25s is not installed.
        digest: SHA-256 of queries and documents.
        facts: Other fields of the scores.
    """

    own: Float[np.ndarray, "Q 4"]
    bm25: Float[np.ndarray, "Q 4"] | None
    digest: str
    facts: dict[str, Any]

    @property
    def weighted(self) -> WeightedScores:
        """Scores as functions of the weights of the queries."""
        return mean_scores(tuple(MEASURES), self.own, digest=self.digest)

    def scores(self) -> RetrievalScores:
        """Return the scores with their intervals."""
        names, own, bm25 = tuple(MEASURES), self.own, self.bm25

        def intervals(values: np.ndarray) -> dict[str, Interval]:
            return mean_scores(names, values).intervals()

        return RetrievalScores(
            **dict(zip(names, own.mean(0).tolist(), strict=True)),
            intervals=intervals(own),
            bm25=None if bm25 is None else dict(zip(names, bm25.mean(0).tolist(), strict=True)),
            bm25_intervals=None if bm25 is None else intervals(bm25),
            difference_intervals=None if bm25 is None else intervals(own - bm25),
            **self.facts,
        )


def score_retrieval(
    embed_texts: "Callable[[Sequence[str]], tuple[np.ndarray, int]]",
    pairs: Sequence[QueryPair],
    *,
    sizes: Sequence[int] = (),
) -> RetrievalScores:
    """Return the scores of a model on pairs of queries and documents.

    Arguments and errors are those of `search_vectors`.
    """
    return search_vectors(embed_texts, pairs, sizes=sizes).scores()


def search_vectors(
    embed_texts: "Callable[[Sequence[str]], tuple[np.ndarray, int]]",
    pairs: Sequence[QueryPair],
    *,
    sizes: Sequence[int] = (),
) -> SearchResults:
    """Search with the vectors of a model among the documents of pairs.

    Args:
        embed_texts: Function that returns the vectors (N, D) of texts, and the number of truncated texts.
        pairs: Pairs; see `Collection`.
        sizes: Sizes to which vectors are also cut.

    Raises:
        UserError: If there are fewer than two documents, or a vector is not finite.
    """
    collection = Collection.of(pairs)
    (queries, queries_cut), (documents, documents_cut) = map(embed_texts, (collection.queries, collection.documents))
    if not (np.isfinite(queries).all() and np.isfinite(documents).all()):
        raise UserError("a vector of the model is not finite; its training diverged: train again with a lower rate")

    def measure(size: int) -> np.ndarray:
        cut_queries, cut_documents = _normalize(queries[:, :size]), _normalize(documents[:, :size])
        return collection.measure(lambda query: cut_documents @ cut_queries[query])

    scorer = bm25_scorer(collection.documents)
    ndcg = list(MEASURES).index("ndcg_at_10")
    facts = {
        "queries": len(queries),
        "documents": len(documents),
        "ndcg_by_size": {str(size): float(measure(size)[:, ndcg].mean()) for size in sizes},
        "truncated": queries_cut + documents_cut,
    }
    return SearchResults(
        own=measure(queries.shape[1]),
        bm25=None if scorer is None else collection.measure(lambda query: scorer(collection.queries[query])),
        digest=collection.digest,
        facts=facts,
    )


def score_reranking(
    score_pairs: "Callable[[Sequence[tuple[str, str]]], tuple[Sequence[float], int]]",
    pairs: Sequence[QueryPair],
    *,
    candidates: int = CANDIDATES,
) -> RetrievalScores:
    """Return the scores of a reranker that sorts the first documents of BM25, next to those of BM25 alone.

    Arguments and errors are those of `search_reranked`.
    """
    return search_reranked(score_pairs, pairs, candidates=candidates).scores()


def search_reranked(
    score_pairs: "Callable[[Sequence[tuple[str, str]]], tuple[Sequence[float], int]]",
    pairs: Sequence[QueryPair],
    *,
    candidates: int = CANDIDATES,
) -> SearchResults:
    """Search with a reranker that sorts the first documents of BM25.

    Args:
        score_pairs: Function that returns the relevance of each pair of a query and a document, and the number of
            truncated pairs.
        pairs: Queries with their documents; see `Collection`.
        candidates: Number of the first documents of BM25 that are sorted.

    Raises:
        UserError: If there are fewer than two documents, a score is not finite, or bm25s is not installed.
    """
    collection = Collection.of(pairs)
    scorer = bm25_scorer(collection.documents)
    if scorer is None:
        raise UserError(
            "a reranker sorts what BM25 finds, by bm25s, which is not installed; pip install 'tercet[bm25]'"
        )
    bm25 = np.array([scorer(query) for query in collection.queries], dtype=np.float64)  # (Q, D)
    own, cut = np.zeros_like(bm25), 0
    for number, (query, excluded) in enumerate(zip(collection.queries, collection.excluded, strict=True)):
        if excluded >= 0:
            bm25[number, excluded] = -np.inf
        order = np.argsort(-bm25[number], kind="stable")
        first = order[:candidates]
        scores, query_cut = score_pairs([(query, collection.documents[document]) for document in first.tolist()])
        if not np.isfinite(scores).all():
            raise UserError("a score of the model is not finite; its training diverged: train again with a lower rate")
        order[:candidates] = first[np.argsort(-np.array(scores), kind="stable")]
        own[number, order] = -np.arange(len(order))
        cut += query_cut
    facts = {
        "queries": len(collection.queries),
        "documents": len(collection.documents),
        "reranked": min(candidates, len(collection.documents)),
        "truncated": cut,
    }
    return SearchResults(
        own=collection.measure(own.__getitem__),
        bm25=collection.measure(bm25.__getitem__),
        digest=collection.digest,
        facts=facts,
    )


def _normalize(vectors: Float[np.ndarray, "N D"]) -> Float[np.ndarray, "N D"]:
    return vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
