"""In what numbers a run is worked out: whether two parts of it can be equal to the last bit.

A step is a function of (seed, step), and of how sums are rounded: by which library, with which instructions, shared out
among how many threads. What is noted here is kept with each checkpoint and compared when a run goes on.
"""

import os
from collections.abc import Mapping, Sequence

import torch

from tercet.kernel import build_id, is_thread_independent, kernel_table_id

# Each of these makes a library take other instructions, or add up in another order.
VARIABLES = (
    "ONEDNN_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR", "NVIDIA_TF32_OVERRIDE", "CUBLAS_WORKSPACE_CONFIG",
)  # fmt: skip
MICRO_BATCH = "micro_batch"


def describe_arithmetic(
    *, accelerator: str, precision: str, matmul: str, compiled: bool, ranks: int = 1, micro: int | None = None
) -> dict[str, str]:
    """What decides how this process rounds.

    Args:
        accelerator: cpu, cuda or mps.
        precision, matmul: as settled for the run.
        ranks: whose gradients are added up; 1 where their number changes nothing.
        micro: the size of a micro-batch, where it is not as the recipe has it.
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
        **({} if ranks == 1 else {"ranks": str(ranks)}),
        **({} if micro is None else {MICRO_BATCH: str(micro)}),
        **{name: value for name in VARIABLES if (value := os.environ.get(name))},
    }


def find_changes(earlier: Sequence[Mapping[str, str]], current: Mapping[str, str]) -> list[str]:
    """What differs, such as `threads 2, current 4`; empty where all steps were worked out as they would be now."""
    for previous in reversed(earlier):
        names = [name for name in {**previous, **current} if previous.get(name) != current.get(name)]
        if names:
            return [f"{name} {previous.get(name, 'unset')}, now {current.get(name, 'unset')}" for name in names]
    return []
