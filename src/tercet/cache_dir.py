"""Where Tercet keeps what can be made or downloaded again."""

import os
from pathlib import Path

import platformdirs


def cache_dir() -> Path:
    """TERCET_CACHE, else the user's cache folder."""
    return Path(os.environ.get("TERCET_CACHE") or platformdirs.user_cache_dir("tercet"))
