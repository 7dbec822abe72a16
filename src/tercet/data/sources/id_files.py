"""Files of existing token ids: `.bin` as nanoGPT writes it, `.npy`, and lists in JSONL.

A `.bin` file contains only ids in the machine's byte order, so their type is a setting (`dtype`). A `.npy` file
contains its type. Neither is unpickled. In a `.bin` file, ids wider than `dtype` are detected by their small upper
halves, and a header of llm.c by its first number.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, cast

import numpy as np

from tercet.config import UserError
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.files import BLOCK, check_field, open_file, parse_object, read_lines
from tercet.data.sources.formats import is_gzip, uncompressed_suffix
from tercet.limits import MAX_IDS
from tercet.reading.npy import read_array_header

IdDtype = Literal["uint16", "uint32"]
ARRAYS = (".bin", ".npy")
HEADERS = {20240520: "uint16", 20240801: "uint32"}  # first number of llm.c's headers, and the type of the ids
HEADER_BYTES = 1024
MIN_PAIRS = 32  # minimum pairs of ids for detecting upper halves
MAX_UPPER_HALF = MAX_IDS - 1 >> 16  # maximum of the upper 16 bits of an id of 32 bits
SAMPLE_LINES = 100  # lines of a JSONL file searched for the first nonempty one


class IdBlock(NamedTuple):
    """Ids (N,), which may be empty. `last` is True at the end of a list of ids, or of a `.bin` or `.npy` file."""

    ids: np.ndarray[Any, np.dtype[np.uint32]]
    last: bool


@dataclass(frozen=True, kw_only=True)
class IdFile:
    """Ids in one file. Each line of JSONL is a list of ids, or an object with such a list in `text_field`.

    `dtype` is the type of the ids in a `.bin` file.
    """

    path: Path
    dtype: IdDtype = "uint16"
    encoding: str = "utf-8"
    text_field: str = "text"

    @property
    def name(self) -> str:
        return str(self.path)

    def blocks(self) -> Iterator[IdBlock]:
        """Yield all ids in their order.

        Raises:
            UserError: If there are no ids, or the file does not have the format of its name.
        """
        empty = True
        for block in self._read():
            empty = empty and not len(block.ids)
            yield block
        if empty:
            raise UserError(f"{self.path} has no ids; use a file that contains some")

    def largest(self) -> int:
        """Read the whole file and return its largest id.

        Raises:
            UserError: If `blocks` raises it.
        """
        return max(int(block.ids.max()) for block in self.blocks() if len(block.ids))

    def hash(self) -> str:
        return DocumentFiles(root=self.path).hash()

    def size(self) -> int | None:
        is_array = uncompressed_suffix(self.path) in ARRAYS and not is_gzip(self.path)
        return DocumentFiles(root=self.path).size() if is_array else None

    def _read(self) -> Iterator[IdBlock]:
        match uncompressed_suffix(self.path):
            case ".bin":
                with open_file(self.path) as file:
                    for number, block in enumerate(self._read_array(file, np.dtype(self.dtype))):
                        if number == 0:
                            self._check_width(block.ids)
                        yield block
            case ".npy":
                with open_file(self.path) as file:
                    yield from self._read_array(file, *self._read_header(file))
            case _:
                for number, line in enumerate(read_lines(self.path, self.encoding), 1):
                    if line.strip():
                        yield IdBlock(self._parse(line, f"{self.path} line {number}"), last=True)

    def _read_array(self, file: IO[bytes], dtype: np.dtype[Any], length: int | None = None) -> Iterator[IdBlock]:
        """Yield the ids in the rest of the file as one list.

        Raises:
            UserError: If the bytes are not a whole number of ids, an id is negative or too large, or the list does not
                have the given length.
        """
        n_bytes = 0
        while data := _read_whole(file, BLOCK):
            n_bytes += len(data)
            if len(data) % dtype.itemsize:
                raise UserError(
                    f"{self.path} does not contain a whole number of {dtype.name} ids; set data.dtype to their "
                    "type, or copy the file again"
                )
            ids = np.frombuffer(data, dtype)
            if dtype.kind == "i" and int(ids.min()) < 0:
                raise UserError(f"{self.path} has the id {ids.min()}; ids are 0 or more")
            if int(ids.max()) >= 1 << 32:
                raise _too_large_error(str(self.path), int(ids.max()))
            yield IdBlock(ids.astype(np.uint32), last=False)
        if length is not None and n_bytes != length * dtype.itemsize:
            raise UserError(
                f"{self.path} has {n_bytes:,} bytes of ids, but its header specifies {length * dtype.itemsize:,}; "
                "copy it again"
            )
        yield IdBlock(np.empty(0, np.uint32), last=True)

    def _check_width(self, ids: np.ndarray[Any, Any]) -> None:
        """Raise UserError if a `.bin` file starts with a header, or with ids of another width than `dtype`."""
        words = ids.astype(self.dtype)
        magic = int.from_bytes(words.tobytes()[:4], sys.byteorder)
        if magic in HEADERS:
            raise UserError(
                f"{self.path} starts with a header of llm.c; remove it with `tail -c +{HEADER_BYTES + 1}`, and set "
                f"data.dtype to {HEADERS[magic]} (--dtype {HEADERS[magic]})"
            )
        low, high = words[: len(words) // 2 * 2].reshape(-1, 2).T[:: 1 if sys.byteorder == "little" else -1]
        if len(low) < MIN_PAIRS:
            return
        largest = int(high.max())
        upper = MAX_UPPER_HALF if self.dtype == "uint16" else 0
        if largest <= upper and low.max() > (upper if largest else 0):
            bits, double_bits = 8 * words.itemsize, 16 * words.itemsize
            remedy = "set data.dtype to uint32 (--dtype uint32)" if double_bits == 32 else "write it again as uint32"
            raise UserError(
                f"{self.path} looks like ids of {double_bits} bits, but is read as {bits}: every second id is at most "
                f"{largest}; {remedy}, or use .npy, which contains its type"
            )

    def _read_header(self, file: IO[bytes]) -> tuple[np.dtype[Any], int]:
        """Return the dtype and the length of a `.npy` file's array."""
        try:
            dtype, shape, _ = read_array_header(file)
        except ValueError:
            raise UserError(f"{self.path} is not a complete .npy file; write it again with numpy.save") from None
        if len(shape) != 1 or dtype.kind not in "iu":
            raise UserError(
                f"{self.path} contains {dtype} of shape {shape}; ids must be a 1-D integer array, such as uint16 (N,)"
            )
        return dtype, shape[0]

    def _parse(self, line: str, location: str) -> np.ndarray[Any, np.dtype[np.uint32]]:
        if line.lstrip().startswith("["):
            (numbers,) = parse_object(f'{{"ids": {line}}}', location, ["ids"]).values()
        else:
            row = parse_object(line, location, [self.text_field])
            check_field(row, self.text_field, location, "data.text_field")
            numbers = row[self.text_field]
        if not isinstance(numbers, list):
            raise UserError(f"{location} is not a list of ids; write one list per line, such as [5, 17, 2]")
        for number in cast(list[object], numbers):
            if type(number) is not int or number < 0:
                raise UserError(f"{location}: {json.dumps(number)[:40]} is not an id; ids are integers from 0")
            if number >= 1 << 32:
                raise _too_large_error(location, number)
        return np.array(numbers, dtype=np.uint32)


