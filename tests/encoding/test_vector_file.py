"""Files of vectors: what is written comes back, mapped; what is broken or another's is refused in one line."""

import io
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.encoding import read_vectors, write_vectors
from tercet.encoding import vector_file as module

PROBE = np.array([0.6, 0.8, 0], np.float32)
VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)


def written(path: Path, texts: list[str], ids: list[Any], vectors: np.ndarray = VECTORS) -> Path:
    with path.open("wb") as file:
        write_vectors(file, vectors[: len(texts)], texts=texts, ids=ids, probe=PROBE)
    return path


@pytest.mark.parametrize(
    ("ids", "wanted"),
    [([3, 1, 2, 7], [3, 1, 2, 7]), (["a", 1, "", "é"], ["a", "1", "", "é"]), ([1, None, 2, 3], None)],
)
def test_what_is_written_comes_back(tmp_path: Path, ids: list[Any], wanted: list[Any] | None) -> None:
    texts = ["a cat", "", "жук\n", "x"]
    found = read_vectors(written(tmp_path / "a.npz", texts, ids))
    assert isinstance(found.vectors, np.memmap)
    np.testing.assert_array_equal(found.vectors, VECTORS)
    named = [{} if wanted is None else {"id": id} for id in wanted or texts]
    assert [found.row(n) for n in range(4)] == [{**id, "text": text} for id, text in zip(named, texts, strict=True)]
    found.check_model(PROBE * 3 + np.float32(1e-4))


def test_long_texts_leave_their_ids_or_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WIDEST", 16)
    texts = ["four", "five5"]
    assert read_vectors(written(tmp_path / "a.npz", texts, ["x", "y"])).row(1) == {"id": "y"}
    assert read_vectors(written(tmp_path / "b.npz", texts, [None, None])).row(1) == {"id": 1}
    assert read_vectors(written(tmp_path / "c.npz", [], [])).vectors.shape == (0, 3)


def test_vectors_of_another_are_refused(tmp_path: Path) -> None:
    found = read_vectors(written(tmp_path / "a.npz", ["a"], [None]))
    with pytest.raises(UserError, match="vectors of 3 numbers and the model's have 4; give the model that made them"):
        found.check_model(np.ones(4, np.float32))
    for probe in (PROBE[::-1], PROBE + np.float32(0.03), PROBE * np.nan):
        with pytest.raises(UserError, match="another model made, or the same before it learnt on or with another --po"):
            found.check_model(probe)
    np.savez(tmp_path / "b.npz", vectors=VECTORS.astype(np.float64))
    read_vectors(tmp_path / "b.npz").check_model(PROBE[::-1])  # it does not say whose it is


def saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not as `tercet embed` writes it"),
        (b"PK\3\4", "is not as `tercet embed` writes it"),
        (saved(probe=PROBE), "has no array called vectors"),
        (saved(vectors=PROBE), r"vectors is float32 of shape \(3,\)"),
        (saved(vectors=VECTORS.astype(int)), r"vectors is int64 of shape \(4, 3\)"),
        (saved(vectors=VECTORS, probe=PROBE[:2]), r"probe of shape \(2,\) beside 4 vectors"),
        (saved(vectors=VECTORS, ids=np.arange(3)), r"ids of shape \(3,\) beside 4 vectors"),
        (saved(vectors=VECTORS, texts=np.array([{}] * 4)), r"texts is object of shape \(4,\)"),
    ],
)
def test_what_is_no_such_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as refused:
        read_vectors(path)
    assert "\n" not in str(refused.value)


def test_packed_ones_and_other_files_are_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", vectors=VECTORS)
    with pytest.raises(UserError, match="vectors is packed"):
        read_vectors(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"b\.npy is no \.npz file; make one with `tercet embed"):
        read_vectors(tmp_path / "b.npy")
    with pytest.raises(UserError, match=r"cannot read .*No such file"):
        read_vectors(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UserError, match=r"(?i)cannot read .*is a directory|no regular file"):
        read_vectors(tmp_path / "folder.npz")


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(saved(vectors=VECTORS, texts=np.array(["a", "b", "c", "dé"]), probe=PROBE))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    path.write_bytes(content[: data.draw(st.sampled_from([None, data.draw(st.integers(0, len(content)))]))])
    with suppress(UserError):
        found = read_vectors(path)
        found.check_model(PROBE)
        for number in range(len(found.vectors)):
            for item in found.row(number).values():
                str(item).encode()
