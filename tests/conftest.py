"""Setup of all tests: checked shape annotations, few threads, no waits for the disk, a fixed seed, the sample text."""

import functools
import gc
import importlib.metadata
import os
import signal
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest

# The suite tests the CPU. On a machine with a GPU, "auto" would select it, and results that are compared with those of
# a CPU would differ. CUDA is hidden from this process and from all programs that tests start, before PyTorch is
# imported. `make test-gpu` sets the variable for the tests in tests/gpu.
if "TERCET_TEST_DEVICE" not in os.environ:
    os.environ["CUDA_VISIBLE_DEVICES"] = ""

# Otherwise argparse searches for translations of its messages in each parser, a tenth of the time of a short command.
os.environ["LANGUAGE"] = "C"

# Before any import of these packages, so that all their jaxtyping annotations are checked.
jaxtyping.install_import_hook(["tercet.nn", "tercet.models"], "beartype.beartype")

# Lightning reads the metadata of all installed packages in each run, 0.02 s of processor time.
importlib.metadata.entry_points = functools.cache(importlib.metadata.entry_points)  # type: ignore[assignment]

import torch  # noqa: E402

# One thread: the tensors are tiny, and more threads only wait for each other. `make test` runs some tests with several
# threads, so that no result depends on a single thread.
torch.set_num_threads(int(os.environ.get("TERCET_TEST_THREADS", "1")))

# No deadline: the duration of an example depends on the load of the machine.
hypothesis.settings.register_profile("tercet", deadline=None, max_examples=30)
hypothesis.settings.load_profile("tercet")

# A shell's background jobs ignore Ctrl-C, and so would the programs that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable garbage collection, which takes seconds for the millions of objects of the collected tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark exhaustive tests as slow too, so that `-m "not slow"` excludes them."""
    for item in items:
        if item.get_closest_marker("exhaustive"):
            item.add_marker("slow")


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Run the tests of a folder in one process, unless `--dist` requires another distribution."""
    if config.getoption("dist") != "load":
        return None
    from folder_units import FolderScheduling

    return FolderScheduling(config, log)


# Folders whose tests check shape annotations. In the others the checks would take half of the time.
SHAPES_CHECKED = ("kernel", "models", "nn", "objectives")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    jaxtyping.config.update("jaxtyping_disable", item.path.parent.name not in SHAPES_CHECKED)
    return (yield)


@pytest.fixture(scope="session", autouse=True)
def no_waits_for_the_disk() -> Iterator[None]:
    """Replace `fsync` in this process and its forks: tests kill processes, but never cut the power."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def no_measured_arithmetic() -> Iterator[None]:
    """Replace the measured times of matrix products: 5 s on a CPU without bf16, and results that vary with the load."""
    if find_spec("tercet.training") is None:  # some tests run with a part of the package
        yield
        return
    from tercet.training.compute import auto_arithmetic

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(auto_arithmetic, "measure_products", lambda: {"bf16": 1.0, "medium": 1.0})
        yield


@pytest.fixture(autouse=True)
def seed() -> Iterator[int]:
    """Seed the global generator for each test, and restore its state afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1234)
        yield 1234


@pytest.fixture
def shakespeare() -> Path:
    """Return TinyShakespeare in the folder TERCET_DATA, `shakespeare/input.txt` or `input.txt`."""
    data_folder = os.environ.get("TERCET_DATA")
    if not data_folder:
        pytest.skip("TERCET_DATA is not set: no Shakespeare to read")
    places = [Path(data_folder, "shakespeare", "input.txt"), Path(data_folder, "input.txt")]
    path = next((place for place in places if place.is_file()), None)
    if path is None:
        pytest.skip(f"no shakespeare/input.txt in TERCET_DATA={data_folder}")
    return path
