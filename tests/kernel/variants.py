"""The kernels as other compilers, instruments and CPUs have them: how each variant is compiled, and run.

    python tests/kernel/variants.py 500000        each variant that this machine can have, and then the fuzz

Two programs try a variant. The driver (`cpp/driver.cpp`) is C++ alone, for what PyTorch is not there for. The fuzz
(`fuzz.py`) calls the operators from Python, with a library that is made as any is: CXX names a script that calls the
compiler with some flags more.
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

HERE = Path(__file__).parent
V3, NO_AVX = ("-march=x86-64-v3",), ("-march=x86-64", "-Wno-psabi")
# AVX-512, and AMX on top of it, in software: the sources of the highest levels on any CPU.
SOFTWARE = (*V3, "-Wno-psabi", "-include", str(HERE / "cpp" / "avx512.h"))
SOFTWARE_AMX = (*SOFTWARE[:-1], str(HERE / "cpp" / "amx.h"))
# Without recovery the first finding ends the process. -O1 keeps the lines of what is found.
ADDRESS = ("-O1", "-g", "-fno-omit-frame-pointer", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
THREAD = ("-O1", "-g", "-fsanitize=thread")
ARM = "aarch64-linux-gnu-g++"


@dataclass(frozen=True)
class Variant:
    """A driver of its own.

    Args:
        cases: of the whole number of them, so many in a hundred: some are slow.
        runner: what runs a program of another CPU.
        options: environment variables of the instrument.
    """

    compiler: str
    flags: tuple[str, ...]
    cases: int = 100
    threads: int = 2
    runner: tuple[str, ...] = ()
    options: dict[str, str] = field(default_factory=dict[str, str])

    def missing(self) -> list[str]:
        """The programs that it needs and that are not here."""
        return [program for program in (self.compiler, *self.runner[:1]) if shutil.which(program) is None]


def archer() -> str:
    """OpenMP's tool that tells ThreadSanitizer of its barriers; a library beside the compiler's own."""
    clang = shutil.which("clang++")
    found = None if clang is None else next(Path(clang).resolve().parents[1].glob("lib/libarcher.so"), None)
    return str(found or "")


# libgomp's barriers are not known to ThreadSanitizer, which calls all that they keep apart a race. clang's libomp tells
# it of them, by archer; what is not instrumented, libomp itself, is not looked at.
OF_THREADS = {"OMP_TOOL_LIBRARIES": archer(), "TSAN_OPTIONS": "ignore_noninstrumented_modules=1:halt_on_error=1"}
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
    "gcc, x86-64-v3, addresses and undefined behaviour": Variant("g++", (*V3, *ADDRESS)),
    "gcc, no AVX, addresses and undefined behaviour": Variant("g++", (*NO_AVX, *ADDRESS)),
    "gcc, v4-bf16 in software, addresses and undefined behaviour": Variant("g++", (*SOFTWARE, *ADDRESS), cases=20),
    "gcc, v4-amx in software, addresses and undefined behaviour": Variant("g++", (*SOFTWARE_AMX, *ADDRESS), cases=20),
    "clang, x86-64-v3, addresses and undefined behaviour": Variant("clang++", (*V3, *ADDRESS)),
    "clang, x86-64-v3, threads": Variant("clang++", (*V3, *THREAD), cases=20, threads=4, options=OF_THREADS),
}


def compile_driver(variant: Variant, folder: Path) -> Path:
    """The driver of a variant, compiled."""
    program = folder / "driver"
    flags = [*FLAGS, "-O2", "-Wno-pass-failed", *variant.flags, f"-I{CPP}"]
    if "clang" not in variant.compiler:
        flags.remove("-Wno-pass-failed")
    done = subprocess.run(
        [variant.compiler, *flags, str(HERE / "cpp" / "driver.cpp"), "-o", str(program)], capture_output=True, text=True
    )
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return program


def run_driver(
    variant: Variant, program: Path, *, cases: int, seed: int = 0, plant: str = ""
) -> subprocess.CompletedProcess[str]:
    """So many cases; `plant` is a fault that must be noticed."""
    command = [*variant.runner, str(program), str(cases), str(seed), str(variant.threads), *filter(None, [plant])]
    environment = {**os.environ, "OMP_WAIT_POLICY": "passive", **variant.options}
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def environment_of(compiler: str, flags: Sequence[str], folder: Path) -> dict[str, str]:
    """That of a Python whose kernels this compiler makes, with these flags behind its own. Names stay in the library:
    a finding says the line."""
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
        # What leaks is Python's; of too much memory PyTorch's own refusal is wanted.
        environment["ASAN_OPTIONS"] = "detect_leaks=0:allocator_may_return_null=1"
    return environment


# The operators from Python: of all cases so many in a hundred.
FUZZED = {
    "gcc, x86-64-v3": ("g++", V3, 40),
    "gcc, x86-64, no AVX": ("g++", NO_AVX, 20),
    "gcc, x86-64-v3, addresses and undefined behaviour": ("g++", (*V3, *ADDRESS), 25),
    "gcc, no AVX, addresses and undefined behaviour": ("g++", (*NO_AVX, *ADDRESS), 5),
    "gcc, v4-bf16 in software, addresses and undefined behaviour": ("g++", (*SOFTWARE, *ADDRESS), 5),
    "gcc, v4-amx in software, addresses and undefined behaviour": ("g++", (*SOFTWARE_AMX, *ADDRESS), 5),
}


def main(cases: int) -> int:
    """The exit code: how many variants found something."""
    findings = 0

    def report(program: str, name: str, start: float, done: subprocess.CompletedProcess[str]) -> None:
        nonlocal findings
        findings += done.returncode != 0
        said = (
            (done.stdout.strip().splitlines() or [""])[-1] if not done.returncode else f"FOUND:\n{done.stderr[-3000:]}"
        )
        print(f"{program}: {name}: {time.monotonic() - start:.0f} s: {said}", flush=True)

    for name, variant in VARIANTS.items():
        if missing := variant.missing():
            print(f"driver: {name}: left out, there is no {' and no '.join(missing)}", flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            program, start = compile_driver(variant, Path(folder)), time.monotonic()
            report("driver", name, start, run_driver(variant, program, cases=cases * variant.cases // 2500))
    for name, (compiler, flags, share) in FUZZED.items():
        with tempfile.TemporaryDirectory() as folder:
            command = [sys.executable, str(HERE / "fuzz.py"), str(cases * share // 100)]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", **environment_of(compiler, flags, Path(folder))}
            start = time.monotonic()
            report("fuzz", name, start, subprocess.run(command, env=environment, capture_output=True, text=True))
    return findings


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
