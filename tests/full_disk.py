"""A simulated full disk: no file of this process can grow beyond a limit (RLIMIT_FSIZE)."""

import errno
import resource
from collections.abc import Generator
from contextlib import contextmanager

import pytest

from tercet.storage import atomic


@contextmanager
def full_disk(n_bytes: int) -> Generator[None]:
    """Limit files to `n_bytes` within the block; a longer write is truncated, and reported as a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(atomic, "DISK_FULL_ERRORS", {*atomic.DISK_FULL_ERRORS, errno.EFBIG})
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
