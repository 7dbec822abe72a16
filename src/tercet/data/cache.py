"""What is made once and kept: folders that appear whole or not at all, under names made from all that they depend on.

A changed file, tokenizer or split is another name, so nothing stale is ever served. Each folder has a manifest of
hashes, which are looked at before it is used: what is damaged is made anew, and said.
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
from tercet.data.sources.text_source import TextSource
from tercet.messages import print_note
from tercet.storage import DamagedFile, read_manifest, write_folder
from tercet.tokens import Tokenizer

FORMAT = 1  # counts up when the same settings give other files
CHUNK_CHARACTERS = (1 << 20) * min(
    16, max(2, os.cpu_count() or 1)
)  # characters encoded together: some pieces for each core

Item = TypeVar("Item")


class ChangedData(UserError):
    """The data does not have the expected hash."""


def check_hash(name: str, content: str, expected: str | None) -> None:
    """Compare the hash of the data `name` with the expected one, if there is one.

    Raises:
        ChangedData: If the hashes differ.
    """
    if expected is not None and content != expected:
        raise ChangedData(f"{name} does not have the expected hash; pass the data that was hashed")


class Snapshot:
    """A source as it was when it was hashed.

    Attributes:
        hash: sha256 of what it held.
    """

    def __init__(self, source: TextSource) -> None:
        self._source, self.hash = source, source.hash()

    def check(self) -> None:
        """Raises UserError where it holds something else now."""
        if self._source.hash() != self.hash:
            raise UserError(f"{self._source.name} was changed while it was read; try again when it is whole")


def memory_map(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """The numbers in a file, which may be none: an empty file cannot be mapped."""
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


def id_dtype(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


def is_complete(folder: Path) -> bool:
    """Whether the folder is there with every file as it was written; where one is not, that is said on stderr."""
    try:
        manifest = read_manifest(folder)
        if manifest is not None:
            manifest.check(folder)
    except DamagedFile as error:
        print_note(f"{str(error).partition(';')[0]}; it is made anew")
        return False
    return manifest is not None


def write_meta(folder: Path, meta: dict[str, Any]) -> None:
    """Write `meta.json`: of what the files are."""
    (folder / "meta.json").write_text(json.dumps(meta, indent=2), encoding="utf-8")


@contextmanager
def create_atomically(folder: Path, snapshots: Iterable[Snapshot] = ()) -> Generator[Path]:
    """A temporary folder that becomes `folder` at the end, with a manifest.

    Raises:
        UserError: where what it is made of has changed meanwhile: the name would promise what is not in it.
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
            f"cannot write to the cache {cache_dir()}: {reason}; make room, or set TERCET_CACHE to another folder"
        ) from None


def progress_bar(*, enabled: bool) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    return Progress(
        *columns, console=Console(stderr=True), transient=True, disable=not (enabled and sys.stderr.isatty())
    )


def chunk_items(
    items: Iterable[Item], characters: Callable[[Item], int], max_characters: int | None = None
) -> Iterator[list[Item]]:
    """Items in lists of about `max_characters` characters, by default `CHUNK_CHARACTERS`."""
    chunk, size = list[Item](), 0
    for item in items:
        chunk.append(item)
        size += 64 + characters(item)  # a million texts of a letter each are large too
        if size >= (max_characters or CHUNK_CHARACTERS):
            yield chunk
            chunk, size = [], 0
    if chunk:
        yield chunk


def digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
