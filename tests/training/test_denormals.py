"""A run on a CPU computes with zero in place of denormal numbers, in each of PyTorch's threads."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_recipe

from tercet.kernel import denormals, flush_denormals, is_flushing_denormals
from tercet.kernel.denormals import SMALLEST_NORMAL
from tercet.training import train
from tercet.training.compute import threads
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.run_folder import arithmetic

NUMBERS = torch.full((1 << 18,), SMALLEST_NORMAL)  # enough for PyTorch to divide them among its threads


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def count_denormals() -> int:
    """Return how many of the halves of the smallest normal number are not zero."""
    return int((NUMBERS / 2).view(torch.int32).count_nonzero())


def test_each_thread_computes_zeros_within_the_context_and_denormals_after_it() -> None:
    assert count_denormals() == len(NUMBERS)  # this also starts the threads
    with flush_denormals():
        assert is_flushing_denormals()
        assert count_denormals() == 0
        with flush_denormals():
            assert count_denormals() == 0
        assert count_denormals() == 0
    assert count_denormals() == len(NUMBERS)
    assert not is_flushing_denormals()


def test_without_kernels_the_calling_thread_computes_zeros(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(denormals, "library", lambda: None)
    torch.set_num_threads(1)
    with flush_denormals():
        assert count_denormals() == 0
    assert count_denormals() == len(NUMBERS)


@pytest.mark.parametrize(("device", "count"), [("cpu", 0), ("cuda", len(NUMBERS))])
def test_runs_on_a_cpu_compute_zeros(device: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "accelerator", lambda spec: device)
    with threads.process_threads(TrainingSpec(max_steps=1)):
        assert count_denormals() == count


def test_a_run_records_how_denormals_are_computed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = list[dict[str, str]]()
    describe = arithmetic.describe_arithmetic
    monkeypatch.setattr(
        arithmetic, "describe_arithmetic", lambda **options: recorded.append(describe(**options)) or recorded[-1]
    )
    train(tiny_recipe(tmp_path, max_steps=1, accelerator="cpu"), tmp_path / "run", quiet=True)
    assert [one["denormals"] for one in recorded] == ["zero"]
    assert describe(accelerator="cpu", precision="fp32", matmul="highest", compiled=False)["denormals"] == "exact"
    assert not is_flushing_denormals()
