"""Files of named datasets: looked for in TERCET_DATA and in the cache, else downloaded once, and checked always."""

import hashlib
import os
import tempfile
import urllib.request
from pathlib import Path

from tercet.cache_dir import cache_dir
from tercet.config import UserError

DOWNLOAD_SECONDS = 30


def fetch_file(url: str, *, sha256: str, dataset: str, title: str, name: str) -> Path:
    """The file at `url`, as the file `name` in the folder `dataset` of TERCET_DATA or the cache.

    Args:
        sha256: of its bytes.
        title: what messages call it.

    Raises:
        UserError: where the file is another one, or is neither on this machine nor within reach.
    """
    data_dir = os.environ.get("TERCET_DATA")
    cached = cache_dir() / dataset / name
    candidates = [*([Path(data_dir, dataset, name), Path(data_dir, name)] if data_dir else []), cached]
    path = next((candidate for candidate in candidates if candidate.is_file()), None)
    if path is None:
        remedy = f"put {url} at {dataset}/{name} in a folder and set TERCET_DATA to that folder"
        data = _download(url, dataset, remedy)
        if hashlib.sha256(data).hexdigest() != sha256:
            raise UserError(f"what {url} gave is not {title} (wrong sha256); {remedy}")
        _write_atomically(cached, data)
        return cached
    actual = hashlib.sha256(path.read_bytes()).hexdigest()
    if actual != sha256:
        raise UserError(
            f"{path} is not {title} (sha256 {actual[:12]}..., not {sha256[:12]}...); "
            "remove it to download it again, or give the file's path as the source to use it as it is"
        )
    return path


def _download(url: str, dataset: str, remedy: str) -> bytes:
    if any(os.environ.get(name, "0") not in ("", "0") for name in ("TERCET_OFFLINE", "HF_HUB_OFFLINE")):
        raise UserError(f"{dataset} is not on this machine and downloads are switched off; {remedy}")
    try:
        with urllib.request.urlopen(url, timeout=DOWNLOAD_SECONDS) as answer:
            return answer.read()
    except OSError as error:
        raise UserError(f"cannot download {dataset} ({error}); {remedy}") from None


def _write_atomically(path: Path, data: bytes) -> None:
    """The file appears at once and whole, or not at all."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=".", delete=False) as file:
            file.write(data)
        os.replace(file.name, path)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write to {path.parent}: {reason}; set TERCET_CACHE to another folder") from None
