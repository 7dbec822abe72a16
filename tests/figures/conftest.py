"""Fixtures: short runs on texts with different numbers of bytes, characters and tokens."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from small_runs import SMALL_RUNS

from own_cache import fill_cache
from tercet import plots
from tercet.training import train


@pytest.fixture(scope="module", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", fill_cache(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(scope="module", autouse=True)
def plain() -> Iterator[None]:
    """Replace plots by empty files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plots, "plot_loss", lambda metrics, *, title: None)
        patch.setattr(plots, "save", lambda figure, picture: picture.write_bytes(b""))
        yield


@pytest.fixture(scope="session")
def small_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return the run of that name, which is trained once for all tests."""
    folder = tmp_path_factory.mktemp("runs")

    def run(name: str) -> Path:
        out = folder / name
        return out if out.exists() else train(SMALL_RUNS[name](folder), out, quiet=True)

    return run
