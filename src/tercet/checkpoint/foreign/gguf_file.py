"""Reading and writing of GGUF, the file format of llama.cpp.

    "GGUF", version u32, number of tensors u64, number of settings u64
    each setting: key, type u32, value
    each tensor: name, sizes, type, offset
    zeros up to a multiple of general.alignment (default: 32), followed by the tensors' numbers

A text is stored as its length in bytes (u64) and its UTF-8 bytes, a list as the type of its items (u32), its length
(u64) and its items.

The content of a file is not trusted: each length and offset is compared with the size of the file before memory is
allocated. Tensors may be quantized in blocks; the `gguf` package dequantizes them.
"""

import struct
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, cast

import numpy as np
import torch
from torch import Tensor

from tercet.config import Plain, UserError
from tercet.limits import MAX_GGUF_HEADER_BYTES, MAX_GGUF_ITEMS, MAX_TENSORS
from tercet.messages import shorten
from tercet.reading.files import check_regular_file
from tercet.storage import write_atomically

MAGIC = b"GGUF"
VERSIONS = (2, 3)  # version 1, used for a few weeks in 2023, stored lengths in fewer bytes
ALIGNMENT, KEY = 32, "general.alignment"  # bytes, and the key of a file with another alignment
MAX_DIMENSIONS = 4  # of a tensor
NUMBERS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "?", 10: "<u8", 11: "<i8", 12: "<f8",
}  # fmt: skip
U32, I32, F32, BOOL, TEXT, LIST = 4, 5, 6, 7, 8, 9
PLAIN_TYPES = {0: ("<f4", torch.float32), 1: ("<f2", torch.float16), 30: ("<i2", torch.bfloat16)}  # types of tensors
PLAIN_F32 = 0

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


@dataclass(frozen=True, kw_only=True)
class TensorLocation:
    """Type and position of a tensor in a file.

    Attributes:
        shape: Shape with the slowest dimension first, as in torch; in the file it is last.
        kind: Number of the type in ggml.
        start, end: Positions of the first byte and after the last byte of the tensor in the file.
    """

    shape: tuple[int, ...]
    kind: int
    start: int
    end: int


class GgufFile:
    """A GGUF file, whose tensors are read on demand.

    Attributes:
        path: Path of the file.
        settings: Values by key: numbers, booleans, texts, or lists of these.
        locations: Locations of the tensors, by name.

    Raises:
        UserError: If the file is damaged, truncated or inconsistent, or has quantized tensors and the `gguf` package is
            not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        check_regular_file(path)
        with _raise_file_errors(path):
            self._bytes: Bytes = (
                np.asarray(np.memmap(path, np.uint8, "r")) if path.stat().st_size else np.zeros(0, "u1")
            )
            self.settings, self.locations = _read(_Header(self._bytes))

    def tensor(self, name: str) -> Tensor:
        """Read a tensor as float32, dequantized if necessary.

        Raises:
            UserError: If the tensor is quantized, and the `gguf` package cannot dequantize its type.
        """
        location = self.locations[name]
        data = self._bytes[location.start : location.end]
        if location.kind in PLAIN_TYPES:
            numbers, dtype = PLAIN_TYPES[location.kind]
            return torch.from_numpy(np.array(data).view(numbers)).view(dtype).float().reshape(location.shape)
        rows = data.reshape(prod(location.shape[:-1]), -1)
        with np.errstate(all="ignore"):  # NaN and infinite numbers are allowed
            return torch.from_numpy(_dequantize(rows, location.kind, name)).reshape(location.shape)


def write_gguf(path: Path, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Write settings, and tensors as float32.

    Args:
        path: File to write.
        settings: Values by key: texts, booleans, integers (stored as u32), floats (f32), or lists of texts, of integers
            (i32) or of floats (f32). An empty list is stored as a list of texts.
        tensors: Tensors by name, from any device.

    Raises:
        UserError: If the file cannot be written.
    """
    header = bytearray(MAGIC + struct.pack("<IQQ", VERSIONS[-1], len(tensors), len(settings)))
    for key, value in settings.items():
        header += _text(key) + _setting(value)
    offset = 0
    for name, tensor in tensors.items():
        sizes = tuple(reversed(tensor.shape))
        header += _text(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, PLAIN_F32, offset)
        offset = _round_up(offset + 4 * tensor.numel(), ALIGNMENT)

    def write(file: BinaryIO) -> None:
        file.write(header.ljust(_round_up(len(header), ALIGNMENT), b"\0"))
        for tensor in tensors.values():
            data = tensor.detach().cpu().to(torch.float32).contiguous().numpy().astype("<f4", copy=False)
            file.write(data.data)
            file.write(bytes(_round_up(data.nbytes, ALIGNMENT) - data.nbytes))

    write_atomically(path, write)


