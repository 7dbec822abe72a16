"""Number of threads of the kernels.

Kernels divide their work into pieces of fixed size and add up in a fixed order, so results do not depend on the number
of threads. PyTorch and its libraries divide sums, products and even elementwise operations depending on that number. On
a CPU, for example, the weight gradient of a layer norm differs for every number of threads. The tanh approximation of
GELU differs for numbers that do not divide the elements evenly, because another function computes the last elements of
each thread's part.
"""

from collections.abc import Generator
from contextlib import contextmanager

import torch

from tercet.kernel.build import constant_when_compiled

_threads: int | None = None  # None: the number of PyTorch's threads


def kernel_threads() -> int:
    """Return the number of threads that a kernel should use."""
    return torch.get_num_threads() if _threads is None else _threads


@constant_when_compiled
def is_thread_independent() -> bool:
    """Return whether results must not depend on the number of threads."""
    return _threads is not None


@contextmanager
def thread_independent() -> Generator[None]:
    """Compute bitwise identical results on a CPU with any number of threads.

    In the context, PyTorch runs on one thread. Kernels use the number of threads that PyTorch had before. They do all
    the work that they support, since PyTorch on one thread is never faster.
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
