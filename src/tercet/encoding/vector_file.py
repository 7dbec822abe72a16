"""Vectors and their texts in one `.npz` file, as written by `numpy.savez` but without pickles.

vectors  (N, D) float32
texts    (N,) the texts, unless the array would be too large: each element takes as much memory as the longest text
ids      (N,) ids, if all texts have one: integers if all ids are integers that fit into 64 bits, else text
probe    (D,) float32, the vector of the empty text, which identifies the model and the pooling

If the vectors are those of chunks, the file also contains the place of each chunk, and `texts` are those of the chunks:

documents     (N,) number of the text that contains the chunk
starts, ends  (N,) indices of the characters of the chunk in its text

If neither the texts nor their ids are stored, the ids are 0, 1 and so on. Arrays in the file are not compressed, so
that they can be memory-mapped instead of loaded.
"""

import os
import struct
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from tercet.config import UserError
from tercet.messages import shorten
from tercet.reading.npy import read_array_header
from tercet.reading.text_files import open_regular_file

MAX_TEXT_BYTES = 1 << 28  # maximum bytes of the array of texts
PLACES = ("documents", "starts", "ends")
KINDS = {"vectors": "f", "probe": "f", "texts": "U", "ids": "iuU", **dict.fromkeys(PLACES, "i")}
MIN_PROBE_COSINE = 0.9999  # minimum cosine of a model's vectors of the same text on different hardware
LOCAL_HEADER = struct.Struct("<4s22xHH")  # member of a zip file: signature, bytes of its name, bytes of extra fields


@dataclass(frozen=True, kw_only=True)
class VectorFile:
    """Contents of a vector file.

    Attributes:
        path: Path of the file.
        vectors: (N, D), memory-mapped.
        texts, ids: (N,), or None if the file does not contain them.
        probe: (D,) vector of the empty text, or None if the file does not contain it.
        documents, starts, ends: (N,) place of each chunk, or None if the vectors are not those of chunks.
    """

    path: Path
    vectors: np.ndarray
    texts: np.ndarray | None = None
    ids: np.ndarray | None = None
    probe: np.ndarray | None = None
    documents: np.ndarray | None = None
    starts: np.ndarray | None = None
    ends: np.ndarray | None = None

    def row(self, number: int) -> dict[str, str | int]:
        """Return the `id`, `start`, `end` and `text` of a vector, and as `index` the number of its text.

        Those that the file does not contain are left out.

        Raises:
            UserError: If the id or the text is not valid Unicode.
        """
        stored = {
            "index": self.documents, "id": self.ids, "start": self.starts, "end": self.ends, "text": self.texts,
        }  # fmt: skip
        try:
            return {name: _item(array, number) for name, array in stored.items() if array is not None}
        except ValueError:
            raise UserError(
                f"{self.path}: the id or text of vector {number} is not valid Unicode; create the file again"
            ) from None

    def check_model(self, probe: np.ndarray) -> None:
        """Check that the vectors are from the model whose vector of the empty text is `probe` (D,).

        Raises:
            UserError: If they are from another model, or were pooled differently.
        """
        width = self.vectors.shape[1]
        if width != len(probe):
            raise UserError(
                f"{self.path} has vectors of {width} numbers but the model's have {len(probe)}; "
                "use the model that made them, or create them again with `tercet embed`"
            )
        if self.probe is not None and not _cosine(self.probe, probe) >= MIN_PROBE_COSINE:
            raise UserError(
                f"{self.path} has vectors of another model, or of an earlier state of this one, or made with another "
                "--pooling; use the same model and pooling, or create them again with `tercet embed`"
            )


def write_vectors(
    file: IO[bytes],
    vectors: np.ndarray,
    *,
    texts: Sequence[str],
    ids: Sequence[str | int | None],
    probe: np.ndarray,
    places: Sequence[tuple[int, int, int]] | None = None,
) -> None:
    """Write a vector file.

    Args:
        file: File that is open for writing in binary mode.
        vectors: (N, D) float32.
        texts: N texts that `check_storable` accepts.
        ids: N ids that `check_storable` accepts. None means that a text has no id.
        probe: (D,) vector of the empty text.
        places: For vectors of chunks, the number of the text of each, and the indices of its characters in the text.
    """
    arrays: dict[str, np.ndarray] = {"vectors": vectors, "probe": probe}
    if fits_array(texts):
        arrays["texts"] = np.array(texts, dtype=np.str_)
    stored = [id for id in ids if id is not None]
    if texts and len(stored) == len(texts):
        arrays["ids"] = _ids_array(stored)
    elif "texts" not in arrays:
        arrays["ids"] = np.arange(len(texts)) if places is None else np.array([number for number, _, _ in places])
    if places is not None:
        columns = np.array(places, np.int64).reshape(-1, len(PLACES)).T
        arrays |= dict(zip(PLACES, columns, strict=True))
    with zipfile.ZipFile(file, "w") as archive:  # np.savez cannot forbid pickles in every NumPy 2
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, array, allow_pickle=False)