class _Header:
    """Sequential reader of the values before the tensors' numbers; raises ValueError if the data ends early."""

    def __init__(self, data: Bytes) -> None:
        self.size = len(data)
        self.offset = 0
        self._items = 0  # number of items in all lists so far
        self._data = data[:MAX_GGUF_HEADER_BYTES].data

    def number(self, form: str) -> Any:
        """Read a value whose type is a format character of `struct`, such as "I" for u32 or "Q" for u64."""
        offset = self.offset
        self.skip(struct.calcsize(f"<{form}"))
        return struct.unpack_from(f"<{form}", self._data, offset)[0]

    def text(self) -> str:
        length = self.number("Q")
        offset = self.offset
        self.skip(length)
        return str(self._data[offset : self.offset], "utf-8")

    def value(self, kind: int) -> Any:
        if kind == TEXT:
            return self.text()
        if kind == LIST:
            return self._list(self.number("I"), self.number("Q"))
        (value,) = self._numbers(kind, 1)
        return bool(value) if kind == BOOL else value

    def skip(self, n: int) -> None:
        if n > len(self._data) - self.offset:
            cut = (
                "the file ends"
                if self.size == len(self._data)
                else f"the maximum of {MAX_GGUF_HEADER_BYTES} bytes of settings is exceeded"
            )
            raise ValueError(f"{cut} inside a value of {n} bytes at byte {self.offset}")
        self.offset += n

    def _list(self, kind: int, n: int) -> list[Any]:
        self._items += n
        if self._items > MAX_GGUF_ITEMS:
            raise ValueError(f"its lists claim {self._items} items; the maximum is {MAX_GGUF_ITEMS}")
        if kind != TEXT:
            return self._numbers(kind, n)
        if 8 * n > len(self._data) - self.offset:
            self.skip(8 * n)  # raises: each text has a length of 8 bytes, even if it is empty
        return [self.text() for _ in range(n)]

    def _numbers(self, kind: int, n: int) -> list[Any]:
        if kind not in NUMBERS:
            raise ValueError(f"a value of the unknown kind {kind} at byte {self.offset}")
        form, offset = np.dtype(NUMBERS[kind]), self.offset
        self.skip(n * form.itemsize)
        return np.frombuffer(self._data[offset : self.offset], dtype=form).tolist()


def _read(header: _Header) -> tuple[Plain, dict[str, TensorLocation]]:
    if header.number("4s") != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version = header.number("I")
    if version not in VERSIONS:
        is_big_endian = int.from_bytes(version.to_bytes(4, "little"), "big") in VERSIONS
        reason = "its numbers are big-endian" if is_big_endian else f"its version is {version}"
        raise ValueError(f"{reason}; Tercet reads the little-endian versions {' and '.join(map(str, VERSIONS))}")
    n_tensors, n_settings = header.number("Q"), header.number("Q")
    if max(n_tensors, n_settings) > MAX_TENSORS:
        raise ValueError(f"it claims {n_tensors} tensors and {n_settings} settings; the maximum is {MAX_TENSORS}")
    settings: Plain = {}
    for _ in range(n_settings):
        key = header.text()
        if key in settings:
            raise ValueError(f"the setting {key!r} occurs twice")
        settings[key] = header.value(header.number("I"))
    alignment = settings.get(KEY, ALIGNMENT)
    if type(alignment) is not int or alignment < 1 or alignment & (alignment - 1):
        raise ValueError(f"{KEY} is {alignment!r}; it must be a power of two")
    layouts: dict[str, tuple[tuple[int, ...], int, int]] = {}
    for _ in range(n_tensors):
        name = header.text()
        if name in layouts:
            raise ValueError(f"the tensor {name!r} occurs twice")
        n_sizes = header.number("I")
        if not 1 <= n_sizes <= MAX_DIMENSIONS:
            raise ValueError(f"the tensor {name!r} has {n_sizes} dimensions; expected 1 to {MAX_DIMENSIONS}")
        sizes = tuple(header.number("Q") for _ in range(n_sizes))
        layouts[name] = tuple(reversed(sizes)), header.number("I"), header.number("Q")
    start = _round_up(header.offset, alignment)
    locations = {name: _locate(name, *layout, start, alignment, header.size) for name, layout in layouts.items()}
    ordered_names = sorted(locations, key=lambda name: locations[name].start)
    for first, second in pairwise(ordered_names):  # otherwise a small file could claim many large tensors
        if locations[second].start < locations[first].end:
            raise ValueError(f"the tensors {first!r} and {second!r} overlap")
    return settings, locations


