"""Tests of what a GPU computes; `make test-gpu` runs them.

Their device is TERCET_TEST_DEVICE: "cuda", or "cpu" to check the tests themselves on a machine without a GPU. All other
tests are about the CPU, so without the variable these are skipped.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from own_cache import fill_cache

TESTS = Path(__file__).parents[1]
# The small models and runs of the tests for the CPU.
sys.path += [str(TESTS / folder) for folder in ("encoding", "evaluate", "models", "serve", "training")]

DEVICE = os.environ.get("TERCET_TEST_DEVICE")


def reason_to_skip() -> str | None:
    if DEVICE is None:
        return "tests for a GPU; run them with: make test-gpu"
    if DEVICE == "cuda" and not torch.cuda.is_available():
        return "this machine has no GPU that PyTorch can use"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = reason_to_skip()
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker("gpu")
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def device() -> torch.device:
    return torch.device(DEVICE or "cpu")


@pytest.fixture
def cuda(device: torch.device) -> torch.device:
    """The device, for tests of what only CUDA has: its allocator."""
    if device.type != "cuda":
        pytest.skip("about the memory of a GPU")
    return device


@pytest.fixture(scope="session")
def accelerator(device: torch.device) -> str:
    """The value of `training.accelerator` for the device."""
    return "gpu" if device.type == "cuda" else device.type


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.getbasetemp() / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", fill_cache(folder))
        yield folder
