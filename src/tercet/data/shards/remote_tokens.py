"""Prepared folder behind a URL such as s3://bucket/tokens, whose shards are fetched on demand.

Fetched data is compared with the hash in the manifest before it gets its name. The cache contains at most the shards of
the current group and of the next one, which is fetched in a thread.
"""

import os
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.cache import digest
from tercet.data.shards.token_folder import REMEDY, TokenFolder, read_contents
from tercet.limits import MAX_SETTINGS_BYTES
from tercet.messages import print_note
from tercet.offline import offline_variable
from tercet.storage import MANIFEST, DamagedFile, lock_file, report_write_errors, write_atomically

DEFAULT_GROUP = 8  # shards that are shuffled together, unless `data.shard_group` is set
ATTEMPTS = 5  # to fetch a file
FIRST_WAIT = 0.5  # seconds; doubled after each attempt
BLOCK = 1 << 20  # bytes fetched at a time
LOCAL_SCHEMES = ("file", "local", "memory")

Result = TypeVar("Result")


class _FetchError(Exception):
    """Error of the source, not of the cache. `is_final` means that trying again cannot help."""

    def __init__(self, reason: object, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class RemoteTokenFolder(TokenFolder):
    """Remote prepared folder, with some of its files in the cache.

    Other threads and processes may read the same URL and remove files from the cache at any time. A fetched file is
    therefore opened before it gets its final name, and readers receive the open file. The lock of each file is only an
    optimization, so that only one of several readers fetches the file.
    """

    def __init__(self, url: str, *, group: int | None) -> None:
        """Open the folder and fetch its manifest.

        Args:
            url: URL of the folder.
            group: Number of shards to shuffle together (default: `DEFAULT_GROUP`).

        Raises:
            UserError: If the folder does not exist, cannot be reached, is not a prepared folder, or has a damaged
                manifest.
        """
        self._files, self._root, self._is_local = _open_file_system(url)
        self._url = url.rstrip("/")
        cache = cache_dir() / "tokens" / digest(self._url)[:32]
        with report_write_errors(cache):
            cache.mkdir(parents=True, exist_ok=True)
        data = self._retry(MANIFEST, self._read_manifest)
        _remove_folder(cache / MANIFEST)
        write_atomically(cache / MANIFEST, data)
        try:
            contents = read_contents(cache / MANIFEST)
        except DamagedFile:
            raise DamagedFile(f"{self._url}/{MANIFEST} is damaged; {REMEDY}") from None
        if contents is None:
            raise UserError(f"{self._url} contains no tokens from `tercet data prepare`; use another source")
        group = group or DEFAULT_GROUP
        super().__init__(url, cache / contents.hash[:32], contents, group=group, max_open=2 * group)
        with report_write_errors(self._folder):
            self._folder.mkdir(exist_ok=True)
        self._cached_shards = self._remove_others(cache)

    def check(self) -> None:
        """Check that every file exists and has its size, if the file system can list files.

        Raises:
            UserError: If a file is missing or has another size; the message names the first one.
        """
        try:
            entries = self._files.ls(self._root, detail=True)
            sizes = {str(entry["name"]).rpartition("/")[2]: entry["size"] for entry in entries}
        except Exception:  # not every server lists files; a missing one is reported when it is fetched
            return
        for name, expected in self.contents.files.files.items():
            if name not in sizes:
                raise UserError(f"{self._url}/{name} is missing; {REMEDY}")
            if sizes[name] not in (None, expected.size):
                raise UserError(f"{self._url}/{name} has {sizes[name]:,} bytes, not {expected.size:,}; {REMEDY}")

    def open_ahead(self, shards: Sequence[int]) -> None:
        super().open_ahead(shards)
        requested = {self.contents.shards[number].name for number in shards}
        for name in self._cached_shards:  # left by an earlier process
            if name not in requested:
                self._close_shard(name)
        self._cached_shards = []

    def _location(self, file: str) -> str:
        return f"{self._url}/{file}"

    def _read(self, file: str, take: Callable[[BinaryIO], Result]) -> Result:
        """Call `take` with the open file, which is fetched if it is missing or damaged, and return the result.

        Raises:
            UserError: If the file cannot be fetched, or `take` raises it.
        """
        with lock_file(self._lock_path(file)):
            cached_result = self._take_cached(file, take)
            return self._retry(file, lambda: self._fetch(file, take)) if cached_result is None else cached_result

    def _take_cached(self, file: str, take: Callable[[BinaryIO], Result]) -> Result | None:
        path = self._folder / file
        if not os.path.lexists(path):
            return None
        try:
            return super()._read(file, take)
        except DamagedFile:
            print_note(f"tercet: {path} is damaged; fetching it again")
            _remove_folder(path)
        return None

    def _fetch(self, file: str, take: Callable[[BinaryIO], Result]) -> Result:
        """Write a file to the cache, and call `take` before the file has the path that others may remove."""
        results = list[Result]()

        def write(new: BinaryIO) -> None:
            self._copy(file, new)
            new.flush()
            with open(new.name, "rb") as input_file:
                try:
                    results.append(take(input_file))
                except DamagedFile:
                    raise _FetchError(f"it does not match {MANIFEST}") from None

        write_atomically(self._folder / file, write)
        return results[0]

    def _copy(self, file: str, new: BinaryIO) -> None:
        size = 0
        for block in self._fetch_blocks(file):
            size += len(block)
            if size > self.contents.files.files[file].size:
                raise _FetchError(f"it is longer than specified in {MANIFEST}")
            new.write(block)

    def _close_shard(self, name: str) -> None:
        """Remove a shard's files from the cache. Processes that have opened one can still read it."""
        part = self._shards[name]
        for file in (part.ids_file, part.documents_file):
            for path in (self._folder / file, self._lock_path(file)):
                with suppress(OSError):
                    path.unlink(missing_ok=True)

    def _lock_path(self, file: str) -> Path:
        return self._folder / f".{file}.lock"

    def _read_manifest(self) -> bytes:
        data = b""
        for block in self._fetch_blocks(MANIFEST):
            data += block
            if len(data) > MAX_SETTINGS_BYTES:
                raise _FetchError(f"it has more than {MAX_SETTINGS_BYTES:,} bytes", is_final=True)
        return data

    def _fetch_blocks(self, file: str) -> Iterator[bytes]:
        path = f"{self._root}/{file}"
        if self._is_local and os.path.lexists(path) and not os.path.isfile(path):  # opening a pipe would block
            raise _FetchError("it is not a regular file", is_final=True)
        try:
            with self._files.open(path, "rb") as source:
                while block := source.read(BLOCK):
                    yield block
        except Exception as error:  # each file system raises its own exceptions
            is_final = isinstance(error, FileNotFoundError | PermissionError)
            raise _FetchError(str(error) or type(error).__name__, is_final=is_final) from error

    def _retry(self, file: str, work: Callable[[], Result]) -> Result:
        """Return the result of `work`, which is repeated with increasing waits if fetching fails.

        Raises:
            UserError: If the last attempt fails, another attempt cannot help, or the disk is full.
        """
        wait = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return work()
            except _FetchError as error:
                if error.is_final or attempt == ATTEMPTS:
                    raise UserError(
                        f"cannot fetch {self._url}/{file}: {error}; check that it exists and can be reached: "
                        "the same command resumes from the last checkpoint"
                    ) from None
                print_note(f"tercet: {self._url}/{file}: {error}; trying again")
                time.sleep(wait)
                wait *= 2
        raise AssertionError("unreachable")

    def _remove_others(self, cache: Path) -> list[str]:
        """Remove files of earlier contents and shards beyond `max_open`; return the names of the remaining shards."""
        for entry in cache.iterdir():
            if entry.is_dir() and entry != self._folder:
                shutil.rmtree(entry, ignore_errors=True)
        cached_names = sorted(name for name, part in self._shards.items() if (self._folder / part.ids_file).exists())
        for name in cached_names[self.max_open :]:
            self._close_shard(name)
        return cached_names[: self.max_open]


def _remove_folder(path: Path) -> None:
    """Remove a folder at the path of a file, because renaming a file cannot replace a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)


def _open_file_system(url: str) -> tuple[Any, str, bool]:
    """Return the file system of a URL, the path in it, and True if the path is on this machine.

    Raises:
        UserError: If the URL cannot be opened, or downloads are disabled.
    """
    scheme = url.partition("://")[0]
    if "::" in url:
        raise UserError(f"{url} is a chain of file systems; use the plain URL of a folder")
    if scheme not in LOCAL_SCHEMES and (variable := offline_variable(hub=scheme == "hf")) is not None:
        raise UserError(f"{url} is not on this machine, and {variable} is set; unset it, or copy the folder here")
    import fsspec.implementations.local  # a dependency of PyTorch; takes a tenth of a second

    try:
        files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UserError(f"{url}: {error}; install that package together with Tercet") from None
    except Exception as error:
        raise UserError(f"cannot open {url}: {error or type(error).__name__}; correct it") from None
    return files, root.rstrip("/"), isinstance(files, fsspec.implementations.local.LocalFileSystem)
