"""The compiled product is PyTorch's for every kind of weight, and so is the fallback without a compiler."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from tercet.kernel.build import library
from tercet.kernel.inference_linear import MAX_GEMV_ROWS, inference_linear, supports_inference_linear
from tercet.nn import Linear

needs_kernel = pytest.mark.skipif(library() is None, reason="no C++ compiler")


@pytest.mark.skipif(
    os.environ.get("TERCET_KERNEL") == "off" or shutil.which(os.environ.get("CXX") or "c++") is None,
    reason="no C++ compiler",
)
def test_kernels_exist_if_there_is_a_compiler() -> None:
    assert library() is not None


def weights(kind: str, n: int, k: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    if kind == "int8":
        return torch.randint(-127, 128, (n, k), dtype=torch.int8), torch.rand(n) + 0.1
    float_weight = torch.randn(n, k)
    return (float_weight if kind == "fp32" else float_weight.bfloat16()), None


@needs_kernel
@given(
    kind=st.sampled_from(["fp32", "bf16", "int8"]),
    rows=st.integers(1, 70),
    k=st.integers(1, 67),
    n=st.integers(1, 43),
    with_bias=st.booleans(),
    seed=st.integers(0, 2**32),
)
@example(kind="int8", rows=1, k=67, n=43, with_bias=False, seed=0)
@example(kind="int8", rows=16, k=67, n=43, with_bias=False, seed=0)
def test_product_matches_pytorch(kind: str, rows: int, k: int, n: int, with_bias: bool, seed: int) -> None:
    torch.manual_seed(seed)
    x, (weight, scale) = torch.randn(rows, k), weights(kind, n, k)
    bias = torch.randn(n) if with_bias else None
    exact = x.double() @ weight.double().T
    exact = exact if scale is None else exact * scale.double()
    exact = exact if bias is None else exact + bias.double()
    output = inference_linear(x, weight, scale, bias)
    if scale is not None and rows <= MAX_GEMV_ROWS:
        assert bool(((output - exact).abs() <= most_rounding(x, weight, scale) + 1e-6 * exact.abs() + 1e-6).all())
    else:
        torch.testing.assert_close(output.double(), exact, atol=2e-6 * float(exact.abs().max() + 1), rtol=1e-5)


def most_rounding(x: torch.Tensor, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """Bound the error (M, N) of 16-bit x: half of 1/32767 of the maximum in each 1024 numbers."""
    error = torch.zeros(len(x), len(weight), dtype=torch.float64)
    for numbers, weights in zip(x.double().split(1024, 1), weight.double().split(1024, 1), strict=True):
        error += numbers.abs().amax(1, keepdim=True) / 32767 / 2 * weights.abs().sum(1)
    return error * scale.double() * 1.001  # the scale itself is rounded


@needs_kernel
@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 13, 16])
@pytest.mark.parametrize("k", [1023, 1024, 1056, 3072])
def test_x_in_16_bits_keeps_the_range_of_each_piece(rows: int, k: int) -> None:
    """A large number in one piece of 1024 does not affect the others, and the integer sums never overflow."""
    generator = torch.Generator().manual_seed(k)
    x = torch.randn(rows, k, generator=generator)
    x[:, :1024] *= 1e5
    weight, scale = torch.full((5, k), 127, dtype=torch.int8), torch.tensor([1.0, 2.0, 0.5, 1e-3, 1e3])
    weight[1] = -127
    weight[2, 1024:] = -128
    exact = (x.double() @ weight.double().T) * scale.double()
    output = inference_linear(x, weight, scale, None)
    rounding = most_rounding(x, weight, scale)
    assert bool(((output - exact).abs() <= rounding + 1e-6 * (x.abs() @ weight.abs().float().T) * scale).all())
    top = torch.full((rows, k), 3e4)
    torch.testing.assert_close(
        inference_linear(top, weight, scale, None).double(),
        (top.double() @ weight.double().T) * scale,
        rtol=1e-5,
        atol=0,
    )


@needs_kernel
def test_x_in_16_bits_handles_zeros_nan_and_infinity() -> None:
    weight, scale = torch.ones(9, 40, dtype=torch.int8), torch.ones(9)
    x = torch.zeros(5, 40)
    x[1] = 1e-38  # too small to differ from zero
    x[2, 7], x[3, 39] = float("nan"), float("inf")
    x[4] = 3e38 / 40
    output = inference_linear(x, weight, scale, torch.ones(9))
    assert bool((output[:2] == 1).all())
    assert bool(output[2:4].isnan().all())
    torch.testing.assert_close(output[4], torch.full((9,), 3e38), rtol=1e-4, atol=0)


@needs_kernel
@pytest.mark.parametrize("kind", ["fp32", "bf16", "int8"])
def test_row_does_not_depend_on_other_rows(kind: str) -> None:
    """Results are bitwise identical in any batch."""
    x, (weight, scale) = torch.randn(60, 523), weights(kind, 263, 523)
    for few_or_many in ((1, 2, 3, 4, 5, 16), (17, 18, 31, 32, 33, 48, 60)):
        batched = inference_linear(x[: few_or_many[-1]], weight, scale, None)
        for count in few_or_many:
            assert torch.equal(inference_linear(x[:count], weight, scale, None), batched[:count])


@needs_kernel
@pytest.mark.parametrize("rows", [3, 30])
def test_any_shape_of_rows_and_any_number_of_threads_match(rows: int) -> None:
    x, (weight, _) = torch.randn(2, rows, 1, 401), weights("fp32", 701, 401)
    threads = torch.get_num_threads()
    try:
        outputs = []
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            outputs.append(inference_linear(x, weight, None, None))
    finally:
        torch.set_num_threads(threads)
    assert outputs[0].shape == (2, rows, 1, 701)
    assert torch.equal(outputs[0], outputs[1])
    assert torch.equal(outputs[0], outputs[2])
    strided = torch.randn(401, 5).T
    torch.testing.assert_close(inference_linear(strided, weight, None, None), strided @ weight.T, atol=1e-4, rtol=1e-4)


@needs_kernel
def test_kernel_is_used_for_enough_work_without_gradients() -> None:
    large, small = torch.randn(1024, 256), torch.randn(100, 256)
    x = torch.randn(16, 256)
    assert supports_inference_linear(x, large)
    assert not supports_inference_linear(x, small)
    assert supports_inference_linear(torch.randn(17, 256), large)
    assert supports_inference_linear(torch.randn(164, 256), small)
    assert not supports_inference_linear(torch.randn(163, 256), small)
    assert not supports_inference_linear(torch.randn(0, 256), large)
    assert not supports_inference_linear(x.double(), large)
    assert not supports_inference_linear(x, large.T.contiguous().T)
    assert not supports_inference_linear(x, large.double())
    trained_model = nn.Parameter(large)
    assert not supports_inference_linear(x, trained_model)
    with torch.no_grad():
        assert supports_inference_linear(x, trained_model)
        with torch.autocast("cpu", torch.bfloat16):
            assert not supports_inference_linear(x, trained_model)


@needs_kernel
def test_linear_layer_uses_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x = Linear(256, 1031), torch.randn(3, 1, 256)
    expected = nn.functional.linear(x, layer.weight, layer.bias)
    calls = []
    monkeypatch.setattr("tercet.kernel.api.inference_linear", lambda *args: calls.append(1) or inference_linear(*args))
    with torch.no_grad():
        torch.testing.assert_close(layer(x), expected, atol=1e-5, rtol=1e-5)
    assert calls == [1]
    torch.testing.assert_close(layer(x), expected)
    assert calls == [1]  # PyTorch computes layers with gradients


LOOK = """
import torch
from tercet.nn import Linear
from tercet.kernel.build import library
torch.manual_seed(0)
layer = Linear(256, 1024)
with torch.no_grad():
    print(library() is not None, float(layer(torch.ones(1, 256)).sum()))
    layer.quantize("int8")
    print(float(layer(torch.ones(1, 256)).sum()))
