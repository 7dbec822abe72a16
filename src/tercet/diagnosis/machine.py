"""Diagnosis of this machine and of the choices made for it, to explain runs that are slow or fail."""

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

ANSWER_SECONDS = 5.0  # seconds after which `compiler --version` is stopped


@dataclass(frozen=True, repr=False)
class Diagnosis(Summary):
    """Versions and hardware of this machine, and the choices made for it.

    Args:
        tercet, python, torch: Versions.
        system, cpu: Names of the operating system, with its version, and of the CPU.
        instructions: CPU instructions that affect the choice of kernels or libraries, as named by Linux.
        cores: Cores that this process may use.
        threads: Threads that PyTorch uses for one operation.
        memory_bytes: Memory of the machine, or None if unknown.
        large_pages: Use of large memory pages: always, madvise (if a program requests them, as Tercet does) or never.
        kernel_level: Instruction set as in `TERCET_KERNEL`, or none.
        kernel_origin: prebuilt (from the wheel), compiled (on this machine) or none.
        kernel_reason: Reason for this choice, in one line.
        kernel_build: Instruction set and hash of the kernels' code, which are recorded in runs; None without kernels.
        kernel_table: Amounts of work from which kernels are used instead of PyTorch, in one line.
        cache: Folder of files that can be created or downloaded again.
        cache_refusal: Reason why the cache cannot be written or trusted, in one line; None if it can.
        cache_free_bytes, free_bytes: Free space on the disks of the cache and of the current folder, in bytes.
        precision: Precision chosen for `training.precision: auto`.
        cluster: Facts for runs on several machines.
        compiler: Path of the C++ compiler, or None if there is none.
        compiler_version: Version of the compiler, or None if it cannot be run.
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
    """Return versions and hardware of this machine, and the choices made for it.

    If there are no kernels for this machine yet, they are compiled first, as by any other command.

    Raises:
        UserError: If TERCET_KERNEL is not an instruction set of this machine, or the variables of a launcher are
            invalid.
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
        return f"{folder} is not a folder; remove it, or set TERCET_CACHE to a folder"
    if not os.access(folder, os.W_OK | os.X_OK):
        return f"{folder} cannot be written; set TERCET_CACHE to a writable folder"
    try:
        check_owner(folder.resolve())
    except UntrustedFile as error:
        return str(error)
    return None


def _existing(path: Path) -> Path:
    """Return the path if it exists, else its nearest existing parent."""
    return next(folder for folder in (path, *path.parents) if os.path.exists(folder))


def _first_line(command: Sequence[str]) -> str | None:
    try:
        result = subprocess.run(command, capture_output=True, timeout=ANSWER_SECONDS, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return shorten(result.stdout.decode(errors="replace")) or None
