"""Scores in search, compared with brute force, scikit-learn and known rankings."""

import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import QueryPair
from tercet.data.examples.bm25 import bm25_scorer, split_words
from tercet.evaluate.bootstrap import mean_scores
from tercet.evaluate.retrieval import (
    MEASURES,
    Collection,
    measure_ranking,
    ranks_of,
    score_retrieval,
)

PAIRS = [
    QueryPair("q1", "d1", "n1"),
    QueryPair("q1", "d2"),
    QueryPair("q2", "d2"),
    QueryPair("q3", "q3"),
    QueryPair("d1", "d2"),
]


def test_collection_has_distinct_texts_and_excludes_the_query_itself() -> None:
    collection = Collection.of(PAIRS)
    assert collection.queries == ("q1", "q2", "q3", "d1")
    assert sorted(collection.documents) == ["d1", "d2", "n1", "q3"]
    relevant = [{collection.documents[n] for n in numbers} for numbers in collection.relevant]
    assert relevant == [{"d1", "d2"}, {"d2"}, {"q3"}, {"d2"}]
    excluded = [None if n < 0 else collection.documents[n] for n in collection.excluded]
    assert excluded == [None, None, None, "d1"]  # q3 is its own document


@given(st.lists(st.integers(0, 3), min_size=2, max_size=12), st.data())
def test_measures_equal_brute_force(scores: list[int], data: st.DataObject) -> None:
    numbers = data.draw(st.sets(st.integers(0, len(scores) - 1), min_size=1))
    order = sorted(range(len(scores)), key=lambda n: (-scores[n], n))
    places = sorted(order.index(n) + 1 for n in numbers)
    ranks = np.sort(ranks_of(np.array(scores, dtype=float), np.array(sorted(numbers))))
    assert ranks.tolist() == places
    gain = sum(1 / math.log2(place + 1) for place in places if place <= 10)
    ideal = sum(1 / math.log2(place + 1) for place in range(1, min(10, len(places)) + 1))
    expected = (
        sum(place <= 1 for place in places) / len(places), sum(place <= 10 for place in places) / len(places),
        1 / places[0], gain / ideal,
    )  # fmt: skip
    assert measure_ranking(ranks) == pytest.approx(expected)


def test_ndcg_equals_that_of_scikit_learn() -> None:
    metrics = pytest.importorskip("sklearn.metrics")
    rng = np.random.default_rng(1)
    for _ in range(20):
        scores, numbers = rng.permutation(40).astype(float), rng.choice(40, rng.integers(1, 15), replace=False)
        relevance = np.isin(np.arange(40), numbers).astype(float)
        measured = measure_ranking(np.sort(ranks_of(scores, numbers)))
        assert measured[3] == pytest.approx(metrics.ndcg_score(relevance[None], scores[None], k=10))


def embed_letters(texts: Sequence[str]) -> tuple[np.ndarray, int]:
    """Return vectors in which a text is closest to texts with the same last character."""
    table = np.array([[float(text[-1] == letter) for letter in "abcde"] + [0.5] for text in texts], dtype=np.float32)
    return table, 2


def test_perfect_vectors_have_perfect_scores_and_the_sizes_are_reported() -> None:
    pairs = [QueryPair(f"query {letter}", f"document {letter}") for letter in "abcde"]
    scores = score_retrieval(embed_letters, pairs, sizes=(1, 5))
    for name in MEASURES:
        assert getattr(scores, name) == 1.0
        assert scores.intervals[name] == (1.0, 1.0)
    assert scores.ndcg_by_size["5"] == 1.0
    assert scores.ndcg_by_size["1"] < 1.0  # only one letter is left
    assert (scores.queries, scores.documents, scores.truncated) == (5, 5, 4)
    assert scores.to_dict()["ndcg_at_10"] == 1.0
    assert "nDCG@10" in scores.view().to_html()


def test_too_few_documents_and_infinite_vectors_are_rejected() -> None:
    with pytest.raises(UserError, match="at least two different documents"):
        score_retrieval(embed_letters, [QueryPair("a", "b"), QueryPair("c", "b")])
    with pytest.raises(UserError, match="not finite"):
        score_retrieval(lambda texts: (np.full((len(texts), 3), np.nan), 0), PAIRS)


def test_intervals_are_those_of_the_normal_distribution_for_many_queries() -> None:
    values = np.random.default_rng(2).normal(3, 2, (4000, 1))
    low, high = mean_scores(("mean",), values).intervals()["mean"]
    half = 1.96 * values.std() / math.sqrt(len(values))
    assert (low, high) == pytest.approx((values.mean() - half, values.mean() + half), abs=half / 5)


def test_words_are_letters_and_digits_in_lower_case() -> None:
    assert split_words("def read_File2(self): größe") == ["def", "read", "file2", "self", "größe"]


def test_bm25_ranks_documents_by_shared_words() -> None:
    pytest.importorskip("bm25s")
    documents = ["the cat sleeps", "a dog eats the bone", "the dog and the cat"]
    scorer = bm25_scorer(documents)
    assert scorer is not None
    assert scorer("bone").argmax() == 1
    length, mean = [3, 5, 5], 13 / 3  # words of each document
    idf = math.log(1 + (3 - 2 + 0.5) / (2 + 0.5))  # cat is in two of three documents
    expected = [idf / (1 + 1.5 * (0.25 + 0.75 * n / mean)) if n != 5 or i == 2 else 0 for i, n in enumerate(length)]
    assert scorer("Cat").tolist() == pytest.approx(expected, rel=1e-5)
    assert scorer("unknown").tolist() == scorer("?").tolist() == [0, 0, 0]
    empty = bm25_scorer(["?", "!"])
    assert empty is not None
    assert empty("cat").tolist() == [0, 0]


def test_bm25_is_compared_on_the_same_queries() -> None:
    pytest.importorskip("bm25s")
    pairs = [QueryPair(f"query {letter}", f"text {letter}{letter}") for letter in "abcde"]
    scores = score_retrieval(embed_letters, pairs)
    assert scores.bm25 is not None
    assert scores.difference_intervals is not None
    assert scores.bm25["recall_at_1"] < scores.recall_at_1 == 1
    low, high = scores.difference_intervals["recall_at_1"]
    assert low <= 1 - scores.bm25["recall_at_1"] <= high
