"""Scores of a reranker in search: only the first documents of BM25 are sorted, and the others keep its order."""

from collections.abc import Sequence

import numpy as np
import pytest

from tercet.config import UserError
from tercet.data import QueryPair
from tercet.data.examples.bm25 import bm25_scorer
from tercet.data.examples.labels import PairExample
from tercet.evaluate.retrieval import MEASURES, Collection, score_reranking
from tercet.evaluate.tasks.rerank import pair_queries

pytest.importorskip("bm25s")
WORDS = ("cat", "dog", "cow", "bee", "hen", "ant", "owl", "fox")
# Each query shares its first word with the documents of its word, and only the number shows which one is relevant.
PAIRS = [QueryPair(f"{word} {number}", f"{word} is n{number}") for word in WORDS for number in range(9)]

Pairs = Sequence[tuple[str, str]]


def perfect(pairs: Pairs) -> tuple[list[float], int]:
    return [float(document == query.replace(" ", " is n")) for query, document in pairs], 1


def test_a_perfect_reranker_finds_what_bm25_finds_among_its_first_documents() -> None:
    scores = score_reranking(perfect, PAIRS, candidates=9)
    assert scores.recall_at_1 == scores.mrr == scores.ndcg_at_10 == 1
    assert scores.bm25 is not None
    assert scores.bm25["recall_at_1"] < 0.5
    assert (scores.queries, scores.documents, scores.reranked, scores.truncated) == (72, 72, 9, 72)
    assert "the first 9 of BM25 reranked; 72 pairs cut" in scores.view().to_html()
    # Of the nine documents with the word, BM25 ranks the relevant one among the first three for a third of the queries.
    few = score_reranking(perfect, PAIRS, candidates=3)
    assert few.recall_at_1 == pytest.approx(1 / 3)
    assert few.recall_at_10 == 1


def test_a_reranker_without_effect_has_the_scores_of_bm25() -> None:
    scorer = bm25_scorer(Collection.of(PAIRS).documents)
    assert scorer is not None
    documents = {document: place for place, document in enumerate(Collection.of(PAIRS).documents)}

    def bm25(pairs: Pairs) -> tuple[list[float], int]:
        return [float(scorer(query)[documents[document]]) for query, document in pairs], 0

    def constant(pairs: Pairs) -> tuple[list[float], int]:
        return [0.0] * len(pairs), 0

    for score_pairs in (bm25, constant):
        scores = score_reranking(score_pairs, PAIRS, candidates=20)
        assert scores.bm25 == {name: getattr(scores, name) for name in MEASURES}
        assert scores.difference_intervals == dict.fromkeys(MEASURES, (0.0, 0.0))


def test_more_candidates_than_documents_are_all_documents() -> None:
    scores = score_reranking(perfect, PAIRS, candidates=1000)
    assert scores.reranked == 72
    assert scores.recall_at_1 == 1


def test_the_text_of_the_query_is_not_a_result() -> None:
    pairs = [QueryPair("a cat", "the cat is here"), QueryPair("a dog", "a cat")]
    scores = score_reranking(lambda pairs: ([float(q == d) for q, d in pairs], 0), pairs)
    assert scores.recall_at_1 == scores.recall_at_10 == 1  # the query "a cat" is not compared with itself


def test_scores_that_are_not_finite_are_rejected() -> None:
    with pytest.raises(UserError, match="a score of the model is not finite"):
        score_reranking(lambda pairs: ([np.nan] * len(pairs), 0), PAIRS)


def test_missing_bm25s_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.evaluate.retrieval.bm25_scorer", lambda documents: None)  # pyright: ignore
    with pytest.raises(UserError, match=r"bm25s, which is not installed; pip install 'tercet\[bm25\]'"):
        score_reranking(perfect, PAIRS)


def test_labeled_pairs_become_queries_with_hard_negatives() -> None:
    examples = [
        PairExample(("a", "x"), ("relevant",)),
        PairExample(("a", "y"), ()),
        PairExample(("b", "z"), ()),  # a query without a relevant document
        PairExample(("a", "z"), ("relevant",)),
    ]
    assert pair_queries(examples) == (QueryPair("a", "x"), QueryPair("a", "z"), QueryPair("a", "z", "y"))
    assert set(Collection.of(pair_queries(examples)).documents) == {"x", "y", "z"}
