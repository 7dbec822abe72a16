from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="package")
def browser() -> Iterator[Any]:
    """Return a browser for all tests of this folder: starting one takes as long as a test."""
    from browser import chromium  # skips where playwright is not installed

    with chromium() as running_browser:
        yield running_browser
