"""Each file's tests have a cache folder of their own, do not wait for a disk, and draw no losses unless they are about
pictures."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest

from own_cache import fill_cache
from tercet import plots


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", fill_cache(tmp_path_factory.mktemp("cache")))
        patch.setattr(os, "fsync", lambda descriptor: None)
        if request.path.name != "test_plot.py":
            patch.setattr(plots, "plot_loss", mock.Mock(side_effect=plots.NothingToDraw))
        yield
