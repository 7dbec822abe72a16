"""Safe reading of `torch.save` files, whose pickle is inspected first.

No code of the file runs, and no size in it is trusted.

The weights-only reader of torch runs some functions, such as `bytearray(2**40)`, unpacks compressed entries, and maps a
storage with the size that the pickle claims, even beyond the end of its entry. Therefore the file is checked before
torch reads it: its pickle may only import the functions and classes that rebuild tensors, and each storage must fit its
entry of the archive. Weights of other programs and the states of runs are checked in the same way.
"""

import pickletools
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import torch
from torch import Tensor

from tercet.config import UserError
from tercet.limits import MAX_PICKLE_BYTES, MAX_SHARED_NAMES, MAX_TENSORS
from tercet.messages import shorten
from tercet.reading.files import check_regular_file

STORAGES = {
    "torch BFloat16Storage": 2,
    "torch BoolStorage": 1,
    "torch ByteStorage": 1,
    "torch CharStorage": 1,
    "torch DoubleStorage": 8,
    "torch FloatStorage": 4,
    "torch HalfStorage": 2,
    "torch IntStorage": 4,
    "torch LongStorage": 8,
    "torch ShortStorage": 2,
}  # bytes per number
GLOBALS = {
    "collections OrderedDict",
    "torch Size",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    *STORAGES,
}
IMPORTS = ("GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4")  # opcodes that import an object
OLD_PICKLES = 5  # number of pickles before the tensors' numbers, in older files that are not zip archives
PICKLE, DATA = "data.pkl", "data/"  # paths in an archive, below its top folder: the pickle, and the storages


def load_safely(path: Path, kind: str) -> Any:
    """Load a `torch.save` file to the CPU; it is memory-mapped if it is a zip archive.

    Args:
        path: The file.
        kind: Expected content in words, such as "weights", for the error message.

    Raises:
        UserError: If the file is damaged, or contains anything but plain values and tensors.
    """
    check_regular_file(path)
    try:
        is_archive = is_zipfile(path)
        _check_archive(path) if is_archive else _check_old(path)
        # The oldest files are not archives and cannot be mapped.
        return torch.load(path, map_location="cpu", weights_only=True, mmap=is_archive)
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise anything: KeyError, IndexError, ...
        raise UserError(f"{path} is not a complete file of {kind} ({shorten(error)}); copy it again") from None


def read_pickled_weights(path: Path) -> Mapping[str, Tensor]:
    """Return the tensors of a `pytorch_model.bin` by name.

    Raises:
        UserError: If the file is damaged, contains anything but tensors by name, or claims more numbers than it has.
    """
    state = load_safely(path, "weights")
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in cast("dict[Any, Any]", state).items()
    ):
        raise UserError(f"{path} contains objects other than named tensors; save only the model's state_dict")
    tensors = cast("dict[str, Tensor]", state)
    _check_sizes(path, tensors)
    return tensors


def _check_archive(path: Path) -> None:
    with ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > MAX_TENSORS:
            raise ValueError(f"{len(entries)} entries; the maximum is {MAX_TENSORS}")
        if compressed := [entry.filename for entry in entries if entry.compress_type != ZIP_STORED]:
            raise BadZipFile(f"{shorten(repr(compressed[0]), 50)} is compressed, which torch never writes")
        # torch ignores the case of names, and takes the first of two equal ones.
        entries_by_name = {entry.filename.lower(): entry for entry in entries}
        if len(entries_by_name) < len(entries):
            raise BadZipFile("two entries have the same name")
        pickles = [entry for entry in entries if entry.filename.lower().endswith(".pkl")]
        if len(pickles) != 1 or pickles[0].filename.rpartition("/")[2] != PICKLE:
            raise BadZipFile(f"expected exactly one pickle, {PICKLE}")
        folder = pickles[0].filename.removesuffix(PICKLE).lower()
        sizes = {
            name.removeprefix(folder + DATA): entry.file_size
            for name, entry in entries_by_name.items()
            if name.startswith(folder + DATA)
        }
        if pickles[0].file_size > MAX_PICKLE_BYTES:
            raise ValueError(f"a pickle of {pickles[0].file_size} bytes; the maximum is {MAX_PICKLE_BYTES}")
        with archive.open(pickles[0]) as file:
            _check_opcodes(file, sizes)


def _check_old(path: Path) -> None:
    with path.open("rb") as file:
        for _ in range(OLD_PICKLES):
            _check_opcodes(file)


def _check_opcodes(file: IO[bytes], sizes: Mapping[str, int] | None = None) -> None:
    """Check the opcodes of a pickle without running it.

    Args:
        file: Binary file at the beginning of the pickle; afterwards it is at the end of the pickle.
        sizes: Size in bytes of each storage's entry, by key; None if the file is not an archive.

    Raises:
        ValueError: If the pickle imports anything that weights do not need, is larger than `MAX_PICKLE_BYTES`, or
            refers to a storage that is larger than its entry in the archive.
    """
    start = file.tell()
    storage = _StorageReference()
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in IMPORTS and argument not in GLOBALS:
            raise ValueError(f"it imports {shorten(repr(argument or opcode.name), 80)}, which weights do not need")
        if file.tell() - start > MAX_PICKLE_BYTES:
            raise ValueError(
                f"its pickle has more than {MAX_PICKLE_BYTES} bytes, not counting the numbers of the tensors"
            )
        storage.push(opcode.name, argument)
        if sizes is not None and opcode.name in ("PERSID", "BINPERSID"):
            key, size = storage.read()
            if size > sizes.get(key, -1):
                raise ValueError(f"storage {shorten(repr(key), 50)} claims {size} bytes, more than its entry has")


class _StorageReference:
    """The last opcodes of a pickle, which describe a storage if BINPERSID follows. torch writes them in this order:

    MARK  "storage"  class  key  location  numel  TUPLE     (each text and class may come from the memo)
    """

    def __init__(self) -> None:
        self.memo: dict[int, Any] = {}
        self.recent: deque[tuple[str, Any]] = deque(maxlen=8)

    def push(self, name: str, argument: Any) -> None:
        if name in ("BINPUT", "LONG_BINPUT"):
            value = self.recent[-1][1] if self.recent else None
            self.memo[argument] = value if isinstance(value, str) else None
            return
        if name in ("BINGET", "LONG_BINGET"):
            argument = self.memo.get(argument)
        self.recent.append((name, argument))

    def read(self) -> tuple[str, int]:
        """Return the key and the size in bytes of the storage to which the next opcode refers."""
        match list(self.recent)[:-1]:
            case [
                ("MARK", _),
                (_, "storage"),
                (_, str(kind)),
                (_, str(key)),
                (_, str()),
                (_, int(numel)),
                ("TUPLE", _),
            ] if kind in STORAGES and numel >= 0:
                return key.lower(), numel * STORAGES[kind]
            case _:
                raise ValueError("invalid reference to a storage")


def _check_sizes(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Reject tensors that claim more numbers than the file has; otherwise a small file could fill the memory."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or not tensor.numel():
            raise UserError(f"{path}: {shorten(name, 80)} is empty; save the model's state_dict again")
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise UserError(f"{path}: {shorten(name, 80)} has fewer numbers than its shape; save the state_dict again")
    if sum(tensor.nbytes for tensor in tensors.values()) > MAX_SHARED_NAMES * path.stat().st_size:
        raise UserError(f"{path}: its tensors share memory; save the model's state_dict again")
