"""The number of threads that share the work of a kernel.

Kernels divide their work into pieces of fixed sizes and add up in a fixed order, so their results do not depend on the
number of threads. PyTorch and its libraries cut sums, products and even elementwise operations at places that do: on a
CPU the weight gradient of a layer norm differs with every number, and GELU by tanh, whose last numbers before a cut are
computed by another function, with most.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from tercet.kernel.build import constant_when_compiled

_threads: int | None = None  # None: as many as PyTorch has


def kernel_threads() -> int:
    """Return the number of threads of a kernel."""
    return torch.get_num_threads() if _threads is None else _threads


@constant_when_compiled
def is_thread_independent() -> bool:
    """Return whether results must not depend on the number of threads."""
    return _threads is not None


@contextmanager
def thread_independent() -> Generator[None]:
    """Compute the same bits on a CPU with any number of threads.

    PyTorch's operations run on one thread. Kernels run on as many as PyTorch had, and take all the work that they can,
    since on one thread there is nothing faster to choose.
    """
    global _threads
    previous, threads = _threads, torch.get_num_threads()
    _threads = kernel_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        _threads = previous
