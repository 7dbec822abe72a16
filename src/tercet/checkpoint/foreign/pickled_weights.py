"""A pytorch_model.bin: a pickle of tensors by name, of which no code is ever run and whose claims are not believed.

torch's own safe reader runs a few functions of its choice, `bytearray(2**40)` among them, and unpacks what is packed.
So the opcodes are looked through first: a state_dict names its own parts alone, and torch packs nothing.
"""

import pickletools
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any, cast
from zipfile import ZIP_STORED, BadZipFile, ZipFile, is_zipfile

import torch
from torch import Tensor

from tercet.config import UserError
from tercet.limits import MOST_PICKLE_BYTES, MOST_SHARED, MOST_TENSORS
from tercet.messages import shorten
from tercet.reading.files import check_regular_file

GLOBALS = {
    "collections OrderedDict",
    "torch Size",
    "torch._utils _rebuild_parameter",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    *(
        f"torch {kind}Storage"
        for kind in ("BFloat16", "Bool", "Byte", "Char", "Double", "Float", "Half", "Int", "Long", "Short")
    ),
}
IMPORTS = ("GLOBAL", "INST", "STACK_GLOBAL", "EXT1", "EXT2", "EXT4")  # opcodes that bring something in
OLD_PICKLES = 5  # one after the other in a file that is no archive, before the numbers


def read_pickled_weights(path: Path) -> Mapping[str, Tensor]:
    """The tensors by name, mapped where the file is an archive.

    Raises:
        UserError: where the file is broken, or holds or claims more than weights by name.
    """
    check_regular_file(path)
    try:
        zipped = is_zipfile(path)
        _check_archive(path) if zipped else _check_old(path)
        # What is not asked for is not read; the oldest files are no archives, and are read whole.
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except UserError:
        raise
    except Exception as error:  # torch's reader raises whatever a broken pickle leads to: KeyError, IndexError, ...
        raise UserError(f"{path} is not a whole file of weights ({shorten(error)}); copy it again") from None
    if not isinstance(state, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in cast("dict[Any, Any]", state).items()
    ):
        raise UserError(f"{path} holds more than weights by name; save the model's state_dict alone")
    tensors = cast("dict[str, Tensor]", state)
    _check_sizes(path, tensors)
    return tensors


def _check_archive(path: Path) -> None:
    with ZipFile(path) as archive:
        entries = archive.infolist()
        if len(entries) > MOST_TENSORS:
            raise ValueError(f"{len(entries)} entries, and {MOST_TENSORS} is the most")
        if packed := [entry.filename for entry in entries if entry.compress_type != ZIP_STORED]:
            raise BadZipFile(f"{shorten(repr(packed[0]), 50)} is compressed, which torch writes nothing")
        for entry in entries:
            if entry.filename.endswith(".pkl"):
                if entry.file_size > MOST_PICKLE_BYTES:
                    raise ValueError(f"a pickle of {entry.file_size} bytes, and {MOST_PICKLE_BYTES} is the most")
                with archive.open(entry) as file:
                    _check_opcodes(file)


def _check_old(path: Path) -> None:
    with path.open("rb") as file:
        for _ in range(OLD_PICKLES):
            _check_opcodes(file)


def _check_opcodes(file: IO[bytes]) -> None:
    """Read one pickle without running it."""
    start = file.tell()
    for opcode, argument, _ in pickletools.genops(file):
        if opcode.name in IMPORTS and argument not in GLOBALS:
            raise ValueError(f"it asks for {shorten(repr(argument or opcode.name), 80)}, which no weights need")
        if file.tell() - start > MOST_PICKLE_BYTES:
            raise ValueError(f"a pickle of more than {MOST_PICKLE_BYTES} bytes without its numbers")


def _check_sizes(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """No tensor claims more numbers than it has, or few bytes could pose as many large ones."""
    for name, tensor in tensors.items():
        if tensor.layout != torch.strided or tensor.device.type != "cpu" or not tensor.numel():
            raise UserError(f"{path}: {shorten(name, 80)} has no numbers; save the model's state_dict again")
        if tensor.nbytes > tensor.untyped_storage().nbytes():
            raise UserError(f"{path}: {shorten(name, 80)} has fewer numbers than its shape; save the state_dict again")
    if sum(tensor.nbytes for tensor in tensors.values()) > MOST_SHARED * path.stat().st_size:
        raise UserError(f"{path}: its tensors share their numbers; save the model's state_dict again")
