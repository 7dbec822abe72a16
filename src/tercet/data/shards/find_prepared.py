"""Quick check whether a source may be a prepared folder, without slow imports."""

from pathlib import Path

from tercet.storage import MANIFEST


def is_url(source: str) -> bool:
    return "://" in source


def may_be_prepared(source: str) -> bool:
    """Return True for a URL, or for a folder with a manifest, which may also be a model folder."""
    if is_url(source):
        return True
    try:
        return (Path(source).expanduser() / MANIFEST).is_file()
    except (OSError, ValueError, RuntimeError):
        return False  # reading it as text raises the error
