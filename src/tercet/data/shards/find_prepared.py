"""Quick check whether a source may be a prepared folder, without slow imports."""

from pathlib import Path

from tercet.data.sources.custom_dataset import CustomDataset, Source
from tercet.storage import MANIFEST


def is_url(source: str) -> bool:
    return "://" in source and not source.startswith("{")  # settings of a dataset may contain an address


def may_be_prepared(source: Source) -> bool:
    """Return True for a URL, or for a folder with a manifest, which may also be a model folder."""
    if isinstance(source, CustomDataset):
        return False
    if is_url(source):
        return True
    try:
        return (Path(source).expanduser() / MANIFEST).is_file()
    except (OSError, ValueError, RuntimeError):
        return False  # reading it as text raises the error
