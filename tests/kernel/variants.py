"""Variants of the kernels (other compilers, sanitizers, CPUs): how each is compiled and run.

    python tests/kernel/variants.py 500000        run each variant that this machine supports, with that many fuzz cases

Two programs test a variant. The driver (`cpp/driver.cpp`) is C++ without PyTorch, for variants that PyTorch does not
support. The fuzz (`fuzz.py`) calls the operators from Python, with a library that is built as usual, except that CXX
names a script that adds flags to the compiler's command.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tercet.kernel.levels import CPP, FLAGS

KERNEL_TESTS = Path(__file__).parent
V3, NO_AVX = ("-march=x86-64-v3",), ("-march=x86-64", "-Wno-psabi")
# Headers that emulate AVX-512 and AMX, to run the sources of the highest levels on any CPU.
SOFTWARE = (*V3, "-Wno-psabi", "-include", str(KERNEL_TESTS / "cpp" / "avx512.h"))
SOFTWARE_AMX = (*SOFTWARE[:-1], str(KERNEL_TESTS / "cpp" / "amx.h"))
# Without recovery, the first finding ends the process. -O1 keeps its line number.
ADDRESS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-O1", "-g", "-fsanitize=thread")
ARM = "aarch64-linux-gnu-g++"


@dataclass(frozen=True)
class Variant:
    """One way to compile and run the driver.

    Args:
        cases: Percentage of the total number of cases, less than 100 for slow variants.
        runner: Command that runs programs of another CPU.
        options: Environment variables of the sanitizer.
    """

    compiler: str
    flags: tuple[str, ...]
    cases: int = 100
    threads: int = 2
    runner: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict[str, str])

    def missing(self) -> list[str]:
        """Return the programs that this variant needs and this machine lacks."""
        return [program for program in (self.compiler, *self.runner[:1]) if shutil.which(program) is None]


def archer() -> str:
    """Return the path of archer, an OpenMP tool that reports barriers to ThreadSanitizer; part of clang."""
    clang = shutil.which("clang++")
    library_path = None if clang is None else next(Path(clang).resolve().parents[1].glob("lib/libarcher.so"), None)
    return str(library_path or "")


# ThreadSanitizer does not recognize libgomp's barriers and reports false races. clang's libomp reports its barriers
# through archer. libomp itself is not instrumented and must be ignored.
THREAD_SANITIZER = {"OMP_TOOL_LIBRARIES": archer(), "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1"}
VARIANTS = {
    "gcc, x86-64-v3": Variant("g++", V3),
    "gcc, x86-64-v3, -ffp-contract=off": Variant("g++", (*V3, "-ffp-contract=off")),
    "gcc, x86-64, no AVX": Variant("g++", NO_AVX),
    "gcc, x86-64-v4-bf16 in software": Variant("g++", SOFTWARE, cases=20),
    "gcc, x86-64-v4-amx in software": Variant("g++", SOFTWARE_AMX, cases=20),
    "gcc, armv8-a in qemu": Variant(
        ARM, ("-march=armv8-a",), cases=20, runner=("qemu-aarch64", "-L", "/usr/aarch64-linux-gnu")
    ),
    "clang, x86-64-v3": Variant("clang++", V3),
    "clang, x86-64-v3, -ffp-contract=off": Variant("clang++", (*V3, "-ffp-contract=off")),
    "gcc, x86-64-v3, addresses and undefined behavior": Variant("g++", (*V3, *ADDRESS)),
    "gcc, no AVX, addresses and undefined behavior": Variant("g++", (*NO_AVX, *ADDRESS)),
    "gcc, v4-bf16 in software, addresses and undefined behavior": Variant("g++", (*SOFTWARE, *ADDRESS), cases=20),
    "gcc, v4-amx in software, addresses and undefined behavior": Variant("g++", (*SOFTWARE_AMX, *ADDRESS), cases=20),
    "clang, x86-64-v3, addresses and undefined behavior": Variant("clang++", (*V3, *ADDRESS)),
    "clang, x86-64-v3, threads": Variant("clang++", (*V3, *THREAD), cases=20, threads=4, options=THREAD_SANITIZER),
}


def compile_driver(variant: Variant, folder: Path) -> Path:
    """Compile the driver of a variant and return its path."""
    program = folder / "driver"
    flags = [*FLAGS, "-O2", "-Wno-pass-failed", *variant.flags, f"-I{CPP}"]
    if "clang" not in variant.compiler:
        flags.remove("-Wno-pass-failed")
    process = subprocess.run(
        [variant.compiler, *flags, str(KERNEL_TESTS / "cpp" / "driver.cpp"), "-o", str(program)],
        capture_output=True,
        text=True,
    )
    if process.returncode:
        raise RuntimeError(process.stderr[-3000:])
    return program


def run_driver(
    variant: Variant, program: Path, *, cases: int, seed: int = 0, plant: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run the driver for some cases; `plant` names a fault that must be detected."""
    command = [*variant.runner, str(program), str(cases), str(seed), str(variant.threads), *filter(None, [plant])]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **variant.options}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def build_environment(compiler: str, flags: Sequence[str], folder: Path) -> dict[str, str]:
    """Return an environment in which Python's kernels are built by this compiler with additional flags.

    Symbols are kept, so that findings have line numbers.
    """
    script = folder / "c++"
    script.write_text(
        '#!/bin/sh\nunset LD_PRELOAD\nfor word; do shift; [ "$word" = -s ] || set -- "$@" "$word"; done\n'
        f'exec {compiler} "$@" {" ".join(flags)}\n'
    )
    script.chmod(0o755)
    environment = {"CXX": str(script), "TERCET_CACHE": str(folder / "cache"), "TERCET_KERNEL": "native"}
    if "-fsanitize=address,undefined" in flags:
        names = ("libasan.so", "libubsan.so", "libstdc++.so")
        paths = [
            subprocess.run([compiler, f"-print-file-name={name}"], capture_output=True, text=True, check=True).stdout
            for name in names
        ]
        environment["LD_PRELOAD"] = " ".join(path.strip() for path in paths)
        # Leaks are Python's own, and PyTorch's error for excessive sizes is expected.
        environment["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1"
    return environment


# Variants for the Python fuzz, each with a percentage of the cases.
FUZZ_BUILDS = {
    "gcc, x86-64-v3": ("g++", V3, 40),
    "gcc, x86-64, no AVX": ("g++", NO_AVX, 20),
    "gcc, x86-64-v3, addresses and undefined behavior": ("g++", (*V3, *ADDRESS), 25),
    "gcc, no AVX, addresses and undefined behavior": ("g++", (*NO_AVX, *ADDRESS), 5),
    "gcc, v4-bf16 in software, addresses and undefined behavior": ("g++", (*SOFTWARE, *ADDRESS), 5),
    "gcc, v4-amx in software, addresses and undefined behavior": ("g++", (*SOFTWARE_AMX, *ADDRESS), 5),
}


def main(cases: int) -> int:
    """Run all variants and return the number of findings as the exit code."""
    findings = 0

    def report(program: str, name: str, start: float, process: subprocess.CompletedProcess[str]) -> None:
        nonlocal findings
        findings += process.returncode != 0
        summary = (
            (process.stdout.strip().splitlines() or [""])[-1]
            if not process.returncode
            else f"FOUND:\n{process.stderr[-3000:]}"
        )
        print(f"{program}: {name}: {time.monotonic() - start:.0f} s: {summary}", flush=True)

    for name, variant in VARIANTS.items():
        if missing := variant.missing():
            print(f"driver: {name}: left out, there is no {' and no '.join(missing)}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            program, start = compile_driver(variant, Path(folder)), time.monotonic()
            report("driver", name, start, run_driver(variant, program, cases=cases * variant.cases // 2500))
    for name, (compiler, flags, share) in FUZZ_BUILDS.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(KERNEL_TESTS / "fuzz.py"), str(cases * share // 100)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **build_environment(compiler, flags, Path(folder))}
            start = time.monotonic()
            report("fuzz", name, start, subprocess.run(command, env=environment, capture_output=True, text=True))
    return findings


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