def check_storable(item: str | int | None, name: str) -> None:
    """Check that an array can store a text or an id unchanged.

    Raises:
        UserError: If `item` ends in NUL, which NumPy uses as padding. The message begins with `name`.
    """
    if isinstance(item, str) and item.endswith("\0"):
        raise UserError(
            f"{name} ends in a NUL character, which a .npz file cannot store: {shorten(ascii(item), 80)}; remove it, "
            "or write a .jsonl file"
        )


def _ids_array(ids: Sequence[str | int]) -> np.ndarray:
    """Return an array of integers if every id is one and all fit into int64 or uint64, else of text.

    NumPy would round or pickle larger integers.
    """
    numbers = [id for id in ids if isinstance(id, int) and not isinstance(id, bool)]
    if len(numbers) == len(ids):
        for dtype in (np.int64, np.uint64):
            limits = np.iinfo(dtype)
            if limits.min <= min(numbers) and max(numbers) <= limits.max:
                return np.array(numbers, dtype)
    return np.array([str(id) for id in ids], np.str_)


def fits_array(texts: Sequence[str]) -> bool:
    """Return whether an array of these texts takes at most `MAX_TEXT_BYTES`."""
    return 4 * len(texts) * max(map(len, texts), default=0) <= MAX_TEXT_BYTES


def read_vectors(path: Path) -> VectorFile:
    """Read a vector file. Its arrays are memory-mapped.

    Raises:
        UserError: If the file cannot be read, or was not written by `write_vectors`.
    """
    if path.suffix != ".npz":
        raise UserError(f"{path} is not an .npz file; create one with `tercet embed RUN --output vectors.npz`")
    try:
        with open_regular_file(path) as file, zipfile.ZipFile(file) as archive:
            arrays = {name: _map(file, archive, name) for name in KINDS if f"{name}.npy" in archive.namelist()}
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check it and its permissions") from None
    except (ValueError, struct.error, zipfile.BadZipFile, NotImplementedError, OverflowError) as error:
        raise UserError(f"{path} is not a file of `tercet embed` ({error}); create the file again") from None
    if "vectors" not in arrays:
        raise UserError(f"{path} has no array vectors; create a file with `tercet embed RUN --output vectors.npz`")
    count, width = arrays["vectors"].shape
    expected = {"vectors": (count, width), "probe": (width,)}
    for name, array in arrays.items():
        if array.shape != expected.get(name, (count,)):
            raise UserError(f"{path} has {name} of shape {array.shape} but {count} vectors; create the file again")
    return VectorFile(path=path, **arrays)


def _map(file: IO[bytes], archive: zipfile.ZipFile, name: str) -> np.ndarray:
    """Map the array in a member of the archive.

    Raises:
        ValueError: If it is not an array, has another type or shape, is compressed, or is truncated.
    """
    member = archive.getinfo(f"{name}.npy")
    if member.compress_type != zipfile.ZIP_STORED or member.flag_bits & 1:
        raise ValueError(f"{name} is compressed")
    file.seek(member.header_offset)
    signature, *lengths = LOCAL_HEADER.unpack(file.read(LOCAL_HEADER.size))
    if signature != b"PK\3\4":
        raise ValueError(f"the zip directory has a wrong offset for {name}")
    start = member.header_offset + LOCAL_HEADER.size + sum(lengths)
    file.seek(start)
    dtype, shape, fortran_order = read_array_header(file)
    size, offset = dtype.itemsize, file.tell()
    for length in shape:
        size *= length
    if dtype.kind not in KINDS[name] or len(shape) != 1 + (name == "vectors"):
        raise ValueError(
            f"{name} is {dtype} of shape {shape}; expected vectors: floats (N, D), probe: floats (D,), "
            "texts: strings (N,), ids: strings or integers (N,), documents, starts and ends: integers (N,)"
        )
    if offset + size != start + member.file_size or offset + size > file.seek(0, os.SEEK_END):
        raise ValueError(f"{name} is truncated")
    if not size:
        return np.zeros(shape, dtype)
    order = "F" if fortran_order else "C"
    return np.memmap(file, dtype, mode="r", offset=offset, shape=shape, order=order)


def _item(array: np.ndarray, number: int) -> str | int:
    """Return an element of an array of integers or texts.

    Raises:
        ValueError: If a text is not valid Unicode, which NumPy does not check.
    """
    if array.dtype.kind != "U":
        return array[number].item()
    code = "utf-32-be" if array.dtype.str.startswith(">") else "utf-32-le"
    return array[number : number + 1].tobytes().decode(code).rstrip("\0")


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the cosine; NaN if a vector is zero or not finite."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(all="ignore"):
        return float(a @ b / np.sqrt((a @ a) * (b @ b)))
