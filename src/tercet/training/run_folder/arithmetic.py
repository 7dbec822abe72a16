"""The numerical environment of a run, which determines whether resumed steps can be bitwise identical.

A step is a function of (seed, step) and of the rounding of sums, which depends on the libraries, the instruction set
and the number of threads. Each checkpoint records the environments of its steps. When a run is resumed, they are
compared with the current one.
"""

import os
from collections.abc import Mapping, Sequence

import torch

from tercet.kernel import build_id, is_flushing_denormals, is_thread_independent, kernel_table_id

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
# Each of these changes a library's instructions or its order of summation.
VARIABLES = (
    "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "NVIDIA_TF32_OVERRIDE", CUBLAS_WORKSPACE,
)  # fmt: skip
MICRO_BATCH = "micro_batch"


def describe_arithmetic(
    *, accelerator: str, precision: str, matmul: str, compiled: bool, ranks: int = 1, micro: int | None = None
) -> dict[str, str]:
    """Return everything that determines how this process rounds, as text by name.

    Args:
        accelerator: Device type: cpu, cuda or mps.
        precision: Precision that was chosen for the run: fp32, bf16 or fp16.
        matmul: PyTorch's float32 matmul precision that was chosen for the run: highest or medium.
        compiled: If True, steps are compiled.
        ranks: Number of ranks whose gradients are summed; 1 if the result does not depend on it.
        micro: Size of a micro-batch if it differs from the recipe, else None.
    """
    device = torch.cuda.get_device_name() if accelerator == "cuda" else accelerator
    return {
        "torch": str(torch.__version__),
        "device": device,
        "instructions": torch.backends.cpu.get_cpu_capability(),
        "threads": "any" if is_thread_independent() else str(torch.get_num_threads()),
        "kernels": build_id() or "none",
        "kernel_table": kernel_table_id(),
        "precision": precision,
        "matmul": matmul,
        "compiled": "yes" if compiled else "no",
        "denormals": "zero" if is_flushing_denormals() else "exact",
        **({} if ranks == 1 else {"ranks": str(ranks)}),
        **({} if micro is None else {MICRO_BATCH: str(micro)}),
        **{name: value for name in VARIABLES if (value := os.environ.get(name))},
    }


def find_changes(earlier: Sequence[Mapping[str, str]], current: Mapping[str, str]) -> list[str]:
    """Return the differences of the current environment from an earlier one, such as `threads 2, now 4`.

    Args:
        earlier: Environments of the steps so far, the oldest first.
        current: Environment of the remaining steps.

    Returns:
        Differences from the most recent environment that differs; empty if all are equal to the current one.
    """
    for previous in reversed(earlier):
        names = [name for name in {**previous, **current} if previous.get(name) != current.get(name)]
        if names:
            return [f"{name} {previous.get(name, 'unset')}, now {current.get(name, 'unset')}" for name in names]
    return []