def _locate(
    name: str, shape: tuple[int, ...], kind: int, offset: int, start: int, alignment: int, size: int
) -> TensorLocation:
    numbers, n_bytes = _block(kind, name)
    if not prod(shape) or shape[-1] % numbers:
        raise ValueError(f"the tensor {name!r} has rows of {shape[-1]}, but its type has blocks of {numbers}")
    if offset % alignment:
        raise ValueError(f"the tensor {name!r} begins at {offset}, which is not a multiple of {alignment}")
    end = start + offset + prod(shape) // numbers * n_bytes
    if end > size:
        raise ValueError(f"the tensor {name!r} ends at byte {end}, and the file at {size}")
    return TensorLocation(shape=shape, kind=kind, start=start + offset, end=end)


def _block(kind: int, name: str) -> tuple[int, int]:
    """Return the number of values in a block of a tensor type, and the size of the block in bytes."""
    if kind in PLAIN_TYPES:
        return 1, np.dtype(PLAIN_TYPES[kind][0]).itemsize
    gguf = _package()
    if kind not in {member.value for member in gguf.GGMLQuantizationType}:
        raise ValueError(f"the tensor {name!r} is of the unknown type {kind}")
    return gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType(kind)]


def _dequantize(rows: Bytes, kind: int, name: str) -> np.ndarray[Any, Any]:
    gguf = _package()
    try:
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType(kind))
    except NotImplementedError:
        quantization = gguf.GGMLQuantizationType(kind).name
        raise UserError(
            f"{name} is stored as {quantization}, which the gguf package cannot dequantize; use another file"
        ) from None


def _package() -> Any:
    try:
        import gguf
    except ImportError:
        raise UserError(
            "quantized tensors of a GGUF file require the gguf package; pip install 'tercet[export]'"
        ) from None
    return gguf


@contextmanager
def _raise_file_errors(path: Path) -> Generator[None]:
    try:
        yield
    except UnicodeDecodeError:
        raise UserError(f"{path} is not a supported GGUF file: a text in it is not UTF-8; copy it again") from None
    except (ValueError, struct.error) as error:
        raise UserError(f"{path} is not a supported GGUF file: {shorten(error)}; copy it again") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; copy it again") from None


def _round_up(offset: int, alignment: int) -> int:
    return -(-offset // alignment) * alignment


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _setting(value: Any) -> bytes:
    if not isinstance(value, list):
        kind = _kind(value)
        return struct.pack("<I", kind) + _item(value, kind)
    items = cast("Sequence[Any]", value)
    kind = _kind(items[0], in_list=True) if items else TEXT
    return struct.pack("<IIQ", LIST, kind, len(items)) + b"".join(_item(item, kind) for item in items)


def _kind(value: Any, *, in_list: bool = False) -> int:
    kinds = {str: TEXT, bool: BOOL, int: I32 if in_list else U32, float: F32}
    return kinds[type(value)]


def _item(value: Any, kind: int) -> bytes:
    return _text(value) if kind == TEXT else np.array(value, dtype=NUMBERS[kind]).tobytes()
