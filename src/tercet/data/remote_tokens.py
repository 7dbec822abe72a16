"""A prepared folder behind a URL such as s3://bucket/tokens: its shards come into the cache as they are needed.

What comes is compared with the manifest's hash before it has its name, and no more shards are kept than those of the
group that is read and the one after it, which comes meanwhile, in a thread.
"""

import shutil
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from os import environ
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import xxhash

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.cache import digest
from tercet.data.token_folder import REMEDY, TokenFolder, read_contents
from tercet.limits import MOST_SETTINGS_BYTES
from tercet.storage import MANIFEST, DamagedFile, FileHash, report_write_errors, write_atomically

GROUP = 8  # shards that are shuffled together, unless `data.shard_group` says otherwise
ATTEMPTS = 5
FIRST_WAIT = 0.5  # seconds; twice as long each time
BLOCK = 1 << 20
ON_THIS_MACHINE = ("file", "local", "memory")

Result = TypeVar("Result")


class _FetchError(Exception):
    """Why a file did not come, which is no error of what it is written to; `is_final` where trying again is vain."""

    def __init__(self, reason: object, *, is_final: bool = False) -> None:
        super().__init__(reason)
        self.is_final = is_final


class RemoteTokenFolder(TokenFolder):
    """A prepared folder elsewhere, with some of its files in the cache."""

    def __init__(self, url: str, *, group: int | None) -> None:
        """Raises:
        UserError: where there is no such folder, or it cannot be reached.
        """
        self._files, self._root = _open_file_system(url)
        self._url = url.rstrip("/")
        cache = cache_dir() / "tokens" / digest(self._url)[:32]
        with report_write_errors(cache):
            cache.mkdir(parents=True, exist_ok=True)
        data = self._retry(MANIFEST, self._read_manifest)
        write_atomically(cache / MANIFEST, data)
        try:
            contents = read_contents(cache / MANIFEST)
        except DamagedFile:
            contents = None
        if contents is None:
            raise UserError(f"{self._url} holds no tokens that `tercet data prepare` has made; give another source")
        super().__init__(url, cache / contents.hash[:32], contents, group=group or GROUP)
        with report_write_errors(self._folder):
            self._folder.mkdir(exist_ok=True)
        self.most_open = 2 * (self.group or GROUP)
        self._shards = {part.ids_file: part for part in contents.shards}
        self._at_hand = OrderedDict[str, None]()  # files; that which was used last at the end
        self._fetching, self._ahead = threading.Lock(), threading.Thread()
        self._remove_others(cache)

    def check(self) -> None:
        """Whether every file is there in its size, where the file system can list them.

        Raises:
            UserError: for the first that is not.
        """
        try:
            listed = self._files.ls(self._root, detail=True)
            sizes = {str(entry["name"]).rpartition("/")[2]: entry["size"] for entry in listed}
        except Exception:  # not every server lists its files; what is missing is said when it is fetched
            return
        for name, expected in self.contents.files.files.items():
            if name not in sizes:
                raise UserError(f"{self._url}/{name} is missing; {REMEDY}")
            if sizes[name] not in (None, expected.size):
                raise UserError(f"{self._url}/{name} has {sizes[name]:,} bytes, not {expected.size:,}; {REMEDY}")

    def path(self, file: str) -> Path:
        """Where a file lies, once it has come.

        Raises:
            UserError: where it does not.
        """
        path = self._folder / file
        if file not in self._at_hand or not path.exists():
            with self._fetching:  # perhaps by the thread, which then has what is needed sooner than another request
                if file not in self._at_hand or not path.exists():
                    self._fetch(file)
        return path

    def fetch_ahead(self, shards: Sequence[int]) -> None:
        files = [self.contents.shards[number].ids_file for number in shards]
        wanted = [file for file in files if file not in self._at_hand]
        if wanted and not self._ahead.is_alive():
            self._ahead = threading.Thread(target=self._fetch_all, args=(wanted,), daemon=True)
            self._ahead.start()

    def _fetch_all(self, files: Sequence[str]) -> None:
        with suppress(UserError):  # who needs the file tries again, and says it
            for file in files:
                self.path(file)

    def _fetch(self, file: str) -> None:
        """Have a file at hand, and let go of the shards that came longest ago."""
        path, expected = self._folder / file, self.contents.files.files[file]
        if not (path.is_file() and FileHash.of(path) == expected):
            self._retry(file, lambda: write_atomically(path, lambda new: self._copy(file, new, expected)))
        self._at_hand[file] = None
        kept = [name for name in self._at_hand if name in self._shards]
        for name in kept[: max(0, len(kept) - (self.most_open or len(kept)))]:
            for old in (name, self._shards[name].documents_file):
                self._at_hand.pop(old, None)
                (self._folder / old).unlink(missing_ok=True)

    def _copy(self, file: str, new: BinaryIO, expected: FileHash) -> None:
        found, size = xxhash.xxh3_128(), 0
        for block in self._read(file):
            found.update(block)
            size += len(block)
            if size > expected.size:
                break
            new.write(block)
        if FileHash(size, found.hexdigest()) != expected:
            raise _FetchError(f"it is not what {MANIFEST} says")

    def _read_manifest(self) -> bytes:
        data = b""
        for block in self._read(MANIFEST):
            data += block
            if len(data) > MOST_SETTINGS_BYTES:
                raise _FetchError(f"it has more than {MOST_SETTINGS_BYTES:,} bytes", is_final=True)
        return data

    def _read(self, file: str) -> Iterator[bytes]:
        try:
            with self._files.open(f"{self._root}/{file}", "rb") as source:
                while block := source.read(BLOCK):
                    yield block
        except Exception as error:  # each file system has exceptions of its own
            is_final = isinstance(error, FileNotFoundError | PermissionError)
            raise _FetchError(str(error) or type(error).__name__, is_final=is_final) from error

    def _retry(self, file: str, work: Callable[[], Result]) -> Result:
        """What `work` gives, tried again with longer and longer waits.

        Raises:
            UserError: where it fails for good, or the disk is full.
        """
        wait = FIRST_WAIT
        for attempt in range(1, ATTEMPTS + 1):
            try:
                return work()
            except _FetchError as error:
                if error.is_final or attempt == ATTEMPTS:
                    raise UserError(
                        f"cannot fetch {self._url}/{file}: {error}; see that it is there and within reach: "
                        "the same command goes on from the last checkpoint"
                    ) from None
                print(f"tercet: {self._url}/{file}: {error}; trying again", file=sys.stderr, flush=True)
                time.sleep(wait)
                wait *= 2
        raise AssertionError("unreachable")

    def _remove_others(self, cache: Path) -> None:
        """What earlier contents of the URL, or a larger group of shards, have left."""
        for other in cache.iterdir():
            if other.is_dir() and other != self._folder:
                shutil.rmtree(other, ignore_errors=True)
        lying = sorted(name for name in self._shards if (self._folder / name).exists())
        for name in lying[self.most_open :]:
            (self._folder / name).unlink(missing_ok=True)


def _open_file_system(url: str) -> tuple[Any, str]:
    """The file system of a URL, and the path in it.

    Raises:
        UserError: where it cannot be opened, or downloads are switched off.
    """
    scheme = url.partition("://")[0]
    if "::" in url:
        raise UserError(f"{url} is a chain of file systems; give the URL of a folder alone")
    if scheme not in ON_THIS_MACHINE and environ.get("TERCET_OFFLINE", "0") not in ("", "0"):
        raise UserError(f"{url} is not on this machine, and TERCET_OFFLINE is set; unset it, or copy the folder here")
    import fsspec  # comes with PyTorch; a tenth of a second

    try:
        files, root = fsspec.core.url_to_fs(url)
    except ImportError as error:
        raise UserError(f"{url}: {error}; install that package beside Tercet") from None
    except Exception as error:
        raise UserError(f"cannot open {url}: {error or type(error).__name__}; correct it") from None
    return files, root.rstrip("/")
