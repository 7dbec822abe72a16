"""`auto` chooses the precision by instruction set, then by times measured once per machine; a run keeps its choice."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny_runs import tiny_recipe

from tercet.checkpoint.run_record import read_record
from tercet.training import train
from tercet.training.compute import auto_arithmetic, measurement_cache
from tercet.training.compute.auto_arithmetic import (
    choose_matmul,
    choose_precision,
    matmul_precision,
    measure_products,
    product_times,
)
from tercet.training.compute.measurement_cache import MeasurementCache
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.tasks import language

SPEC = TrainingSpec(max_steps=1, accelerator="cpu")


def take(monkeypatch: pytest.MonkeyPatch, *, bf16: float = 1.0, medium: float = 1.0) -> None:
    monkeypatch.setattr(auto_arithmetic, "product_times", lambda: {"bf16": bf16, "medium": medium})


@pytest.mark.parametrize(("share", "expected"), [(0.5, "medium"), (0.9, "highest"), (2.0, "highest")])
def test_faster_library_is_chosen_if_the_gain_is_large(
    share: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, medium=share)
    assert choose_matmul(SPEC) == expected
    assert choose_matmul(replace(SPEC, precision="fp32")) == "highest"


@pytest.mark.parametrize(
    ("instructions", "share", "expected"),
    [
        ({"avx2", "avx512_bf16"}, 0.5, "bf16"),
        ({"avx2", "avx512_bf16"}, 0.9, "fp32"),
        ({"asimd", "bf16"}, 0.5, "bf16"),
        ({"avx2"}, 0.1, "fp32"),  # without the instruction it cannot be faster, whatever a disturbed measurement gives
        (set(), 0.5, "bf16"),  # a system that reports no instruction set
    ],
)
def test_bf16_is_chosen_if_supported_and_faster(
    instructions: set[str], share: float, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take(monkeypatch, bf16=share)
    monkeypatch.setattr(auto_arithmetic, "cpu_instructions", lambda: frozenset(instructions))
    assert choose_precision(SPEC) == expected
    assert choose_precision(replace(SPEC, precision="bf16")) == "bf16"


def test_a_machine_is_measured_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two new runs use the same arithmetic, even if a second measurement would give another result."""
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path))
    measurements = iter([{"bf16": 0.5, "medium": float("inf")}, {"bf16": 0.9, "medium": 0.5}])
    monkeypatch.setattr(auto_arithmetic, "measure_products", lambda: next(measurements))
    first = product_times()
    assert product_times() == first == {"bf16": 0.5, "medium": float("inf")}
    (cache_file,) = (tmp_path / "arithmetic").glob("*.json")
    cache_file.write_text(cache_file.read_text().replace("0.5", "0.4"))
    assert product_times()["bf16"] == 0.9  # damaged measurements are repeated
    monkeypatch.setattr(measurement_cache, "cpu_model", lambda: "another")
    with pytest.raises(StopIteration):
        product_times()


@pytest.mark.parametrize("limit", measurement_cache.INSTRUCTION_LIMITS)
def test_restricted_cpu_is_measured_separately(tmp_path: Path, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path))
    monkeypatch.delenv(limit, raising=False)
    measurements = iter([{"bf16": 0.2, "medium": 1.0}, {"bf16": 90.0, "medium": 1.0}])
    monkeypatch.setattr(auto_arithmetic, "measure_products", lambda: next(measurements))
    assert product_times()["bf16"] == 0.2
    monkeypatch.setenv(limit, "AVX2")
    assert product_times()["bf16"] == 90.0
    monkeypatch.delenv(limit)
    assert product_times()["bf16"] == 0.2


def test_missing_measurements_are_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path))
    assert MeasurementCache("x", ("a",)).read() is None
    assert MeasurementCache("x", ("a",)).read_or_measure(lambda: {"a": 1.5}) == {"a": 1.5}
    assert MeasurementCache("x", ("a",)).read() == {"a": 1.5}
    assert MeasurementCache("x", ("a", "b")).read() is None


def test_a_cache_that_cannot_be_written_to_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "arithmetic").write_text("a file")
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path))
    monkeypatch.setattr(auto_arithmetic, "measure_products", lambda: {"bf16": 0.5, "medium": 0.5})
    assert product_times() == {"bf16": 0.5, "medium": 0.5}


def test_single_disturbance_does_not_change_the_median(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = times([1.0, 2.0] * 30, replacements={7: 900.0, 10: 900.0, 12: 900.0})
    monkeypatch.setattr(measurement_cache, "_seconds", lambda _: next(clock))
    assert measurement_cache.median_ratio(lambda: None, lambda: None) == 0.5


def times(seconds: list[float], replacements: dict[int, float]) -> Iterator[float]:
    return (replacements.get(number, time) for number, time in enumerate(seconds))


def test_rounding_products_are_not_fp32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(auto_arithmetic, "MATRIX_SIZE", 32)
    multiply = torch.Tensor.__matmul__

    def exact(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return multiply(a.double(), b.double()).to(a.dtype)

    def rounding(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        rounds = torch.get_float32_matmul_precision() == "medium" and a.dtype == torch.float32
        return multiply(a.bfloat16(), b.bfloat16()).float() if rounds else exact(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", exact)
    assert measure_products()["medium"] < 1000
    monkeypatch.setattr(torch.Tensor, "__matmul__", rounding)
    assert measure_products()["medium"] == float("inf")
    assert torch.get_float32_matmul_precision() == "highest"


def test_precision_is_restored_after_an_error() -> None:
    with pytest.raises(ZeroDivisionError), matmul_precision("medium"):
        _ = 1 / (torch.get_float32_matmul_precision() != "medium")
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.slow
def test_run_keeps_its_chosen_arithmetic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    precisions = set[str]()
    loss = language.causal_loss

    def record_precision(*args, **kwargs):
        precisions.add(torch.get_float32_matmul_precision())
        return loss(*args, **kwargs)

    monkeypatch.setattr(language, "causal_loss", record_precision)
    monkeypatch.setattr(auto_arithmetic, "choose_matmul", lambda *_: "medium")
    out = train(tiny_recipe(tmp_path), tmp_path / "run", quiet=True)
    assert precisions == {"medium"}
    assert torch.get_float32_matmul_precision() == "highest"
    record = read_record(out)
    assert record is not None
    assert record.matmul == "medium"
    replace(record, finished=False).write(out)
    monkeypatch.setattr(auto_arithmetic, "choose_matmul", lambda *_: pytest.fail("measured again"))
    train(tiny_recipe(tmp_path), tmp_path / "run", quiet=True)
