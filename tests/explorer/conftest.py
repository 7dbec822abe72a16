from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from browser import chromium  # skips where playwright is not installed

    with chromium() as running_browser:
        yield running_browser
