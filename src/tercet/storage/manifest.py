"""Manifests: `manifest.json` contains the size and hash of each file in a folder, and is written last.

The hash XXH3 detects damage at the speed of memory (benchmarks/log/storage.md). It does not protect against tampering.
"""

import os
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import xxhash

from tercet.config import UserError
from tercet.storage.atomic import is_being_written, replace_folder
from tercet.storage.sealed_json import DamagedFile, read_sealed_json, write_sealed_json

MANIFEST = "manifest.json"
BLOCK = 1 << 20  # bytes that are read at once
ATTEMPTS = 20  # maximum number of reads of a folder that is replaced repeatedly
PAUSE = 0.05  # seconds between two reads while a folder is being written

Result = TypeVar("Result")


@dataclass(frozen=True)
class FileHash:
    """Size and hash of a file.

    Attributes:
        size: Size in bytes.
        xxh3: 128-bit XXH3 hash in hexadecimal digits.
    """

    size: int
    xxh3: str

    @staticmethod
    def from_path(path: Path, size: int | None = None) -> "FileHash":
        """Hash a whole file, or its first `size` bytes."""
        with path.open("rb") as file:
            return FileHash.from_file(file, size)

    @staticmethod
    def from_file(
        file: BinaryIO, size: int | None = None, *, visit: Callable[[bytes], object] = lambda block: None
    ) -> "FileHash":
        """Hash an open file from its current position.

        Args:
            file: File opened in binary mode, which stays open.
            size: Maximum number of bytes to hash (default: the size of the file).
            visit: Function called with each block of `BLOCK` bytes (the last one may be shorter).

        Returns:
            Hash of the bytes that were read, and their number.
        """
        digest, left = xxhash.xxh3_128(), os.fstat(file.fileno()).st_size if size is None else size
        n_read = 0
        while block := file.read(min(BLOCK, left - n_read)):
            digest.update(block)
            visit(block)
            n_read += len(block)
        return FileHash(n_read, digest.hexdigest())

    @staticmethod
    def from_bytes(data: bytes) -> "FileHash":
        return FileHash(len(data), xxhash.xxh3_128_hexdigest(data))


@dataclass(frozen=True)
class Manifest:
    """Sizes and hashes of the files in a folder.

    Attributes:
        files: Size and hash of each file, by its path relative to the folder, with forward slashes.
    """

    files: Mapping[str, FileHash]

    @staticmethod
    def from_folder(folder: Path) -> "Manifest":
        """Hash all files in a folder and its subfolders, except those named `manifest.json` and hidden ones.

        A file is hidden if its name, or that of a subfolder on its path, starts with a dot.
        """
        paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path.name != MANIFEST]
        names = [(path.relative_to(folder), path) for path in paths]
        return Manifest(
            {
                name.as_posix(): FileHash.from_path(path)
                for name, path in names
                if not any(p[0] == "." for p in name.parts)
            }
        )

    @staticmethod
    def parse(data: Mapping[str, Any], name: str) -> "Manifest":
        """Parse the result of `to_plain`.

        Args:
            data: Pair of size and hash of each file, by its path.
            name: Path of the file that contains `data`, for the error message.

        Raises:
            DamagedFile: If `data` has another form.
        """
        try:
            return Manifest({key: FileHash(int(size), str(xxh3)) for key, (size, xxh3) in data.items()})
        except (AttributeError, TypeError, ValueError):
            raise DamagedFile(f"{name} is damaged; restore the original file") from None

    def to_plain(self) -> dict[str, list[int | str]]:
        """Return [size, hash] of each file, by its path, as plain values for JSON."""
        return {name: [file.size, file.xxh3] for name, file in self.files.items()}

    def check(
        self,
        folder: Path,
        names: Iterable[str] | None = None,
        *,
        allow_growth: bool = False,
        recorded_in: str = MANIFEST,
    ) -> None:
        """Compare files with their recorded sizes and hashes.

        Args:
            folder: Folder of the files.
            names: Relative paths of the files to check (default: all). Those that are not in the manifest are ignored.
            allow_growth: If True, files may have become longer, and only their first bytes, up to the recorded size,
                are compared.
            recorded_in: Name of the file that contains these hashes, for the error message.

        Raises:
            DamagedFile: If a file is missing, cannot be read or differs. The message contains its path.
        """
        for name in self.files if names is None else [name for name in names if name in self.files]:
            path, expected = folder / name, self.files[name]
            alternative = f", or, if you changed it, remove {folder / MANIFEST}" if recorded_in == MANIFEST else ""
            remedy = f"restore the original file{alternative}"
            try:
                size = path.stat().st_size
                right_size = path.is_file() and (size >= expected.size if allow_growth else size == expected.size)
                if not right_size or FileHash.from_path(path, expected.size) != expected:
                    raise DamagedFile(f"{path} is damaged: it does not match {recorded_in}; {remedy}")
            except FileNotFoundError:
                raise DamagedFile(f"{path} is missing; restore the original file") from None
            except OSError as error:
                raise DamagedFile(f"cannot read {path}: {error.strerror or error}; {remedy}") from None


def read_manifest(folder: Path) -> Manifest | None:
    """Return the manifest of a folder, or None if it has none.

    Raises:
        DamagedFile: If the manifest itself is damaged.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    return Manifest.parse(read_sealed_json(path).get("files", {}), str(path))


@contextmanager
def write_folder(path: Path, *, keep: Callable[[Path], bool] = lambda entry: False) -> Generator[Path]:
    """Yield a new folder that replaces `path` at the end, as in `replace_folder`, with a manifest of its files.

    Args:
        path: Folder to write.
        keep: As in `replace_folder`. Kept files are not in the manifest, unless a new file has replaced them.

    Raises:
        OSError: If `replace_folder` fails.
        UserError: If the manifest cannot be written.
    """
    with replace_folder(path, keep=keep, index=MANIFEST) as new:
        yield new
        write_sealed_json(new / MANIFEST, {"hash": "xxh3_128", "files": Manifest.from_folder(new).to_plain()})


def read_whole(folder: Path, read: Callable[[Manifest | None], Result]) -> Result:
    """Read a folder that may be replaced at any moment, and return the result of `read`.

    If the manifest changes during a read, files of two states may have been mixed, and the folder is read again. The
    result of the last of `ATTEMPTS` reads is returned without this check.

    Args:
        folder: Folder to read.
        read: Function that receives the manifest (None if there is none), reads the folder and returns the result.

    Raises:
        UserError: If `read` raises it while the folder stays the same and is not being written, or in the last attempt.
        DamagedFile: If the manifest is damaged.
    """
    for _ in range(ATTEMPTS - 1):
        manifest = read_manifest(folder)
        try:
            result = read(manifest)
        except UserError:
            if read_manifest(folder) == manifest:
                if not is_being_written(folder):
                    raise
                time.sleep(PAUSE)  # its files may be replaced one by one
        else:
            if read_manifest(folder) == manifest:
                return result
    return read(read_manifest(folder))
