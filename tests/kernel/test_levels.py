"""Choice of the kernels of a process (the wheel's, locally compiled ones, or none), and how it is reported."""

import itertools
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tercet.config import UserError
from tercet.kernel import build, build_id, levels, library_cache
from tercet.kernel.build import KernelChoice, choose_kernels, kernels, library
from tercet.kernel.levels import (
    LEVELS,
    NATIVE,
    Level,
    best_level,
    compile_kernels,
    cpu_instructions,
    levels_of,
    missing_instructions,
)
from tercet.training.run_folder.arithmetic import describe_arithmetic

Compiler = Callable[[str], Path]
needs_kernels = pytest.mark.skipif(library() is None, reason="no C++ compiler")
LEVEL_BY_NAME = {level.name: level for level in LEVELS}


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new machine with an AVX-512 CPU, no kernels of a wheel and an empty cache."""
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TERCET_KERNEL", raising=False)
    monkeypatch.setattr(build, "PREBUILT", tmp_path / "prebuilt")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(build, "cpu_instructions", lambda: LEVEL_BY_NAME["x86-64-v4"].needs)
    (tmp_path / "prebuilt").mkdir()
    return tmp_path


@pytest.fixture
def compiler(machine: Path, monkeypatch: pytest.MonkeyPatch) -> Compiler:
    """Return a function that makes a compiler, which logs its arguments and then runs a command."""

    def make(does: str) -> Path:
        script = machine / "c++"
        script.write_text(f'#!/bin/sh\necho "$@" >> "{machine}/calls"\nfor last; do :; done\n{does}\n')
        script.chmod(0o755)
        monkeypatch.setenv("CXX", str(script))
        return script

    return make


def calls(machine: Path) -> list[str]:
    path = machine / "calls"
    return path.read_text().splitlines() if path.exists() else []


def choose() -> KernelChoice:
    """Choose kernels as a new process does."""
    return choose_kernels.__wrapped__()


def copy_arithmetic() -> str:
    """Return the command of a compiler that outputs the kernels of this process."""
    return f'cp "{kernels()._name}" "$last"'


@pytest.mark.parametrize(
    ("machine", "lacks", "level"),
    [
        ("x86_64", (), "x86-64-v4-amx"),
        ("x86_64", ("amx_bf16",), "x86-64-v4-bf16"),
        ("x86_64", ("avx512_bf16",), "x86-64-v4"),
        ("x86_64", ("avx512_vnni",), "x86-64-v4"),
        ("x86_64", ("avx512vl", "avx512_bf16"), "x86-64-v3"),
        ("x86_64", ("avx512bw",), "x86-64-v3"),  # only part of a level's instructions, which would raise SIGILL
        ("x86_64", ("fma",), "native"),
        ("riscv64", (), "native"),
    ],
)
def test_highest_fully_supported_level_is_chosen(machine: str, lacks: tuple[str, ...], level: str) -> None:
    cpu = {*LEVEL_BY_NAME["x86-64-v4-amx"].needs, "amx_int8", "sse"} - set(lacks)
    assert best_level(machine, cpu).name == level
    assert best_level("aarch64", {"fp", "asimd"}).name == "armv8-a"
    assert best_level("aarch64", ()).name == "native"


@pytest.mark.parametrize("has_permission", [True, False])
def test_amx_requires_permission_of_the_process(has_permission: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    amx = LEVEL_BY_NAME["x86-64-v4-amx"].needs
    monkeypatch.setattr(levels, "_cpu_line", lambda *_: " ".join(sorted(amx)))
    monkeypatch.setattr(levels, "_permit_tiles", lambda: has_permission)
    assert cpu_instructions() == (amx if has_permission else amx - {"amx_tile", "amx_bf16"})
    assert best_level("x86_64", cpu_instructions()).name == ("x86-64-v4-amx" if has_permission else "x86-64-v4-bf16")


def test_higher_levels_include_lower_levels() -> None:
    assert all(low.needs < high.needs for high, low in itertools.pairwise(levels_of("x86_64")))


def test_levels_can_be_listed_without_pytorch() -> None:
    """The module must run without PyTorch, since it is used while a wheel is built."""
    subprocess.run([sys.executable, "-S", "-W", "error", levels.__file__], env={}, check=True)


@needs_kernels
def test_kernels_of_the_wheel_are_used_without_compiling(
    machine: Path, compiler: Compiler, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler(copy_arithmetic())
    shutil.copy(kernels()._name, machine / "prebuilt" / "x86-64-v4.so")
    choice = choose()
    assert (choice.level, choice.origin) == ("x86-64-v4", "prebuilt")
    assert choice.reason == "the highest level that this CPU supports"
    assert choice.library is not None
    assert calls(machine) == []
    assert not (machine / "cache").exists()
    assert capsys.readouterr().err == ""


@needs_kernels
@pytest.mark.parametrize("content", [b"", b"no library"])
def test_kernels_that_cannot_be_loaded_are_compiled(machine: Path, compiler: Compiler, content: bytes) -> None:
    (machine / "prebuilt" / "x86-64-v4.so").write_bytes(content)
    compiler(copy_arithmetic())
    choice = choose()
    assert (choice.level, choice.origin) == ("x86-64-v4", "compiled")
    assert "the kernels of the installed package cannot be loaded" in choice.reason


@needs_kernels
def test_missing_kernels_are_compiled_once_with_the_flags_of_the_level(
    machine: Path, compiler: Compiler, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler(copy_arithmetic())
    choice = choose()
    assert (choice.level, choice.origin) == ("x86-64-v4", "compiled")
    assert capsys.readouterr().err == "tercet: compiling the CPU kernels once, which takes about 15 s\n"
    compile_call, link_call = calls(machine)
    assert "-march=x86-64-v4 -c " in compile_call
    assert link_call.startswith("-shared ")
    assert choose().origin == "compiled"
    assert len(calls(machine)) == 2
    assert capsys.readouterr().err == ""


@needs_kernels
def test_cpu_without_a_level_gets_native_kernels(
    machine: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build, "cpu_instructions", lambda: frozenset({"sse2"}))
    compiler(copy_arithmetic())
    choice = choose()
    assert (choice.level, choice.origin) == ("native", "compiled")
    assert choice.reason == "this CPU does not support any level"
    assert "-march=native" in calls(machine)[0]


@needs_kernels
def test_compiler_older_than_the_level_compiles_for_the_native_cpu(machine: Path, compiler: Compiler) -> None:
    compiler(f'case "$*" in *x86-64-v4*) echo "error: bad value" >&2; exit 1;; esac\n{copy_arithmetic()}')
    for _ in range(2):
        choice = choose()
        assert (choice.level, choice.origin) == ("native", "compiled")
        assert "the compiler does not support x86-64-v4" in choice.reason
    assert len(calls(machine)) == 3  # the failure is cached


@needs_kernels
def test_unwritable_cache_disables_kernels(machine: Path, compiler: Compiler) -> None:
    compiler(copy_arithmetic())
    (machine / "cache").mkdir(exist_ok=True)
    (machine / "cache" / "kernels").write_text("in the way")
    assert choose().origin == "none"


def test_failing_compiler_is_called_once(
    machine: Path, compiler: Compiler, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = compiler('echo "kernels.cpp:1: error: no \033[31mheader" >&2; exit 1')
    choice = choose()
    why = f"{script} failed with exit code 1: kernels.cpp:1: error: no \\x1b[31mheader"
    notice, warning = capsys.readouterr().err.splitlines()
    assert notice == "tercet: compiling the CPU kernels once, which takes about 15 s"
    assert warning == f"tercet: no compiled kernels, using PyTorch: {why}"
    assert (choice.level, choice.origin, choice.library) == ("none", "none", None)
    before = len(calls(machine))
    second_choice = choose()
    assert why in second_choice.reason
    assert "retried after a day, or when " in second_choice.reason
    assert (len(calls(machine)), capsys.readouterr().err) == (before, "")
    # Other compilers, a day's time or a removed file are reasons to try again.
    os.utime(script, ns=(1, 1))
    choose()
    assert len(calls(machine)) == 2 * before
    failures = list((machine / "cache" / "kernels").glob("*.failed"))
    yesterday = time.time() - library_cache.FAILURE_LIFETIME - 1
    for path in failures:
        os.utime(path, (yesterday, yesterday))
    choose()
    assert len(calls(machine)) == 3 * before
    for path in failures:
        path.unlink()
    choose()
    assert len(calls(machine)) == 4 * before


@pytest.mark.slow
def test_hanging_compiler_is_killed_with_its_children_and_called_once(
    machine: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tercet.kernel.levels.COMPILE_TIMEOUT", 0.5)
    compiler(f'sleep 600 & echo $! > "{machine}/child"; wait')
    start = time.monotonic()
    assert "did not finish within " in choose().reason
    assert choose().origin == "none"
    assert time.monotonic() - start < 30  # of a limit of ten minutes
    assert len(calls(machine)) == 1
    child = Path("/proc", (machine / "child").read_text().strip(), "stat")
    for _ in range(100):
        if not child.exists() or child.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail("a process of the compiler is still running")


def test_server_started_by_the_compiler_is_not_waited_for(machine: Path, compiler: Compiler) -> None:
    """Compiler caches leave such a server running, which keeps the compiler's output open."""
    script = compiler('sleep 5 & echo > "$last"')
    start = time.monotonic()
    compile_kernels(str(script), NATIVE, machine / "kernels.so")
    assert time.monotonic() - start < 4


