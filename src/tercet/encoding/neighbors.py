"""Exact nearest neighbors by cosine similarity.

    cos(q, v) = q · v / (|q| |v|)

A matrix product in float32 for each block of vectors selects the candidates, and their cosines are computed in float64.
The error of a product of unit vectors in float32 is below D · 2⁻²³ in any order of summation (Higham, Accuracy and
Stability of Numerical Algorithms, section 3.1). The selection allows for this error, so no neighbor is missed. Equal
vectors have equal scores, and are returned in their original order.
"""

from dataclasses import dataclass

import numpy as np

from tercet.config import UserError
from tercet.notebook import Summary, Table, View, format_value

PIECE = 1 << 20  # maximum number of elements in the vectors of a block and their scores
MIN_ROWS = 64  # minimum number of rows per block, even if a block then has more than `PIECE` elements
SAFE_LENGTHS = (1e-15, 1e15)  # lengths for which products fit into float32; other vectors are normalized first


@dataclass(frozen=True, kw_only=True, repr=False)
class Neighbors(Summary):
    """Nearest rows for each query, nearest first.

    Attributes:
        numbers: (Q, K) int64 row numbers. K is `top`, or the number of rows if that is smaller.
        scores: (Q, K) float64 cosines.
        starts, ends: (Q, K) indices of the characters of the nearest chunks in the texts `numbers`; None if the rows
            are not chunks of texts.
    """

    numbers: np.ndarray
    scores: np.ndarray
    starts: np.ndarray | None = None
    ends: np.ndarray | None = None

    def __repr__(self) -> str:
        shape = "x".join(map(str, self.numbers.shape))
        return f"Neighbors({shape} rows, the nearest at {format_value(float(self.scores.max(initial=-1)))})"

    def view(self) -> View:
        columns = [self.numbers, *(() if self.starts is None or self.ends is None else (self.starts, self.ends))]
        header = ("query", "row", *(("start", "end") if len(columns) > 1 else ()), "cosine")
        queries = zip(*map(np.atleast_2d, (*columns, self.scores)), strict=True)
        rows = [
            (f"{query}", *map(str, numbers), f"{score:.4f}")
            for query, results in enumerate(queries)
            for *numbers, score in zip(*results, strict=True)
        ]
        return View((Table(header=header, rows=rows, left=()),))


class NearestNeighbors:
    """Search for the nearest rows of each query among all rows that are added with `push`.

    Only the nearest rows so far are stored.

    Args:
        queries: (Q, D) vectors.
        top: Maximum number of rows to find for each query.

    Raises:
        UserError: If a query is not finite.
        ValueError: If `top` is below 1.
    """

    def __init__(self, queries: np.ndarray, *, top: int) -> None:
        if top < 1:
            raise ValueError(f"top must be at least 1, got {top}")
        self._queries, self._top, self._count = _unit(queries, _check_lengths(queries, "query")), top, 0  # (Q, D)
        self._numbers = [np.zeros(0, np.int64) for _ in queries]
        self._scores = [np.zeros(0) for _ in queries]
        self._slack = (queries.shape[1] + 16) * 2.0**-23

    def push(self, vectors: np.ndarray) -> None:
        """Add rows (N, D) to the search. To limit memory, they are compared with the queries in blocks.

        Raises:
            UserError: If the width of the rows differs from that of the queries, or a row is not finite.
        """
        width = self._queries.shape[1]
        if vectors.ndim != 2 or vectors.shape[1] != width:
            raise UserError(
                f"the vectors are {'x'.join(map(str, vectors.shape))} numbers but the model's have {width}; "
                "use vectors of this model"
            )
        rows = max(MIN_ROWS, PIECE // (width + len(self._queries)))
        for start in range(0, len(vectors), rows):
            self._push(np.asarray(vectors[start : start + rows]))

    def result(self) -> Neighbors:
        """Return the nearest of all rows that were added so far."""
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
            candidates = self._select_candidates(query, scores)
            if len(candidates):
                self._merge(query, candidates + self._count, _cosines(vectors[candidates], unit))
        self._count += len(vectors)

    def _select_candidates(self, query: int, approximate: np.ndarray) -> np.ndarray:
        """Return the indices of those rows of a block that may be among the nearest."""
        best_scores = self._scores[query]
        threshold = best_scores[-1] - self._slack if len(best_scores) == self._top else -np.inf
        candidates = np.flatnonzero(approximate >= threshold)
        if (n_excess := len(candidates) - self._top) > 0:
            threshold = (
                np.partition(approximate[candidates], n_excess)[n_excess] - 2 * self._slack
            )  # approximate score of the last neighbor, minus the possible errors of two scores
            candidates = candidates[approximate[candidates] >= threshold]
        return candidates

    def _merge(self, query: int, numbers: np.ndarray, scores: np.ndarray) -> None:
        numbers = np.concatenate([self._numbers[query], numbers])
        scores = np.concatenate([self._scores[query], scores])
        best = np.lexsort((numbers, -scores))[: self._top]
        self._numbers[query], self._scores[query] = numbers[best], scores[best]


def nearest(vectors: np.ndarray, queries: np.ndarray, *, top: int) -> Neighbors:
    """Return the `top` rows of `vectors` (N, D) nearest to each of `queries` (Q, D).

    Zero vectors have the cosine 0.

    Raises:
        UserError: If the widths differ, or a number is not finite.
        ValueError: If `top` is below 1.
    """
    search = NearestNeighbors(queries, top=top)
    search.push(vectors)
    return search.result()


def _check_lengths(vectors: np.ndarray, name: str, first: int = 0) -> np.ndarray:
    """Return the lengths (N,) of the vectors, which must be finite. Error messages count vectors from `first`."""
    with np.errstate(over="ignore", invalid="ignore"):
        lengths = np.sqrt(np.einsum("nd,nd->n", vectors, vectors, dtype=np.float64))
    if len(invalid := np.flatnonzero(~np.isfinite(lengths))):
        raise UserError(f"{name} {first + invalid[0]} has a number that is not finite; use vectors from a model")
    return lengths


def _unit(vectors: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    return vectors.astype(np.float64) / np.where(lengths > 0, lengths, 1)[:, None]


def _cosines(vectors: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return the cosines (N,) in float64.

    Each cosine is summed separately, so that it does not depend on the position of its row.
    """
    rows = vectors.astype(np.float64)
    lengths = np.sqrt(np.square(rows).sum(1))
    return (rows * unit).sum(1) / np.where(lengths > 0, lengths, 1)
