"""Large pages in a control group whose memory is short: they need no more memory than small ones."""

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tercet import memory

MEGABYTE = 1 << 20
LIMITS = ("memory.limit_in_bytes", "memory.max")  # of control groups of version 1 and 2
USAGES = ("memory.usage_in_bytes", "memory.current")

# Moves to the control group, limits it to its present memory and some megabytes, and fills 64 MB in 64 tensors.
CHILD = """
import os, sys
from pathlib import Path
group, limit_file, usage_file, megabytes = Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4])
(group / "cgroup.procs").write_text(str(os.getpid()))
from tercet.memory import keep_memory
assert keep_memory()
import torch
total = torch.ones(1 << 18).sum()
(group / limit_file).write_text(str(int((group / usage_file).read_text()) + (megabytes << 20)))
tensors = [torch.ones(1 << 18) for _ in range(64)]
print(int(total + sum(x.sum() for x in tensors)))
"""


def own_group() -> Path | None:
    """Return the folder of this process's control group for memory, or None if there is none."""
    groups = [line.split(":") for line in Path("/proc/self/cgroup").read_text(encoding="ascii").splitlines()]
    for _, controllers, path in groups:
        folder = Path("/sys/fs/cgroup", *(["memory"] if controllers == "memory" else [])) / path.lstrip("/")
        if controllers in ("memory", "") and any((folder / name).is_file() for name in LIMITS):
            return folder
    return None


@pytest.fixture
def group() -> Iterator[Path]:
    parent = own_group() if sys.platform == "linux" else None
    if parent is None or memory.large_pages() != "madvise":
        pytest.skip("requires Linux with large pages on request and a control group for memory")
    folder = parent / f"tercet-{uuid.uuid4().hex}"
    try:
        folder.mkdir()
    except OSError as error:
        pytest.skip(f"no control group can be created here: {error.strerror}")
    yield folder
    with suppress(OSError):
        folder.rmdir()


def fill(group: Path, megabytes: int) -> subprocess.CompletedProcess[str]:
    limit, usage = ([name for name in names if (group / name).is_file()] for names in (LIMITS, USAGES))
    if not limit or not usage:
        pytest.skip("new control groups do not limit memory here")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    return subprocess.run(
        [sys.executable, "-c", CHILD, str(group), limit[0], usage[0], str(megabytes)],
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("megabytes", "succeeds"), [(72, True), (56, False)])
def test_large_pages_need_no_more_memory_than_a_group_has(group: Path, megabytes: int, succeeds: bool) -> None:
    completed = fill(group, megabytes)
    if succeeds:
        assert (completed.returncode, completed.stdout) == (0, f"{65 << 18}\n"), completed.stderr
    else:  # the limit is in force
        assert completed.returncode == -signal.SIGKILL
