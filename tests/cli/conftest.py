"""Each file's tests have a cache folder of their own, and do not wait for a disk."""

import os
from collections.abc import Iterator

import pytest

from own_cache import fill_cache


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", fill_cache(tmp_path_factory.mktemp("cache")))
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
