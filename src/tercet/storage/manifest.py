"""Which files a folder has, with the size and the hash of each: `manifest.json`, written last.

XXH3 finds damage, at the speed at which memory is read (benchmarks/log/storage.md). It does not stop who means to
deceive.
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
BLOCK = 1 << 20
ATTEMPTS = 20  # to read a folder that is exchanged again and again
PAUSE = 0.05  # seconds for a writer to finish

Result = TypeVar("Result")


@dataclass(frozen=True)
class FileHash:
    """Attributes:
    size: in bytes.
    xxh3: 128 bits, in hexadecimal digits.
    """

    size: int
    xxh3: str

    @staticmethod
    def from_path(path: Path, size: int | None = None) -> "FileHash":
        """Of the whole file, or of its first `size` bytes."""
        with path.open("rb") as file:
            return FileHash.from_file(file, size)

    @staticmethod
    def from_file(
        file: BinaryIO, size: int | None = None, *, visit: Callable[[bytes], object] = lambda block: None
    ) -> "FileHash":
        """Hash an open file from its current position.

        Args:
            file: File opened in binary mode, which stays open.
            size: Number of bytes to hash; by default the size of the file.
            visit: Function called with each block of `BLOCK` bytes (the last one may be shorter).
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
    """The files of a folder, by their paths in it."""

    files: Mapping[str, FileHash]

    @staticmethod
    def from_folder(folder: Path) -> "Manifest":
        """Of everything that lies in a folder and is not hidden, but its manifest."""
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
        """The inverse of `to_plain`.

        Raises:
            DamagedFile: where `data` is nothing of the kind.
        """
        try:
            return Manifest({key: FileHash(int(size), str(xxh3)) for key, (size, xxh3) in data.items()})
        except (AttributeError, TypeError, ValueError):
            raise DamagedFile(f"{name} is damaged; restore the original file") from None

    def to_plain(self) -> dict[str, list[int | str]]:
        return {name: [file.size, file.xxh3] for name, file in self.files.items()}

    def check(
        self,
        folder: Path,
        names: Iterable[str] | None = None,
        *,
        allow_growth: bool = False,
        recorded_in: str = MANIFEST,
    ) -> None:
        """Compare files with what was written.

        Args:
            names: which; all by default. Those that the manifest does not have are not looked at.
            allow_growth: whether a file may have become longer since.
            recorded_in: the file that holds these hashes.

        Raises:
            DamagedFile: for the first that is missing or another, with its path.
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
    """What was written into the folder; None where nothing is said of it.

    Raises:
        DamagedFile: where the manifest itself is damaged.
    """
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return None
    return Manifest.parse(read_sealed_json(path).get("files", {}), str(path))


@contextmanager
def write_folder(path: Path, *, keep: Callable[[Path], bool] = lambda entry: False) -> Generator[Path]:
    """As `replace_folder`, with a manifest of all that was written. Raises as that does."""
    with replace_folder(path, keep=keep, index=MANIFEST) as new:
        yield new
        write_sealed_json(new / MANIFEST, {"hash": "xxh3_128", "files": Manifest.from_folder(new).to_plain()})


def read_whole(folder: Path, read: Callable[[Manifest | None], Result]) -> Result:
    """Return what `read` makes of a folder, all of it from one state: it is read again if it was replaced meanwhile.

    Raises:
        UserError: As `read` does, if the folder stayed the same and is not just being written.
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
