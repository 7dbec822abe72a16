"""Denormal numbers, those below 1.2e-38 in float32, which many CPUs compute a hundred times as slowly as others.

They appear in training: with weight decay, weights that have no gradient decay towards zero, and so do the moving
averages of optimizers.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from tercet.kernel.build import kernels, library
from tercet.kernel.threads import kernel_threads

SMALLEST_NORMAL = 2.0**-126  # of float32


@contextmanager
def flush_denormals() -> Generator[None]:
    """Compute with zero in place of denormal numbers on the CPU, in this thread and in PyTorch's threads.

    Without kernels, only those threads of PyTorch are affected that start in the context, because PyTorch itself sets
    no thread but the calling one.
    """
    was_flushing = is_flushing_denormals()
    _set_threads(flush=True)
    try:
        yield
    finally:
        _set_threads(flush=was_flushing)


def is_flushing_denormals() -> bool:
    """Return whether this thread computes with zero in place of denormal numbers."""
    return float(torch.tensor(SMALLEST_NORMAL) / 2) == 0.0


def _set_threads(*, flush: bool) -> None:
    torch.set_flush_denormal(flush)  # threads inherit it when they start
    if library() is not None:
        kernels().flush_denormals(int(flush), kernel_threads())
