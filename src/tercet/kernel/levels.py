"""For which CPUs a wheel carries kernels, which of these are for this one, and how all of them are compiled.

A level is a set of instructions. The same flags compile it into a wheel and where it is missing, so that the same
compiler gives the same code in both places. A CPU that has no level has kernels of its own, compiled where it is.

Standard library alone: a wheel is built (`hatch_build.py`) where PyTorch is not.
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
SOURCE = CPP / "kernels.cpp"  # the headers beside it are its parts
PREBUILT = Path(__file__).parent / "prebuilt"  # a library for each level, in a wheel for one kind of machine
# OpenMP is compiled in and not linked: its calls then find the threads that PyTorch has, where a second library would
# start as many again.
FLAGS = ("-O3", "-fno-math-errno", "-ffp-contract=fast", "-fopenmp", "-fPIC", "-std=c++17")
COMPILE_TIMEOUT = 60.0  # for one library; it takes 5 on a laptop


class CompilerError(Exception):
    """The words: what it said last, or that it did not end."""


class CompilerTimeout(CompilerError):
    """It had not ended after `COMPILE_TIMEOUT`."""


@dataclass(frozen=True)
class Level:
    """A kind of CPU.

    Args:
        machine: what `platform.machine` calls it.
        needs: the instructions that it must have, as /proc/cpuinfo calls them.
        flags: of the compiler.
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
V4_BF16 = V4 | {"avx512_bf16", "avx512_vnni"}  # every CPU with the first has the second
TILES = {"amx_tile", "amx_bf16"}
# The best of a machine comes first. The sources have nothing for ARM's bfloat16: no level of that.
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
BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})  # products of it in one instruction, on x86-64 and on ARM
NATIVE = Level("native", platform.machine(), frozenset(), ("-march=native",))  # whatever the compiler finds here


def levels_of(machine: str) -> tuple[Level, ...]:
    """Those of a kind of machine, the best first."""
    return tuple(level for level in LEVELS if level.machine == machine)


def missing_instructions(level: Level, cpu: Collection[str]) -> list[str]:
    """What a CPU lacks for a level of its kind of machine; empty where it runs it."""
    return sorted(level.needs - set(cpu))


def best_level(machine: str, cpu: Collection[str]) -> Level:
    """The highest of the levels that a CPU with these instructions runs; `NATIVE` where there is none."""
    return next((level for level in levels_of(machine) if not missing_instructions(level, cpu)), NATIVE)


def cpu_instructions() -> frozenset[str]:
    """Of this CPU, as Linux calls them; empty elsewhere. AMX is among them where this process may have tiles."""
    instructions = frozenset(_cpu_line("flags", "Features").split())
    return instructions if not instructions & TILES or _permit_tiles() else instructions - TILES


def _permit_tiles() -> bool:
    """Ask the kernel to keep this process's tiles too, 8 KiB a thread, which it does on request alone."""
    libc = ctypes.CDLL(None)
    arch_prctl, request_permission, tile_data = 158, 0x1023, 18  # as Linux's headers have them for x86-64
    return libc.syscall(arch_prctl, request_permission, tile_data) == 0


def cpu_model() -> str:
    """The CPU's name, where the system says one."""
    return _cpu_line("model name", "Model") or platform.processor() or platform.machine()


def cpu_vendor() -> str:
    """As the CPU itself says, "GenuineIntel" or "AuthenticAMD"; empty where it does not."""
    return _cpu_line("vendor_id")


def _cpu_line(*names: str) -> str:
    """What stands behind one of these names, of the first CPU: all of many take milliseconds to read."""
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() in names:
                return value.strip()
    return ""


def find_compiler() -> str | None:
    """The C++ compiler that CXX names, else c++; None where it is not there."""
    return shutil.which(os.environ.get("CXX") or "c++")


def compile_kernels(compiler: str, level: Level, target: Path) -> None:
    """Write the shared library for a level: the same bytes from the same compiler, whatever folder it is in.

    Raises:
        CompilerError: where it ends with an error, or does not end.
        OSError: where it cannot be run.
    """
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        compiled = str(Path(scratch) / "kernels.o")
        _run(compiler, [*FLAGS, *level.flags, "-c", str(SOURCE), "-o", compiled])
        _run(compiler, ["-shared", "-s", compiled, "-o", str(target)])


def _run(compiler: str, arguments: Sequence[str]) -> None:
    # To a file, for a server that the compiler leaves behind (as caches of compilers do) would hold a pipe open; and in
    # a group of its own, for the programs that the compiler calls go on when it alone is killed.
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
            raise CompilerTimeout(f"{compiler} had not ended after {COMPILE_TIMEOUT:.0f} s") from None
        finally:
            if process.returncode is None:
                _kill(process)
        if code:
            errors.seek(0)
            lines = errors.read(1 << 20).decode(errors="replace").splitlines()
            message = next((f": {line.strip()[:200]}" for line in lines if "error" in line), "")
            raise CompilerError(f"{compiler} ended with exit code {code}{message}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    if sys.platform == "win32":
        process.kill()
    else:
        os.killpg(process.pid, signal.SIGKILL)
