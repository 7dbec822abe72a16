"""Nearest neighbors match all cosine similarities in float64, in the same order."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from tercet.config import UserError
from tercet.encoding import NearestNeighbors, nearest
from tercet.encoding import neighbors as module

SMALL_SHAPES = arrays.array_shapes(min_dims=2, max_dims=2, min_side=0, max_side=9)


def cosines(vectors: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Compute cosine similarities (Q, N) in float64, one at a time."""
    vectors, queries = vectors.astype(np.float64), queries.astype(np.float64)
    return np.array(
        [[float(v @ q) / (float(np.linalg.norm(v)) * float(np.linalg.norm(q)) or 1) for v in vectors] for q in queries]
    ).reshape(len(queries), len(vectors))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    shape=SMALL_SHAPES.filter(lambda shape: shape[1] > 0),
    n_queries=st.integers(0, 3),
    top=st.integers(1, 12),
    rows=st.integers(1, 4),
    length=st.sampled_from([1, 1e-30, 1e30]),
    data=st.data(),
)
def test_neighbors_match_brute_force(
    shape: tuple[int, int], n_queries: int, top: int, rows: int, length: float, data: st.DataObject
) -> None:
    numbers = st.integers(-2, 2)  # gives many ties and some zeros
    vectors = data.draw(arrays.arrays(np.float32, shape, elements=numbers)) * np.float32(length)
    queries = data.draw(arrays.arrays(np.float32, (n_queries, shape[1]), elements=numbers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PIECE", rows * (shape[1] + n_queries))
        patch.setattr(module, "MIN_ROWS", 1)
        found = nearest(vectors, queries, top=top)
    expected, n_neighbors = cosines(vectors, queries), min(top, len(vectors))
    assert found.numbers.shape == found.scores.shape == (n_queries, n_neighbors)
    for all_scores, numbers, scores in zip(expected, found.numbers, found.scores, strict=True):
        np.testing.assert_allclose(scores, all_scores[numbers], atol=1e-12)
        assert len(set(numbers.tolist())) == n_neighbors
        assert np.all(np.diff(scores) <= 0)
        other_scores = np.delete(all_scores, numbers)
        assert not n_neighbors or np.all(other_scores <= scores[-1] + 1e-12)
        for place in range(1, n_neighbors):  # ties keep the order of the vectors
            if np.array_equal(vectors[numbers[place]], vectors[numbers[place - 1]]):
                assert numbers[place] > numbers[place - 1]
        for left_out in set(range(len(vectors))) - set(numbers.tolist()):
            equal_numbers = [n for n in numbers.tolist() if np.array_equal(vectors[n], vectors[left_out])]
            assert all(n < left_out for n in equal_numbers)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.float16])
def test_many_vectors_are_read_in_several_pieces(dtype: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 100 * 67)
    draw = np.random.default_rng(1)
    vectors, queries = draw.normal(size=(1500, 65)).astype(dtype), draw.normal(size=(2, 65)).astype(dtype)
    neighbors, all_scores = nearest(vectors, queries, top=40), cosines(vectors, queries)
    np.testing.assert_array_equal(neighbors.numbers, np.argsort(-all_scores, axis=1, kind="stable")[:, :40])
    np.testing.assert_allclose(neighbors.scores, np.sort(all_scores, axis=1)[:, ::-1][:, :40], rtol=1e-12)


@pytest.mark.parametrize("piece", [1 << 20, 385 * 30])
def test_vectors_that_float32_cannot_distinguish_are_ordered(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", piece)
    monkeypatch.setattr(module, "MIN_ROWS", 1)
    draw = np.random.default_rng(2)
    query = draw.normal(size=(1, 384))
    vectors = query + 1e-5 * draw.normal(size=(300, 384))  # all similarities are 1 in float32
    all_scores = cosines(vectors, query)[0]
    rough = (vectors.astype(np.float32) @ query[0].astype(np.float32)) / np.linalg.norm(
        vectors.astype(np.float32), axis=1
    )
    expected = np.argsort(-all_scores, kind="stable")[:10].tolist()
    assert nearest(vectors, query, top=10).numbers[0].tolist() == expected
    assert np.argsort(-rough, kind="stable")[:10].tolist() != expected  # shows that float32 gives another order


def test_equal_vectors_are_returned_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 37 * 70)
    draw = np.random.default_rng(3)
    vectors = draw.normal(size=(400, 67)).astype(np.float32)
    vectors[11::13] = vectors[5]
    copies = [5, *range(11, 400, 13)]
    neighbors = nearest(vectors, vectors[5:6], top=len(copies) + 3)
    assert neighbors.numbers[0, : len(copies)].tolist() == copies
    assert len(set(neighbors.scores[0, : len(copies)].tolist())) == 1
    assert nearest(vectors, vectors[5:6], top=4).numbers[0].tolist() == copies[:4]


def test_vectors_are_read_one_piece_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PIECE", 50 * 9)
    monkeypatch.setattr(module, "MIN_ROWS", 1)
    vectors = np.random.default_rng(4).normal(size=(333, 8)).astype(np.float32)
    read = list[int]()

    class OnDisk:
        ndim, shape = 2, vectors.shape

        def __len__(self) -> int:
            return len(vectors)

        def __getitem__(self, rows: slice) -> np.ndarray:
            read.append(len(vectors[rows]))
            return vectors[rows]

    neighbors = nearest(OnDisk(), vectors[:1], top=3)  # type: ignore[arg-type]
    assert (max(read), sum(read)) == (50, 333)
    np.testing.assert_array_equal(neighbors.numbers, nearest(vectors, vectors[:1], top=3).numbers)


def test_vectors_may_be_pushed_in_pieces() -> None:
    vectors = np.random.default_rng(5).normal(size=(90, 8)).astype(np.float32)
    search = NearestNeighbors(vectors[:2], top=7)
    assert search.result().numbers.shape == (2, 0)
    for start in range(0, 90, 11):
        search.push(vectors[start : start + 11])
        expected = nearest(vectors[: start + 11], vectors[:2], top=7)
        np.testing.assert_array_equal(search.result().numbers, expected.numbers)
        np.testing.assert_array_equal(search.result().scores, expected.scores)


def test_invalid_arguments_are_rejected() -> None:
    vectors = np.ones((4, 3), np.float32)
    with pytest.raises(UserError, match="the vectors are 4x3 numbers but the model's have 5; use vectors of this"):
        nearest(vectors, np.ones((1, 5)), top=1)
    with pytest.raises(UserError, match="the vectors are 3 numbers"):
        nearest(vectors[0], vectors[:1], top=1)
    with pytest.raises(ValueError, match="top must be at least 1, got 0"):
        nearest(vectors, vectors, top=0)
    for value in (np.nan, np.inf):
        invalid = vectors.copy()
        invalid[2, 1] = value
        with pytest.raises(UserError, match="vector 2 has a number that is not finite"):
            nearest(invalid, vectors[:1], top=1)
        with pytest.raises(UserError, match="query 2 has a number that is not finite"):
            nearest(vectors, invalid, top=1)
