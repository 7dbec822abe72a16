"""Reference solution of exercise 1, for tests of its checks."""

from collections import Counter
from itertools import pairwise

Word = tuple[str, ...]
Pair = tuple[str, str]


def count_pairs(corpus: dict[Word, int]) -> dict[Pair, int]:
    counts = Counter[Pair]()
    for word, count in corpus.items():
        for pair in pairwise(word):
            counts[pair] += count
    return counts


def merge_pair(word: Word, pair: Pair) -> Word:
    merged = list[str]()
    i = 0
    while i < len(word):
        if word[i : i + 2] == pair:
            merged.append(word[i] + word[i + 1])
            i += 2
        else:
            merged.append(word[i])
            i += 1
    return tuple(merged)


def learn_merges(corpus: dict[Word, int], n_merges: int) -> list[Pair]:
    merges = list[Pair]()
    while len(merges) < n_merges:
        counts = count_pairs(corpus)
        if not counts:
            break
        best = min(counts, key=lambda pair: (-counts[pair], pair))
        merges.append(best)
        corpus = {merge_pair(word, best): count for word, count in corpus.items()}
    return merges


def encode(word: str, merges: list[Pair]) -> Word:
    symbols = tuple(word)
    for pair in merges:
        symbols = merge_pair(symbols, pair)
    return symbols