def contains_ids(file: IdFile) -> bool:
    """Return True if the suffix is that of ids, or the first nonempty line of JSONL has a list instead of a text."""
    suffix = uncompressed_suffix(file.path)
    return suffix in ARRAYS or (suffix == ".jsonl" and _has_lists(file))


def _has_lists(file: IdFile) -> bool:
    try:
        lines = islice(read_lines(file.path, file.encoding), SAMPLE_LINES)
        first = next((line for line in lines if line.strip()), "")
        row: object = json.loads(first)
    except (UserError, ValueError, RecursionError):
        return False  # reading it as text raises the error
    if isinstance(row, dict):
        row = cast(dict[str, object], row).get(file.text_field)
    # A JSON array of objects on one line is not a list of ids.
    return isinstance(row, list) and not any(isinstance(item, dict) for item in cast(list[object], row))


def _read_whole(file: IO[bytes], size: int) -> bytes:
    """Read `size` bytes, fewer only at the end of the file; a decompressor may return less per call."""
    parts, left = list[bytes](), size
    while left and (part := file.read(left)):
        parts.append(part)
        left -= len(part)
    return b"".join(parts)


def _too_large_error(location: str, number: int) -> UserError:
    return UserError(f"{location} has the id {number}, but a vocabulary has at most {MAX_IDS:,} tokens; check the file")
