"""Cache folders: written atomically, and named after a hash of everything that they depend on.

If a file, tokenizer or split changes, so does the name, and the cache never returns stale data. Each folder contains a
manifest of hashes, which is checked before use. A damaged folder is rebuilt with a notice.
"""

import errno
import hashlib
import json
import os
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.sources.dataset_source import DatasetSource
from tercet.data.sources.text_source import TextSource
from tercet.messages import print_note
from tercet.storage import DamagedFile, read_manifest, write_folder
from tercet.tokens import Tokenizer

FORMAT = 1  # incremented when the files for the same settings change
CHUNK_CHARACTERS = (1 << 20) * min(
    16, max(2, os.cpu_count() or 1)
)  # characters encoded in one call: several pieces per core

Item = TypeVar("Item")


class ChangedData(UserError):
    """The data does not have the expected hash."""


def check_hash(name: str, content: str, expected: str | None) -> None:
    """Check that data has the expected hash.

    Args:
        name: Name of the data in the message.
        content: Hash of the data.
        expected: Expected hash, or None to accept any data.

    Raises:
        ChangedData: If the hashes differ.
    """
    if expected is not None and content != expected:
        raise ChangedData(f"{name} does not have the expected hash; pass the original data")


class Snapshot:
    """Hash of a source when this object was created, to detect later changes.

    Attributes:
        hash: sha256 of the source's content.
    """

    def __init__(self, source: TextSource) -> None:
        self._source, self.hash = source, source.hash()

    def check(self) -> None:
        """Raise UserError if the source has changed."""
        if self._source.hash() != self.hash:
            if isinstance(self._source, DatasetSource):
                raise self._source.changed_error()
            raise UserError(f"{self._source.name} was changed while it was read; try again when it is complete")


def memory_map(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """Return the numbers in a file as a memory-mapped array, or an ordinary empty array for an empty file."""
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def id_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


def is_complete(folder: Path) -> bool:
    """Return True if the folder exists and all of its files match its manifest. Report damage on stderr."""
    try:
        manifest = read_manifest(folder)
        if manifest is not None:
            manifest.check(folder)
    except DamagedFile as error:
        print_note(f"{str(error).partition(';')[0]}; building it again")
        return False
    return manifest is not None


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write `meta` to `meta.json`, which describes the other files of the folder."""
    (folder / "meta.json").write_text(json.dumps(meta, indent=2), encoding="utf-8")


@contextmanager
def create_atomically(folder: Path, snapshots: Iterable[Snapshot] = ()) -> Generator[Path]:
    """Yield a temporary folder that becomes `folder`, with a manifest, when the block ends.

    Raises:
        UserError: If a source in `snapshots` has changed since it was hashed; `folder` is named after that hash.
    """
    with write_folder(folder) as new:
        yield new
        for snapshot in snapshots:
            snapshot.check()


@contextmanager
def report_disk_errors() -> Generator[None]:
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise UserError(
            f"cannot write to the cache {cache_dir()}: {reason}; free space, or set TERCET_CACHE to another folder"
        ) from None


def progress_bar(*, enabled: bool) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    is_shown = enabled and sys.stderr.isatty()
    console = Console(stderr=True, quiet=not is_shown)  # rich 14 ends disabled bars with an empty line, too
    return Progress(*columns, console=console, transient=True, disable=not is_shown)


def chunk_items(
    items: Iterable[Item], characters: Callable[[Item], int], max_characters: int | None = None
) -> Iterator[list[Item]]:
    """Yield items in lists of about `max_characters` characters (default: `CHUNK_CHARACTERS`).

    Args:
        items: Items to group, in their order.
        characters: Function that returns the number of characters of an item. Each item counts 64 more.
        max_characters: Number of characters at which a list ends.
    """
    chunk, size = list[Item](), 0
    for item in items:
        chunk.append(item)
        size += 64 + characters(item)  # a million texts of one letter take far more memory than their letters
        if size >= (max_characters or CHUNK_CHARACTERS):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
