"""A part of `make sanitize`: kernels of other compilers, sanitizers and CPUs, and faults that each must detect."""

import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import fuzz
import pytest
import torch
from variants import NO_AVX, SOFTWARE, VARIANTS, Variant, compile_driver, run_driver

from tercet.kernel.build import library
from tercet.kernel.levels import FLAGS, SOURCE, levels_of

# Without -Wsign-conversion: sizes are signed, because differences may be negative, but vectors count unsigned.
WARNINGS = ("-Werror", "-Wall", "-Wextra", "-Wshadow", "-Wconversion", "-Wno-sign-conversion", "-Wno-psabi")
SLICE = (
    "gcc, x86-64-v3, addresses and undefined behavior",
    "gcc, x86-64, no AVX",
    "gcc, armv8-a in qemu",
    "gcc, x86-64-v4-amx in software",
    "clang, x86-64-v3, threads",
)
FAULTS = {
    "gcc, x86-64-v3, addresses and undefined behavior": {
        "overread": "heap-buffer-overflow", "overflow": "signed integer overflow",
    },
    "clang, x86-64-v3, threads": {"race": "data race"},
}  # fmt: skip


def needs(variant: Variant) -> None:
    if missing := variant.missing():
        pytest.skip(f"{' and '.join(missing)} not installed")


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", SLICE)
def test_variant_matches_plain_loops_and_detects_planted_faults(name: str, tmp_path: Path) -> None:
    variant = VARIANTS[name]
    needs(variant)
    variant = replace(variant, flags=(*variant.flags, "-O0"))  # to compile in seconds
    program = compile_driver(variant, tmp_path)
    process = run_driver(variant, program, cases=600)
    count = 17 if "amx" in name else 15  # two more kernels multiply bfloat16
    assert (process.returncode, process.stdout) == (0, f"600 cases of {count} kernels\n"), process.stderr
    for fault, words in FAULTS.get(name, {"overread": ""}).items():
        driver_run = run_driver(variant, program, cases=0, plant=fault)
        assert driver_run.returncode != 0
        assert words in driver_run.stderr


HIGHEST, *LOWER = (level.flags for level in levels_of("x86_64"))
SYNTAX = [
    ("g++", HIGHEST),
    *(pytest.param("g++", flags, marks=pytest.mark.exhaustive) for flags in (NO_AVX, *LOWER)),
    *(pytest.param("clang++", flags, marks=pytest.mark.exhaustive) for flags in (NO_AVX, HIGHEST, *LOWER)),
]


@pytest.mark.slow
@pytest.mark.parametrize(("compiler", "flags"), SYNTAX)
def test_compilers_emit_no_warnings(compiler: str, flags: tuple[str, ...]) -> None:
    if shutil.which(compiler) is None:
        pytest.skip(f"{compiler} is not installed")
    # Without flow analysis: GCC's header for AVX-512 leaves numbers uninitialized on purpose (its bug 105593).
    command = [compiler, *FLAGS, *flags, *WARNINGS, "-fsyntax-only", str(SOURCE)]
    process = subprocess.run(command, capture_output=True, text=True)
    assert process.returncode == 0, process.stderr


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
def test_warning_is_detected(tmp_path: Path) -> None:
    source = tmp_path / "narrow.cpp"
    source.write_text("float narrow(long x) { return x; }\n")
    process = subprocess.run(["c++", *WARNINGS, "-fsyntax-only", str(source)], capture_output=True, text=True)
    assert "conversion" in process.stderr


def test_emulation_needs_no_special_instructions() -> None:
    assert "-march=x86-64-v3" in SOFTWARE
    assert not any("avx512" in flag.removesuffix("avx512.h") for flag in SOFTWARE)


@pytest.mark.slow
@pytest.mark.skipif(library() is None, reason="no C++ compiler")
def test_operators_return_or_raise_for_any_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    fuzz.main(800)
    words = capsys.readouterr().out
    assert words.startswith("800 cases")
    assert ": 400 right, " in words


@pytest.mark.skipif(library() is None, reason="no C++ compiler")
def test_fuzz_detects_a_wrong_result_and_names_the_case(monkeypatch: pytest.MonkeyPatch) -> None:
    honest = fuzz.inference_linear

    def inference_linear(pick: Any) -> fuzz.Case:
        case = honest(pick)
        return case._replace(formula=lambda *arguments: case.formula(*arguments) + 0.1)

    monkeypatch.setattr(fuzz, "CASES", [inference_linear])
    with pytest.raises(AssertionError) as error:
        fuzz.main(2)
    assert error.value.__notes__ == ["inference_linear, case 0 of seed 0"]


@pytest.mark.skipif(library() is None, reason="no C++ compiler")
def test_case_does_not_depend_on_earlier_cases() -> None:
    def arguments(number: int) -> list[Any]:
        recorded_arguments: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(fuzz, "check", lambda case, name, **_: recorded_arguments.extend(case.arguments) or True)
            fuzz.run(number, 3, fuzz.CASES)
        return recorded_arguments

    first = arguments(20)
    arguments(7)
    for x, y in zip(first, arguments(20), strict=True):
        assert torch.equal(x, y) if isinstance(x, torch.Tensor) else x == y
