"""BM25, the baseline of search by words (Robertson and Zaragoza 2009), as implemented by bm25s.

The parameters are those of Lucene's variant: k1 = 1.5, b = 0.75. Words are the runs of letters and digits in lower
case, so `read_file` is two words. There are no stop words and no stemming, because the language is not known.
"""

import re
from collections.abc import Callable, Sequence
from importlib import import_module

import numpy as np

WORD = re.compile(r"[^\W_]+")


def bm25_scorer(documents: Sequence[str]) -> Callable[[str], np.ndarray] | None:
    """Return a function that gives the scores of all documents (D,) for a query; None if bm25s is not installed."""
    try:
        bm25s = import_module("bm25s")
    except ImportError:
        return None
    words = [split_words(document) for document in documents]
    if not any(words):  # bm25s cannot index documents without words
        return lambda query: np.zeros(len(documents))
    index = bm25s.BM25()
    index.index(words, show_progress=False)

    def score(query: str) -> np.ndarray:
        query_words = split_words(query)
        return index.get_scores(query_words) if query_words else np.zeros(len(documents))

    return score


def split_words(text: str) -> list[str]:
    return WORD.findall(text.lower())
