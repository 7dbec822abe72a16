"""Setup of these tests: a cache folder per file, and no loss plots unless they are tested."""

from collections.abc import Iterator
from unittest import mock

import pytest

from own_cache import fill_cache
from tercet import plots


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", fill_cache(tmp_path_factory.mktemp("cache")))
        if request.path.name != "test_plot.py":
            patch.setattr(plots, "plot_loss", mock.Mock(side_effect=plots.NothingToDraw))
        yield
