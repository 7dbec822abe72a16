"""In what numbers `auto` trains on this machine: by the instructions that its CPU has, then by times that are measured
once and kept in the cache. Measured anew, two runs of one recipe could differ in arithmetic: on a busy machine bf16's
products seem to take 0.2 of fp32's time now and 40 times as much a second later.
"""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch

from tercet.checkpoint.run_record import Matmul
from tercet.kernel import BF16, cpu_instructions
from tercet.training.compute.measurement_cache import MeasurementCache, median_ratio
from tercet.training.distributed.devices import accelerator
from tercet.training.recipe.specs import TrainingSpec

BF16_TIME_RATIO, ONEDNN_TIME_RATIO = 0.7, 0.8  # of fp32's time, and of that of PyTorch's default library
FP32_TOLERANCE = 1e-5  # of the largest number: fp32 is off by 1e-6, bf16 by 1e-3
MATRIX_SIZE = 512


def choose_arithmetic(spec: TrainingSpec) -> dict[str, Any]:
    """Precision and matmul, which decide in what numbers a run is worked out."""
    return {"precision": choose_precision(spec), "matmul": choose_matmul(spec)}


def choose_precision(spec: TrainingSpec) -> str:
    """fp32, bf16 or fp16: the fastest that the hardware really has."""
    if spec.precision != "auto":
        return spec.precision
    device = accelerator(spec)
    if device == "cuda":
        return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "fp16"
    instructions = cpu_instructions()
    may_support_bf16 = not instructions or instructions & BF16  # not every system tells
    return "bf16" if device == "cpu" and may_support_bf16 and product_times()["bf16"] < BF16_TIME_RATIO else "fp32"


def choose_matmul(spec: TrainingSpec) -> Matmul:
    """By what matrices of fp32 are multiplied on a CPU: the faster, where both are as exact as fp32 is. In mixed
    precision those are an optimizer's.

    PyTorch's default library takes twice oneDNN's time on some AMD CPUs; on others there is nothing in it. On CPUs with
    AMX oneDNN would round to bf16 on the way, which "fp32" does not mean.
    """
    if spec.precision != "auto" or accelerator(spec) != "cpu":
        return "highest"
    return "medium" if product_times()["medium"] < ONEDNN_TIME_RATIO else "highest"


@contextmanager
def matmul_precision(matmul: Matmul) -> Generator[None]:
    """With PyTorch's setting of that name, which belongs to the whole process, in force."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def product_times() -> dict[str, float]:
    """How long products in bf16, and in fp32 by oneDNN ("medium"), take, as shares of fp32's time by default; infinite
    where they are not fp32. As they were measured when this machine was first asked."""
    return MeasurementCache("arithmetic", ("bf16", "medium")).read_or_measure(measure_products)


def measure_products() -> dict[str, float]:
    """`product_times`, now."""
    generator = torch.Generator().manual_seed(0)
    a, b = (torch.randn(MATRIX_SIZE, MATRIX_SIZE, generator=generator) for _ in range(2))
    c, d = a.bfloat16(), b.bfloat16()

    def multiply_by_onednn() -> torch.Tensor:
        with matmul_precision("medium"):
            return a @ b

    with matmul_precision("highest"):
        exact = a.double() @ b.double()
        is_fp32 = float((multiply_by_onednn() - exact).abs().max() / exact.abs().max()) < FP32_TOLERANCE
        return {
            "bf16": median_ratio(lambda: c @ d, lambda: a @ b),
            "medium": median_ratio(multiply_by_onednn, lambda: a @ b) if is_fp32 else float("inf"),
        }
