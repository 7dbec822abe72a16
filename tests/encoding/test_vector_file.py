"""Vector files are read back memory-mapped and unchanged; damaged or unsuitable files are rejected in one line."""

import io
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.encoding import read_vectors, write_vectors
from tercet.encoding import vector_file as module

PROBE = np.array([0.6, 0.8, 0], np.float32)
IDS = st.one_of(
    st.integers(),
    st.sampled_from([2**53 + 1, 2**63 - 1, 2**63, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1]),
    st.text(st.characters(exclude_categories=["Cs"])).filter(lambda text: not text.endswith("\0")),
    st.sampled_from(["007", "+5", "1_000", "\uff11\uff12", "-0", " 7", "1e3", "nan"]),
)
VECTORS = np.arange(12, dtype=np.float32).reshape(4, 3)


def write_vector_file(path: Path, texts: list[str], ids: list[Any], vectors: np.ndarray = VECTORS) -> Path:
    with path.open("wb") as file:
        write_vectors(file, vectors[: len(texts)], texts=texts, ids=ids, probe=PROBE)
    return path


@pytest.mark.parametrize(
    ("ids", "expected_ids"),
    [([3, 1, 2, 7], [3, 1, 2, 7]), (["a", 1, "", "é"], ["a", "1", "", "é"]), ([1, None, 2, 3], None)],
)
def test_written_vectors_are_read_back(tmp_path: Path, ids: list[Any], expected_ids: list[Any] | None) -> None:
    texts = ["a cat", "", "жук\n", "x"]
    vector_file = read_vectors(write_vector_file(tmp_path / "a.npz", texts, ids))
    assert isinstance(vector_file.vectors, np.memmap)
    np.testing.assert_array_equal(vector_file.vectors, VECTORS)
    id_fields = [{} if expected_ids is None else {"id": id} for id in expected_ids or texts]
    assert [vector_file.row(n) for n in range(4)] == [
        {**id, "text": text} for id, text in zip(id_fields, texts, strict=True)
    ]
    vector_file.check_model(PROBE * 3 + np.float32(1e-4))


@given(ids=st.lists(IDS, min_size=1, max_size=4))
@example(ids=[2**53 + 1, -(2**63)])
@example(ids=[0, 2**64 - 1])
@example(ids=[-1, 2**63])
@example(ids=[2**64])
def test_ids_round_trip_unchanged_and_never_as_a_pickle(ids: list[str | int]) -> None:
    """Integers stay integers if all ids are integers of 64 bits; otherwise every id becomes text."""
    file = io.BytesIO()
    write_vectors(file, VECTORS[: len(ids)], texts=["x"] * len(ids), ids=ids, probe=PROBE)
    with np.load(io.BytesIO(file.getvalue()), allow_pickle=False) as arrays:
        assert arrays["ids"].dtype.kind in "iuU"
    with tempfile.NamedTemporaryFile(suffix=".npz") as temporary_file:
        Path(temporary_file.name).write_bytes(file.getvalue())
        read = read_vectors(Path(temporary_file.name))
        read_ids = [read.row(number)["id"] for number in range(len(ids))]
    integers = all(isinstance(id, int) for id in ids) and any(
        low <= min(map(int, ids)) and max(map(int, ids)) < high for low, high in ((-(2**63), 2**63), (0, 2**64))
    )
    assert read_ids == (ids if integers else [str(id) for id in ids])


@pytest.mark.parametrize("item", ["a\0", "\0"])
def test_text_that_an_array_would_truncate_is_rejected(item: str) -> None:
    with pytest.raises(UserError, match=r"^the id of text 3 ends in a NUL character.*; remove it, or write a \.jsonl"):
        module.check_storable(item, "the id of text 3")
    for value in ("", "\0a", 7, None):
        module.check_storable(value, "the id")


def test_long_texts_are_replaced_by_ids_or_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TEXT_BYTES", 16)
    texts = ["four", "five5"]
    assert read_vectors(write_vector_file(tmp_path / "a.npz", texts, ["x", "y"])).row(1) == {"id": "y"}
    assert read_vectors(write_vector_file(tmp_path / "b.npz", texts, [None, None])).row(1) == {"id": 1}
    assert read_vectors(write_vector_file(tmp_path / "c.npz", [], [])).vectors.shape == (0, 3)


def test_vectors_of_another_model_are_rejected(tmp_path: Path) -> None:
    vector_file = read_vectors(write_vector_file(tmp_path / "a.npz", ["a"], [None]))
    with pytest.raises(UserError, match="vectors of 3 numbers but the model's have 4; use the model that made them"):
        vector_file.check_model(np.ones(4, np.float32))
    for probe in (PROBE[::-1], PROBE + np.float32(0.03), PROBE * np.nan):
        with pytest.raises(
            UserError, match="of another model, or of an earlier state of this one, or made with another --po"
        ):
            vector_file.check_model(probe)
    np.savez(tmp_path / "b.npz", vectors=VECTORS.astype(np.float64))
    read_vectors(tmp_path / "b.npz").check_model(PROBE[::-1])  # the file does not name its model


def save_arrays(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a file of `tercet embed`"),
        (b"PK\3\4", "is not a file of `tercet embed`"),
        (save_arrays(probe=PROBE), "has no array vectors"),
        (save_arrays(vectors=PROBE), r"vectors is float32 of shape \(3,\)"),
        (save_arrays(vectors=VECTORS.astype(int)), r"vectors is int64 of shape \(4, 3\)"),
        (save_arrays(vectors=VECTORS, probe=PROBE[:2]), r"probe of shape \(2,\) but 4 vectors"),
        (save_arrays(vectors=VECTORS, ids=np.arange(3)), r"ids of shape \(3,\) but 4 vectors"),
        (save_arrays(vectors=VECTORS, texts=np.array([{}] * 4)), r"texts is object of shape \(4,\)"),
    ],
)
def test_invalid_files_are_rejected(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "a.npz"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as error:
        read_vectors(path)
    assert "\n" not in str(error.value)


def test_compressed_and_other_files_are_rejected(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "a.npz", vectors=VECTORS)
    with pytest.raises(UserError, match="vectors is compressed"):
        read_vectors(tmp_path / "a.npz")
    with pytest.raises(UserError, match=r"b\.npy is not an \.npz file; create one with `tercet embed"):
        read_vectors(tmp_path / "b.npy")
    with pytest.raises(UserError, match=r"cannot read .*No such file"):
        read_vectors(tmp_path / "none.npz")
    (tmp_path / "folder.npz").mkdir()
    with pytest.raises(UserError, match=r"(?i)cannot read .*is a directory|not a regular file"):
        read_vectors(tmp_path / "folder.npz")


@pytest.mark.slow
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_file_is_read_or_rejected(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray(save_arrays(vectors=VECTORS, texts=np.array(["a", "b", "c", "dé"]), probe=PROBE))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.mktemp("damaged") / "a.npz"
    path.write_bytes(content[: data.draw(st.sampled_from([None, data.draw(st.integers(0, len(content)))]))])
    with suppress(UserError):
        vector_file = read_vectors(path)
        vector_file.check_model(PROBE)
        for number in range(len(vector_file.vectors)):
            for item in vector_file.row(number).values():
                str(item).encode()
