"""Files of named datasets, found in TERCET_DATA or the cache, or downloaded, and always compared with their hash."""

import hashlib
import os
import tempfile
import urllib.request
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

from tercet import limits
from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.sources.files import report_file_errors
from tercet.offline import offline_variable
from tercet.reading.text_files import open_regular_file

DOWNLOAD_SECONDS = 30  # timeout of each read
CHUNK = 1 << 20  # bytes


def fetch_file(url: str, *, sha256: str, dataset: str, title: str, name: str) -> Path:
    """Return the path of a local copy of the file at `url`, which is downloaded into the cache if there is none.

    A copy is called `dataset`/`name` or `name` in the folder TERCET_DATA, or `dataset`/`name` in the cache.

    Args:
        url: Address of the file.
        sha256: Hash of the file.
        dataset: Name of the dataset.
        title: Description of the file in messages.
        name: File name.

    Raises:
        UserError: If the file has another hash, is not on this machine and cannot be downloaded, or the cache cannot be
            written.
    """
    data_dir = os.environ.get("TERCET_DATA")
    cache_path = cache_dir() / dataset / name
    candidates = [*([Path(data_dir, dataset, name), Path(data_dir, name)] if data_dir else []), cache_path]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        remedy = f"put {url} at {dataset}/{name} in a folder and set TERCET_DATA to that folder"
        _download(url, cache_path, sha256=sha256, dataset=dataset, title=title, remedy=remedy)
        return cache_path
    with report_file_errors(path):
        actual = _hash_file(path)
    if actual != sha256:
        raise UserError(
            f"{path} is not {title} (sha256 {actual[:12]}..., not {sha256[:12]}...); "
            "remove it to download it again, or use the file's path as the source to accept it as it is"
        )
    return path


@contextmanager
def offline() -> Generator[None]:
    """Disable downloads inside the block, as TERCET_OFFLINE=1 does."""
    previous = os.environ.get("TERCET_OFFLINE")
    os.environ["TERCET_OFFLINE"] = "1"
    try:
        yield
    finally:
        if previous is None:
            del os.environ["TERCET_OFFLINE"]
        else:
            os.environ["TERCET_OFFLINE"] = previous


def _download(url: str, path: Path, *, sha256: str, dataset: str, title: str, remedy: str) -> None:
    """Download a file in chunks, verify it, and move it to `path` atomically."""
    if offline_variable() is not None:
        raise UserError(f"{dataset} is not on this machine and downloads are disabled; {remedy}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as folder:
            new = Path(folder, path.name)
            with new.open("wb") as file:
                file.writelines(_fetch(url, dataset, remedy))
            if _hash_file(new) != sha256:
                raise UserError(f"the content of {url} is not {title} (wrong sha256); {remedy}")
            os.replace(new, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write to {path.parent}: {reason}; set TERCET_CACHE to another folder") from None


def _fetch(url: str, dataset: str, remedy: str) -> Iterator[bytes]:
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as answer:
            n_bytes = 0
            while chunk := answer.read(CHUNK):
                n_bytes += len(chunk)
                if n_bytes > limits.DOWNLOAD_BYTES:
                    raise UserError(f"{url} has more than {limits.DOWNLOAD_BYTES:,} bytes; {remedy}")
                yield chunk
    except (OSError, HTTPException) as error:
        raise UserError(f"cannot download {dataset} ({error}); {remedy}") from None


def _hash_file(path: Path) -> str:
    digest = hashlib.sha256()
    with open_regular_file(path) as file:
        while block := file.read(CHUNK):
            digest.update(block)
    return digest.hexdigest()
