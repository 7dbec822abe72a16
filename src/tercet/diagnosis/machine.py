"""What a run finds on this machine and what is chosen of it: the first question where one is slow, or fails."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tercet.cache_dir import UntrustedFile, cache_dir, check_owner
from tercet.diagnosis.cluster import ClusterFacts, find_cluster_facts
from tercet.memory import large_pages
from tercet.messages import shorten
from tercet.notebook import Summary
from tercet.version import tercet_version

ANSWER_SECONDS = 5.0  # in which a compiler says its version


@dataclass(frozen=True, repr=False)
class Diagnosis(Summary):
    """A machine as Tercet sees it.

    Args:
        instructions: those of the CPU's that kernels or PyTorch's libraries are chosen by, as Linux calls them.
        cores: that this process may use.
        threads: that PyTorch uses for one operation.
        memory_bytes: of the machine; None where the system does not say.
        large_pages: always, madvise (if a program asks for them, as Tercet does) or never.
        kernel_level: as `TERCET_KERNEL` names it, or none.
        kernel_origin: prebuilt came with the wheel; compiled was made here; none.
        kernel_reason: why it is these, in a line.
        kernel_build: level and hash of the code, as a run notes them; None without kernels.
        kernel_table: for how much work a kernel is used in such numbers and not PyTorch's way beside it, in a line.
        cache: the folder for what can be made or downloaded again.
        cache_refusal: why it may not be written or believed, in a line; None where all is well.
        cache_free_bytes, free_bytes: of the cache's disk and of the one that the current folder is on.
        precision: what `training.precision: auto` comes to.
        cluster: what a run on several machines needs of this one.
        compiler: the C++ compiler's path and its version, each None where it is not there or does not answer.
    """

    tercet: str
    python: str
    torch: str
    system: str
    cpu: str
    instructions: list[str]
    cores: int
    threads: int
    memory_bytes: int | None
    large_pages: str
    kernel_level: str
    kernel_origin: str
    kernel_reason: str
    kernel_build: str | None
    kernel_table: str
    cache: str
    cache_refusal: str | None
    cache_free_bytes: int
    free_bytes: int
    precision: str
    cluster: ClusterFacts
    compiler: str | None
    compiler_version: str | None


def doctor() -> Diagnosis:
    """What this machine gives to a run and what is chosen of it. As any first command, it compiles the kernels where
    there are none for this machine.

    Raises:
        UserError: where TERCET_KERNEL names no level of this machine.
    """
    import torch

    from tercet.kernel import describe_kernels
    from tercet.training.compute.auto_arithmetic import choose_precision
    from tercet.training.planning.this_machine import machine_memory
    from tercet.training.recipe.specs import TrainingSpec

    kernels, cache = describe_kernels(), cache_dir().absolute()
    return Diagnosis(
        tercet=tercet_version(),
        python=platform.python_version(),
        torch=str(torch.__version__),
        system=platform.platform(),
        cpu=kernels.cpu,
        instructions=kernels.instructions,
        cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        threads=torch.get_num_threads(),
        memory_bytes=machine_memory(),
        large_pages=large_pages(),
        kernel_level=kernels.level,
        kernel_origin=kernels.origin,
        kernel_reason=kernels.reason,
        kernel_build=kernels.build,
        kernel_table=kernels.table,
        cache=str(cache),
        cache_refusal=_refuse_cache(cache),
        cache_free_bytes=shutil.disk_usage(_existing(cache)).free,
        free_bytes=shutil.disk_usage(".").free,
        precision=choose_precision(TrainingSpec(max_steps=1)),
        cluster=find_cluster_facts(),
        compiler=kernels.compiler,
        compiler_version=None if kernels.compiler is None else _first_line([kernels.compiler, "--version"]),
    )


def _refuse_cache(folder: Path) -> str | None:
    folder = _existing(folder)
    if not folder.is_dir():
        return f"{folder} is no folder; remove it, or set TERCET_CACHE to a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written; set TERCET_CACHE to a folder that can"
    try:
        check_owner(folder.resolve())
    except UntrustedFile as error:
        return str(error)
    return None


def _existing(path: Path) -> Path:
    """It, or the nearest folder above it that is there."""
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


def _first_line(command: Sequence[str]) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return shorten(result.stdout.decode(errors="replace")) or None
