"""Setup of these tests: a temporary cache, no plots, and finished runs."""

from collections.abc import Callable, Iterator
from pathlib import Path

import jaxtyping
import pytest
from tiny_runs import TINY

from own_cache import fill_cache
from tercet import plots
from tercet.training import train


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.getbasetemp() / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", fill_cache(folder))
        yield folder


@pytest.fixture(autouse=True)
def pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace plots by empty files, since plotting takes as long as training; tests of plots override this fixture."""

    monkeypatch.setattr(plots, "plot_loss", lambda metrics, *, title: None)
    monkeypatch.setattr(plots, "save", lambda figure, picture: picture.write_bytes(b""))


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that gives the tiny run of a family, trained once for all tests that only read it.

    These runs check the annotations of shapes, which the other runs do not, since it doubles their time.
    """
    folder = tmp_path_factory.mktemp("finished")

    def run(family: str) -> Path:
        out = folder / family
        if not out.exists():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(jaxtyping.config, "jaxtyping_disable", False)
                train(TINY[family](folder), out, quiet=True)
        return out

    return run
