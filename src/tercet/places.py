"""Where Tercet keeps what it makes."""

import os
from pathlib import Path

import platformdirs


def cache_folder() -> Path:
    """What can be made or downloaded again: TERCET_CACHE, else the user's cache folder."""
    return Path(os.environ.get("TERCET_CACHE") or platformdirs.user_cache_dir("tercet"))