def test_without_a_compiler_there_are_no_kernels_and_a_reason(
    machine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    choice = choose()
    assert choice.origin == "none"
    assert "no C++ compiler found (/nowhere/c++)" in choice.reason
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("v4", "TERCET_KERNEL='v4' is not a level of this machine; set it to one of auto, off, x86-64-v4-amx, "),
        ("armv8-a", "TERCET_KERNEL='armv8-a' is not a level of this machine"),
        (
            "x86-64-v4-bf16",
            "TERCET_KERNEL='x86-64-v4-bf16' requires avx512_bf16, avx512_vnni, which this CPU does not support",
        ),
    ],
)
def test_unsupported_level_is_rejected(machine: Path, name: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_KERNEL", name)
    with pytest.raises(UserError) as error:
        choose()
    assert str(error.value).startswith(words)
    assert "\n" not in str(error.value)


@needs_kernels
@pytest.mark.parametrize("name", ["x86-64-v3", "x86-64-v4", "native"])
def test_level_can_be_selected(machine: Path, compiler: Compiler, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler(copy_arithmetic())
    monkeypatch.setenv("TERCET_KERNEL", name)
    choice = choose()
    assert (choice.level, choice.origin) == (name, "compiled")
    assert choice.reason.startswith(f"TERCET_KERNEL={name}")


def test_selected_level_has_no_substitute(machine: Path, compiler: Compiler, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler("exit 1")
    monkeypatch.setenv("TERCET_KERNEL", "x86-64-v3")
    assert choose().origin == "none"
    assert len(calls(machine)) == 1


@needs_kernels
def test_arithmetic_is_identified_by_level_and_code(monkeypatch: pytest.MonkeyPatch) -> None:
    def recorded_id() -> str:
        return describe_arithmetic(accelerator="cpu", precision="fp32", matmul="highest", compiled=False)["kernels"]

    current_id = recorded_id()
    assert current_id == build_id()
    assert current_id.startswith(f"{choose_kernels().level}-")
    other_choice = KernelChoice("x86-64-v1", "prebuilt", "", kernels())
    monkeypatch.setattr(build, "choose_kernels", lambda: other_choice)
    assert recorded_id() not in (current_id, "none")
    monkeypatch.setattr(build, "choose_kernels", lambda: KernelChoice("none", "none", ""))
    assert recorded_id() == "none"


@pytest.mark.exhaustive  # test_variants.py compares the kernels of one level with plain loops
@needs_kernels
@pytest.mark.parametrize("level", LEVELS[1:], ids=lambda level: level.name)
def test_kernels_pass_their_tests_at_each_level(level: Level) -> None:
    """Run with other levels; the remaining tests use the highest level of this CPU."""
    runnable = [
        level_ for level_ in levels_of(os.uname().machine) if not missing_instructions(level_, cpu_instructions())
    ]
    if level not in runnable[1:]:
        pytest.skip("not supported by this CPU, or its default")
    arithmetic = "formula or written_out or pytorch or full_sort or softmax or does_not_depend_on or threads or bitwise"
    command = [sys.executable, "-m", "pytest", "-p", "no:xdist", "-m", "not slow", "-k", arithmetic]
    command.append(str(Path(__file__).parent))
    process = subprocess.run(command, env={**os.environ, "TERCET_KERNEL": level.name}, capture_output=True, text=True)
    assert process.returncode == 0, process.stdout[-5000:]
