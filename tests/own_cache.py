"""A separate cache folder for tests that contains the compiled kernels of this machine."""

import os
import shutil
from pathlib import Path
from unittest import mock

from tercet.cache_dir import cache_dir
from tercet.kernel import warm_up
from tercet.training.compute.auto_arithmetic import product_times


def fill_cache(folder: Path) -> str:
    """Copy the compiled kernels (15 s of CPU time to build) into a new cache folder, and return its path.

    The folder also contains times of matrix products that are not measured (`conftest.py`), for programs that tests
    start.
    """
    warm_up()
    compiled = cache_dir() / "kernels"
    if compiled.is_dir() and compiled != folder / "kernels":  # perhaps filled by other tests
        shutil.copytree(compiled, folder / "kernels", dirs_exist_ok=True)
    with mock.patch.dict(os.environ, TERCET_CACHE=str(folder)):
        product_times()
    return str(folder)
