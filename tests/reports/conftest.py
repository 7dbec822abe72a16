"""Fixtures of the report tests: tiny trained runs, and the browser of the explorer tests."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parents[1] / folder) for folder in ("training", "dashboard", "explorer")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser import chromium  # skips where playwright is not installed

    with chromium() as running_browser:
        yield running_browser


class TinyRuns:
    """Finished runs of 12 steps for each kind of task, trained when they are first requested."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __getitem__(self, name: str) -> Path:
        from tiny_runs import TINY, tiny_numbers_recipe, tiny_sets_recipe

        from tercet.training import train

        recipes = {**TINY, "numbers": tiny_numbers_recipe, "sets": tiny_sets_recipe}
        if not (out := self.folder / "runs" / name).exists():
            train(recipes[name](self.folder), out, quiet=True)
        return out


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory) -> TinyRuns:
    return TinyRuns(tmp_path_factory.mktemp("report"))
