"""Fixtures of the dashboard tests, which use the browser of the explorer tests."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path += [str(Path(__file__).parents[1] / "explorer")]


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser import chromium  # skips where playwright is not installed

    with chromium() as running_browser:
        yield running_browser
