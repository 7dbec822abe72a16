"""Names of the tests that this run of pytest has collected."""

import pytest

COLLECTED: list[str] = []


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Remember all tests, before exhaustive ones and others are left out."""
    COLLECTED[:] = [item.nodeid for item in items]


@pytest.fixture
def collected_tests() -> list[str]:
    """Return the IDs of the collected tests. Files that are not part of the run have none."""
    return COLLECTED