"""


COMPILING = "tercet: compiling the CPU kernels once, which takes about 15 s"


def run_program(tmp_path: Path, stderr: str = "", **environment: str) -> list[str]:
    process = subprocess.run(
        [sys.executable, "-c", LOOK], env={**os.environ, "TERCET_CACHE": str(tmp_path), **environment},
        capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    assert process.stderr.startswith(stderr)
    assert process.stderr.count("\n") == stderr.count("\n") + 1 if stderr else not process.stderr
    return process.stdout.split()


@pytest.mark.exhaustive
@needs_kernel
def test_results_are_the_same_without_a_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    unoptimized = tmp_path / "c++"  # compiles in a third of the time
    unoptimized.write_text(f'#!/bin/sh\nexec {os.environ.get("CXX") or "c++"} "$@" -O0\n')
    unoptimized.chmod(0o755)
    monkeypatch.setenv("CXX", str(unoptimized))
    with_compiler = run_program(tmp_path, COMPILING)
    libraries = [path for path in (tmp_path / "kernels").iterdir() if path.suffix != ".lock"]
    assert [path.suffix for path in libraries] == [".so"]  # no intermediate files remain
    compile_time = libraries[0].stat().st_mtime_ns
    assert run_program(tmp_path) == with_compiler
    assert libraries[0].stat().st_mtime_ns == compile_time  # compiled once
    without_compiler = run_program(
        tmp_path / "b", f"{COMPILING}\ntercet: no compiled kernels, using PyTorch: ", CXX="false"
    )
    assert (with_compiler[0], without_compiler[0]) == ("True", "False")
    for kernel, pytorch in zip(with_compiler[1:], without_compiler[1:], strict=True):
        assert float(pytorch) == pytest.approx(float(kernel), abs=1e-4)
