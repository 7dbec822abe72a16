"""Fixtures of the GPU tests, which `make test-gpu` runs.

TERCET_TEST_DEVICE is their device: "cuda", or "cpu" to check the tests themselves without a GPU. They are skipped
unless the variable is set, since all other tests use the CPU.
"""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from own_cache import fill_cache

TESTS = Path(__file__).parents[1]
# Helpers of the CPU tests: small models and runs.
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
    """Return the device, for tests of CUDA's allocator."""
    if device.type != "cuda":
        pytest.skip("tests the memory of a GPU")
    return device


@pytest.fixture(scope="session")
def accelerator(device: torch.device) -> str:
    """Return the value of `training.accelerator` for the device."""
    return "gpu" if device.type == "cuda" else device.type


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.getbasetemp() / "cache"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TERCET_CACHE", fill_cache(folder))
        yield folder


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print a failure at once: the time of a GPU may end before the summary."""
    if report.failed and "tests/gpu/" in report.nodeid:
        print(f"\n{report.nodeid}: {report.longreprtext[-2000:]}", flush=True)
