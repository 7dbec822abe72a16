"""Levels: instruction sets for which wheels contain kernels, and the compilation of kernels.

The same flags are used for a wheel and for missing kernels, so that the same compiler produces the same code in both
places. For a CPU that supports no level, kernels are compiled on that machine.

Only the standard library is imported, because wheels are built (`hatch_build.py`) without PyTorch.
"""

import ctypes
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

CPP = Path(__file__).parent / "cpp"
SOURCE = CPP / "kernels.cpp"  # includes the headers in the same folder
PREBUILT = Path(__file__).parent / "prebuilt"  # a library per level, in a wheel for one machine type
# OpenMP is compiled in but not linked, so that its calls use PyTorch's threads. A second OpenMP library would start a
# second set of threads.
FLAGS = ("-O3", "-fno-math-errno", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-std=c++17")
COMPILE_TIMEOUT = 60.0  # seconds per call of the compiler, which takes 5 on a laptop


class CompilerError(Exception):
    """The compiler failed or did not finish. The message contains its first error."""


class CompilerTimeout(CompilerError):
    """The compiler did not finish within `COMPILE_TIMEOUT`."""


@dataclass(frozen=True)
class Level:
    """An instruction set.

    Args:
        name: Name, as in `TERCET_KERNEL`.
        machine: Machine type, as in `platform.machine`.
        needs: Required instructions, as in /proc/cpuinfo.
        flags: Compiler flags.
    """

    name: str
    machine: str
    needs: frozenset[str]
    flags: tuple[str, ...]


V3 = {
    "cx16", "lahf_lm", "popcnt", "ssse3", "sse4_1", "sse4_2", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm",
    "movbe",
}  # fmt: skip
V4 = V3 | {"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"}
V4_BF16 = V4 | {"avx512_bf16", "avx512_vnni"}  # every CPU with avx512_bf16 also has avx512_vnni
TILES = {"amx_tile", "amx_bf16"}
# Ordered from best to worst for each machine type. No level uses the bfloat16 instructions of ARM, which the C++ code
# does not support.
LEVELS = (
    Level(
        "x86-64-v4-amx",
        "x86_64",
        frozenset(V4_BF16 | TILES),
        ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni", "-mamx-tile", "-mamx-bf16"),
    ),
    Level("x86-64-v4-bf16", "x86_64", frozenset(V4_BF16), ("-march=x86-64-v4", "-mavx512bf16", "-mavx512vnni")),
    Level("x86-64-v4", "x86_64", frozenset(V4), ("-march=x86-64-v4",)),
    Level("x86-64-v3", "x86_64", frozenset(V3), ("-march=x86-64-v3",)),
    Level("armv8-a", "aarch64", frozenset({"asimd"}), ("-march=armv8-a",)),
)
BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # instructions that multiply bfloat16, on x86-64 and on ARM
NATIVE = Level("native", platform.machine(), frozenset(), ("-march=native",))  # all instructions of this CPU


def levels_of(machine: str) -> tuple[Level, ...]:
    """Return the levels of a machine type, the best first."""
    return tuple(level for level in LEVELS if level.machine == machine)


def missing_instructions(level: Level, cpu: Collection[str]) -> list[str]:
    """Return the instructions that a CPU lacks for a level of its machine type."""
    return sorted(level.needs - set(cpu))


def best_level(machine: str, cpu: Collection[str]) -> Level:
    """Return the highest level that a CPU with these instructions supports, or `NATIVE`."""
    return next((level for level in levels_of(machine) if not missing_instructions(level, cpu)), NATIVE)


def cpu_instructions() -> frozenset[str]:
    """Return the names of this CPU's instructions in Linux; empty on other systems.

    AMX is included only if this process may use its tiles.
    """
    instructions = frozenset(_cpu_line("flags", "Features").split())
    return instructions if not instructions & TILES or _permit_tiles() else instructions - TILES


def _permit_tiles() -> bool:
    """Request permission to use AMX tiles, and return whether Linux granted it.

    Linux requires the request because it has to save 8 KiB of tiles for each thread of a process that uses them.
    """
    libc = ctypes.CDLL(None)
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # constants of Linux's headers for x86-64
    return libc.syscall(arch_prctl, request_permission, tile_data) == 0


def cpu_model() -> str:
    """Return the name of the CPU, or the processor or machine type if the system does not report a name."""
    return _cpu_line("model name", "Model") or platform.processor() or platform.machine()


def cpu_vendor() -> str:
    """Return the vendor of the CPU, such as "GenuineIntel" or "AuthenticAMD"; empty if unknown."""
    return _cpu_line("vendor_id")


def _cpu_line(*names: str) -> str:
    """Return the value of the first line of /proc/cpuinfo with one of these names; "" if there is none.

    Reading stops there, because the lines of many CPUs take milliseconds.
    """
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() in names:
                return value.strip()
    return ""


def find_compiler() -> str | None:
    """Return the path of the C++ compiler in the variable CXX, or else of c++; None if it does not exist."""
    return shutil.which(os.environ.get("CXX") or "c++")


def compile_kernels(compiler: str, level: Level, target: Path) -> None:
    """Write the shared library for a level to `target`. The same compiler writes the same bytes in any folder.

    Raises:
        CompilerError: If the compiler fails or does not finish.
        OSError: If the compiler cannot be run.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        compiled = str(Path(scratch) / "kernels.o")
        _run(compiler, [*FLAGS, *level.flags, "-c", str(SOURCE), "-o", compiled])
        _run(compiler, ["-shared", "-s", compiled, "-o", str(target)])


def _run(compiler: str, arguments: Sequence[str]) -> None:
    # Errors go to a file, since a server that the compiler leaves running, such as a compiler cache, would keep a pipe
    # open. The compiler has its own process group, so that its child processes can be killed together with it.
    with (
        tempfile.TemporaryFile() as errors,
        subprocess.Popen(
            [compiler, *arguments], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=errors,
            start_new_session=True,
        ) as process,
    ):  # fmt: skip
        try:
            code = process.wait(timeout=COMPILE_TIMEOUT)
        except subprocess.TimeoutExpired:
            raise CompilerTimeout(f"{compiler} did not finish within {COMPILE_TIMEOUT:.0f} s") from None
        finally:
            if process.returncode is None:
                _kill(process)
        if code:
            errors.seek(0)
            lines = errors.read(1 << 20).decode(errors="replace").splitlines()
            message = next((f": {line.strip()[:200]}" for line in lines if "error" in line), "")
            raise CompilerError(f"{compiler} failed with exit code {code}{message}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
