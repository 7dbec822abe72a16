"""Exact nearest neighbours: the vectors that point most nearly where a query does.

    cos(q, v) = q · v / (|q| |v|)

One matrix product in float32 for each piece of the vectors says which of them may be among the nearest; for those few
the cosine is worked out in float64. A product of unit vectors in float32 is wrong by less than D · 2⁻²³, in whatever
order it is summed (Higham, Accuracy and Stability of Numerical Algorithms, section 3.1), so that none of the nearest is
missed. Equal vectors have equal scores, and come in the order in which they stand.
"""

from dataclasses import dataclass

import numpy as np

from tercet.config import UserError
from tercet.notebook import Summary, Table, View, format_value

PIECE = 1 << 20  # numbers of the vectors, and of the scores, that are in memory at once
MIN_ROWS = 64  # of a piece, however many queries there are
SAFE_LENGTHS = (1e-15, 1e15)  # lengths whose products float32 holds; others are brought to length 1 first


@dataclass(frozen=True, kw_only=True, repr=False)
class Neighbors(Summary):
    """The nearest rows to each query, the nearest first.

    Attributes:
        numbers: (Q, K) int64, which rows these are; K is what was asked for, or as many rows as there are.
        scores: (Q, K) float64, their cosines.
    """

    numbers: np.ndarray
    scores: np.ndarray

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.numbers.shape))
        return f"Neighbors({shape} rows, the nearest at {format_value(float(self.scores.max(initial=-1)))})"

    def view(self) -> View:
        queries = zip(np.atleast_2d(self.numbers), np.atleast_2d(self.scores), strict=True)
        rows = [
            (f"{query}", f"{number}", f"{score:.4f}")
            for query, pairs in enumerate(queries)
            for number, score in zip(*pairs, strict=True)
        ]
        return View((Table(header=("query", "row", "cosine"), rows=rows, left=()),))


class NearestNeighbors:
    """The `top` nearest to each query of all rows that were pushed; of these nothing else is kept."""

    def __init__(self, queries: np.ndarray, *, top: int) -> None:
        """Raises UserError where a query is not finite, ValueError where `top` is below 1."""
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        self._queries, self._top, self._count = _unit(queries, _check_lengths(queries, "query")), top, 0  # (Q, D)
        self._numbers = [np.zeros(0, np.int64) for _ in queries]
        self._scores = [np.zeros(0) for _ in queries]
        self._slack = (queries.shape[1] + 16) * 2.0**-23

    def push(self, vectors: np.ndarray) -> None:
        """The next rows, (N, D), of which as many are read at once as `PIECE` holds.

        Raises:
            UserError: where they have another width than the queries, or are not finite.
        """
        width = self._queries.shape[1]
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise UserError(
                f"the vectors are {'x'.join(map(str, vectors.shape))} numbers and the model's have {width}; "
                "give vectors that this model made"
            )
        rows = max(MIN_ROWS, PIECE // (width + len(self._queries)))
        for start in range(0, len(vectors), rows):
            self._push(np.asarray(vectors[start : start + rows]))

    def result(self) -> Neighbors:
        """The nearest so far."""
        shape = len(self._queries), min(self._top, self._count)
        return Neighbors(
            numbers=np.array(self._numbers, np.int64).reshape(shape), scores=np.array(self._scores).reshape(shape)
        )

    def _push(self, vectors: np.ndarray) -> None:
        lengths = _check_lengths(vectors, "vector", self._count)
        units, divisors = vectors, lengths
        if len(lengths) and not (SAFE_LENGTHS[0] < lengths.min() and lengths.max() < SAFE_LENGTHS[1]):
            units, divisors = _unit(vectors, lengths), np.ones(1)
        approximate = self._queries.astype(np.float32) @ units.astype(np.float32).T / divisors  # (Q, N)
        for query, (unit, scores) in enumerate(zip(self._queries, approximate, strict=True)):
            near = self._near(query, scores)
            if len(near):
                self._merge(query, near + self._count, _cosines(vectors[near], unit))
        self._count += len(vectors)

    def _near(self, query: int, approximate: np.ndarray) -> np.ndarray:
        """The rows that may be among the nearest."""
        best_scores = self._scores[query]
        threshold = best_scores[-1] - self._slack if len(best_scores) == self._top else -np.inf
        near = np.flatnonzero(approximate >= threshold)
        if (n_excess := len(near) - self._top) > 0:
            threshold = (
                np.partition(approximate[near], n_excess)[n_excess] - 2 * self._slack
            )  # the last of the nearest, by `approximate`
            near = near[approximate[near] >= threshold]
        return near

    def _merge(self, query: int, numbers: np.ndarray, scores: np.ndarray) -> None:
        numbers = np.concatenate([self._numbers[query], numbers])
        scores = np.concatenate([self._scores[query], scores])
        best = np.lexsort((numbers, -scores))[: self._top]
        self._numbers[query], self._scores[query] = numbers[best], scores[best]


def nearest(vectors: np.ndarray, queries: np.ndarray, *, top: int) -> Neighbors:
    """The `top` rows of `vectors` (N, D) nearest to each of `queries` (Q, D). A vector of zeros is as far from all.

    Raises:
        UserError: where the two have different widths, or a number in them is not finite.
        ValueError: where `top` is below 1.
    """
    search = NearestNeighbors(queries, top=top)
    search.push(vectors)
    return search.result()


def _check_lengths(vectors: np.ndarray, name: str, first: int = 0) -> np.ndarray:
    """The lengths (N,) of the vectors, rounded; the message counts them from `first`."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    if len(invalid := np.flatnonzero(~np.isfinite(lengths))):
        raise UserError(f"{name} {first + invalid[0]} has a number that is not finite; give vectors that a model made")
    return lengths


def _unit(vectors: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return vectors.astype(np.float64) / np.where(lengths > 0, lengths, 1)[:, None]


def _cosines(vectors: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """(N,) float64; each by itself, so that a row's does not depend on where it stands."""
    rows = vectors.astype(np.float64)
    lengths = np.sqrt(np.square(rows).sum(1))
    return (rows * unit).sum(1) / np.where(lengths > 0, lengths, 1)
