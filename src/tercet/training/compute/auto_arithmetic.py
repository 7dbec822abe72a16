"""Choice of the arithmetic for `precision: auto`, from the hardware and from times that are measured once.

The times are cached, because runs of one recipe could otherwise differ in precision: on a busy machine, the measured
time of bf16 products varied from 0.2 to 40 times that of fp32 within a second.
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

BF16_TIME_RATIO, ONEDNN_TIME_RATIO = 0.7, 0.8  # maximum time, relative to fp32 with PyTorch's default library
FP32_TOLERANCE = 1e-5  # relative to the largest number; the error of fp32 is 1e-6, that of bf16 is 1e-3
MATRIX_SIZE = 512  # rows and columns of the measured matrices


def choose_arithmetic(spec: TrainingSpec) -> dict[str, Any]:
    """Return the `precision` and `matmul` of a run, which determine how its results are rounded."""
    return {"precision": choose_precision(spec), "matmul": choose_matmul(spec)}


def choose_precision(spec: TrainingSpec) -> str:
    """Return the precision of a run: fp32, bf16 or fp16.

    For `auto`, it is bf16 on GPUs with compute capability 8.0 or higher, fp16 on older ones, and bf16 on a CPU if its
    matrix products take less than 0.7 of the time in fp32. Otherwise it is fp32.
    """
    if spec.precision != "auto":
        return spec.precision
    device = accelerator(spec)
    if device == "cuda":
        return "bf16" if torch.cuda.get_device_capability() >= (8, 0) else "fp16"
    instructions = cpu_instructions()
    may_support_bf16 = not instructions or instructions & BF16  # unknown on some systems
    return "bf16" if device == "cpu" and may_support_bf16 and product_times()["bf16"] < BF16_TIME_RATIO else "fp32"


def choose_matmul(spec: TrainingSpec) -> Matmul:
    """Return PyTorch's setting for matrix products in fp32: "highest" or, with oneDNN on a CPU, "medium".

    oneDNN is chosen if the precision is `auto`, the run uses a CPU, and oneDNN is faster than PyTorch's default library
    and as exact. With mixed precision, the setting only affects the products in the optimizer. On some AMD CPUs the
    default library takes twice the time of oneDNN; on others there is no difference. On CPUs with AMX, oneDNN would
    round to bf16 and is not chosen.
    """
    if spec.precision != "auto" or accelerator(spec) != "cpu":
        return "highest"
    return "medium" if product_times()["medium"] < ONEDNN_TIME_RATIO else "highest"


@contextmanager
def matmul_precision(matmul: Matmul) -> Generator[None]:
    """Set PyTorch's float32 matmul precision, which applies to the whole process, within the context."""
    previous = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(matmul)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(previous)


def product_times() -> dict[str, float]:
    """Return the times of matrix products on the CPU, relative to fp32 with PyTorch's default library.

    The times are measured if they are not cached. The keys are "bf16" and "medium", which is fp32 with oneDNN. The time
    of "medium" is infinite if oneDNN is not as exact as fp32.
    """
    return MeasurementCache("arithmetic", ("bf16", "medium")).read_or_measure(measure_products)


def measure_products() -> dict[str, float]:
    """Measure the times that `product_times` returns."""
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
