"""A simulated full disk: no file of this process can grow beyond a limit (RLIMIT_FSIZE)."""

import resource
from collections.abc import Generator
from contextlib import contextmanager


@contextmanager
def full_disk(n_bytes: int) -> Generator[None]:
    """Limit files to `n_bytes` within the block; a longer write is truncated, without a signal."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
