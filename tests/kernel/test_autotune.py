"""From how much work on a kernel is used: measured on this machine, kept, held to, and taken back."""

import math
import sys
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tercet
from tercet.cli.main import main
from tercet.config import UserError
from tercet.kernel import autotune as autotune_function
from tercet.kernel import dispatch, tuned
from tercet.kernel import library as loaded
from tercet.kernel.autotune import SLOWER, Measurement, longest_range
from tercet.kernel.measurement_cache import MeasurementCache
from tercet.kernel.tuned import NEVER, WorkRange, describe_table
from tercet.training.arithmetic import describe_arithmetic, find_changes

autotune_module = sys.modules["tercet.kernel.autotune"]
needs_kernels = pytest.mark.skipif(loaded() is None, reason="there are no kernels on this machine")
measurements = st.lists(
    st.builds(
        Measurement, name=st.just("linear float32"), work=st.integers(1, 1 << 40), share=st.floats(0.1, 3)
    ), unique_by=lambda one: one.work,
)  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A machine of which nothing is known."""
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path))
    tuned.autotuned.cache_clear()
    yield tmp_path
    tuned.autotuned.cache_clear()


def take(monkeypatch: pytest.MonkeyPatch, *measurements: Measurement) -> None:
    monkeypatch.setattr(autotune_module, "_measure", lambda: iter(measurements))


@given(measurements=measurements)
def test_in_the_range_nothing_is_slower_and_just_outside_something_is(measurements: list[Measurement]) -> None:
    least, most = longest_range(measurements)
    ladder = sorted(measurements, key=lambda one: one.work)
    inside = [one for one in ladder if least <= one.work <= most]
    assert all(one.share <= SLOWER for one in inside)
    if not inside:
        assert (least, most) == NEVER
        assert all(max(one.share, after.share) > SLOWER for one, after in pairwise(ladder))
        return
    assert len(inside) >= 2  # of one alone nobody knows
    below, above = ladder[: ladder.index(inside[0])], ladder[ladder.index(inside[-1]) + 1 :]
    assert below[-1].share > SLOWER if below else least == 0  # and whatever is smaller than all that was measured
    assert above[0].share > SLOWER if above else math.isinf(most)
    for start in range(len(ladder)):  # no part of it that is not slower is longer
        part = ladder[start : start + len(inside) + 1]
        assert len(part) <= len(inside) or any(one.share > SLOWER for one in part)


@pytest.mark.slow
@needs_kernels
def test_what_was_measured_is_held_to_by_the_next_process_and_told_by_its_runs(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x, weight = torch.randn(1024, 64), torch.randn(64, 64)  # 2^22 multiplications
    before = describe_arithmetic(accelerator="cpu", precision="fp32", matmul="highest", compiled=False)
    assert before["kernel_table"].startswith("packaged-")
    measurements = [
        Measurement("linear float32", 1 << 20, 2.0),
        Measurement("linear float32", 1 << 22, 0.5),
        Measurement("linear float32", 1 << 24, 1),
    ]
    take(monkeypatch, *measurements)
    monkeypatch.setattr("tercet.training.auto_arithmetic.choose_precision", lambda spec: "fp32")  # measures as well
    told: list[str] = []
    found = tercet.doctor(autotune=True, note=told.append)
    assert told == [
        "linear float32, 1,048,576 of work: 2.00 of PyTorch's time",
        "linear float32, 4,194,304 of work: 0.50 of PyTorch's time",
        "linear float32, 16,777,216 of work: 1.00 of PyTorch's time",
    ]
    assert found.kernel_table_origin == "autotuned"
    assert "activate float32 never, linear float32 from 4,194,304, flash_attention bfloat16" in found.kernel_table
    assert dispatch.supports_training_linear(x, weight)
    assert not dispatch.supports_training_linear(x[:-1], weight)
    assert not dispatch.supports_activation(torch.randn(1 << 20))
    tuned.autotuned.cache_clear()  # as the next process has it
    assert describe_table(tuned.kernel_table()) == found.kernel_table
    after = describe_arithmetic(accelerator="cpu", precision="fp32", matmul="highest", compiled=False)
    assert after["kernel_table"].startswith("autotuned-")
    assert find_changes([before], after) == [f"kernel_table {before['kernel_table']}, now {after['kernel_table']}"]
    back = tercet.doctor(autotune=False)
    assert back.kernel_table_origin == "packaged"
    assert describe_arithmetic(accelerator="cpu", precision="fp32", matmul="highest", compiled=False) == before


@needs_kernels
@pytest.mark.parametrize("name", ["TERCET_KERNEL", "ONEDNN_MAX_CPU_ISA"])
def test_another_machine_has_another_table(name: str, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, Measurement("linear float32", 1 << 22, 0.5))
    autotune_function(lambda line: None)
    mine = tuned.autotune_cache().path
    if name == "TERCET_KERNEL":
        monkeypatch.setattr(tuned, "build_id", lambda: "x86-64-v9-0123")
    else:
        monkeypatch.setenv(name, "AVX2")
    assert tuned.autotune_cache().path != mine
    assert tuned.autotune_cache().read() is None
    assert tuned.autotuned.__wrapped__() is None


@pytest.mark.slow
@needs_kernels
def test_a_damaged_table_is_none(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    take(monkeypatch, Measurement("linear float32", 1 << 22, 0.5))
    autotune_function(lambda line: None)
    path = tuned.autotune_cache().path
    path.write_text(path.read_text().replace('"inf"', '"5.0"', 1))
    assert tuned.autotuned.__wrapped__() is None
    assert main(["doctor"]) == 0


def test_numbers_that_there_are_not_are_none(cache: Path) -> None:
    MeasurementCache("x", ("a",)).write({"a": 1.5})
    assert MeasurementCache("x", ("a",)).read() == {"a": 1.5}
    assert MeasurementCache("x", ("a", "b")).read() is None
    assert MeasurementCache("x", ("a",), of="another").read() is None


@pytest.mark.slow
@needs_kernels
def test_each_kernel_is_measured_beside_what_pytorch_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """At small sizes; both give the same, and neither is the other."""
    monkeypatch.setattr(autotune_module, "LINEAR", ((64, 128, 128), (128, 128, 128)))
    monkeypatch.setattr(autotune_module, "ATTENTION", ((2, 2, 64, 32), (2, 2, 256, 32)))
    monkeypatch.setattr(autotune_module, "ACTIVATION", (1 << 18,))
    for kernel, work, own, theirs, inputs in autotune_module._cases(torch.float32):
        assert work > 0
        ours, plain = own(*inputs), theirs(*inputs)
        torch.testing.assert_close(ours, plain, rtol=2e-4, atol=2e-4)
        assert type(ours.grad_fn) is not type(plain.grad_fn), kernel
    found = list(autotune_module._measure())
    names = [name for name in tuned.TUNED if "float32" in name or tuned.multiplies_bfloat16()]
    assert {one.name for one in found} == set(names)
    assert all(one.share > 0 for one in found)


def test_no_kernels_and_no_room_are_one_line(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    take(monkeypatch)
    (tmp_path / "autotune").write_text("a file")
    if loaded() is not None:
        with pytest.raises(UserError, match="cannot be written"):
            tercet.doctor(autotune=True)
    monkeypatch.setattr("tercet.kernel.library", lambda: None)
    assert main(["doctor", "--autotune"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err == "tercet: error: there are no kernels to measure on this machine; tercet doctor says why\n"


def test_a_table_is_told_in_words() -> None:
    ranges = {"a": NEVER, "b": WorkRange(0, math.inf), "c": WorkRange(4096, math.inf), "d": WorkRange(1, 2000)}
    assert describe_table(ranges) == "a never, b always, c from 4,096, d from 1 up to 2,000"
