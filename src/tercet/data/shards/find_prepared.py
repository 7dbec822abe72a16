"""Whether a source may be a folder of tokens, told by its name alone: before anything is imported for it."""

from pathlib import Path

from tercet.storage import MANIFEST


def is_url(source: str) -> bool:
    return "://" in source


def may_be_prepared(source: str) -> bool:
    """Whether it is a URL, or a folder with a manifest, which models have too."""
    if is_url(source):
        return True
    try:
        return (Path(source).expanduser() / MANIFEST).is_file()
    except (OSError, ValueError, RuntimeError):
        return False  # whoever reads it as text says what is wrong
