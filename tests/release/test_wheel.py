"""The wheels, with and without kernels, have reproducible bytes and work with only their declared dependencies."""

import hashlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest
from wheels import ANY, MACHINE, ROOT, SDIST, copy_project, tercet

from tercet.kernel import build_id
from tercet.kernel.build import choose_kernels
from tercet.kernel.levels import Level, cpu_instructions, find_compiler, levels_of, missing_instructions

Build = Callable[..., Path]
LEVELS = levels_of(platform.machine()) if platform.libc_ver()[0] == "glibc" and find_compiler() else ()
RUNNABLE = [level for level in LEVELS if not missing_instructions(level, cpu_instructions())]
needs_levels = pytest.mark.skipif(not RUNNABLE, reason="no C++ compiler, or no supported instruction set")
WITH_KERNELS = pytest.param(MACHINE, marks=[needs_levels, pytest.mark.exhaustive])  # half a minute to build


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.slow
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(SDIST, marks=pytest.mark.exhaustive),
        ANY,
        pytest.param(MACHINE, marks=[needs_levels, pytest.mark.exhaustive]),
    ],
)
def test_two_builds_give_the_same_bytes(build_wheel: Build, kind: str) -> None:
    first, second = build_wheel(kind, "a"), build_wheel(kind, "another-folder")
    assert first.name == second.name
    assert digest(first) == digest(second)


@pytest.mark.exhaustive
def test_other_sources_give_another_wheel(
    release: ModuleType, build_wheel: Build, tmp_path: Path
) -> None:  # fmt: skip
    source = copy_project(tmp_path / "source")
    with (source / "src" / "tercet" / "cache_dir.py").open("a") as file:
        file.write("\n")
    release.build(source, tmp_path / "dist", epoch=1_600_000_000)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert digest(wheel) != digest(build_wheel(ANY))


@pytest.mark.parametrize("kind", [ANY, WITH_KERNELS])
def test_a_wheel_contains_only_the_package_and_its_kernels(
    build_wheel: Build, kind: str
) -> None:  # fmt: skip
    path = build_wheel(kind)
    with ZipFile(path) as wheel:
        names = wheel.namelist()
    dist_info = "-".join(path.name.split("-")[:2]) + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"tercet", dist_info}
    package_files = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    kernels = {f"tercet/kernel/prebuilt/{level.name}.so" for level in LEVELS if kind == MACHINE}
    assert {name for name in names if name.startswith("tercet/")} == package_files | kernels


@pytest.mark.exhaustive
@needs_levels
def test_the_tag_of_the_wheel_with_kernels_is_correct(build_wheel: Build, tmp_path: Path) -> None:
    """The tag has the newest glibc version of any symbol, and libraries are those that PyTorch also needs."""
    path = build_wheel(MACHINE)
    with ZipFile(path) as wheel:
        wheel.extractall(tmp_path)
    wheel_files = [file.read_text() for file in tmp_path.glob("*.dist-info/WHEEL")]
    tag = path.name.removesuffix(".whl").split("-", 2)[2]
    assert [line.split(": ")[1] for line in wheel_files[0].splitlines() if line.startswith("Tag")] == [tag]
    assert "Root-Is-Purelib: false" in wheel_files[0]
    libraries = sorted(tmp_path.rglob("*.so"))
    assert len(libraries) == len(LEVELS)
    headers = "".join(
        subprocess.run(["objdump", "-p", library], capture_output=True, text=True, check=True).stdout
        for library in libraries
    )
    glibc = max(int(number) for number in re.findall(r" GLIBC_2\.(\d+)", headers))
    assert tag == f"py3-none-manylinux_2_{glibc}_{platform.machine()}"
    assert max((int(number) for number in re.findall(r" GLIBCXX_3\.4\.(\d+)", headers)), default=0) <= 24
    loader = ("ld-linux", "libc.so", "libm.so", "libgcc_s.so", "libstdc++.so")
    assert [name for name in re.findall(r"NEEDED +(\S+)", headers) if not name.startswith(loader)] == []


@pytest.mark.parametrize(
    ("packages", "words", "faulty"),
    [
        ([{"name": "a", "vulns": []}, {"name": "b", "vulns": []}], "2 packages looked up", False),
        (
            [{"name": "a", "vulns": [{"id": "PYSEC-1"}]}, {"name": "b", "vulns": []}],
            "2 packages looked up; known faults: a PYSEC-1",
            True,
        ),
        (
            [{"name": "a", "skip_reason": "not found"}, {"name": "b", "vulns": []}],
            "1 packages looked up; NOT LOOKED UP, unknown to the service: 1",
            False,
        ),
        (None, "NOT LOOKED UP: no network", False),
    ],
)
def test_an_audit_without_answers_is_reported(
    release: ModuleType,
    packages: list[object] | None,
    words: str,
    faulty: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """If the service knows no package, pip-audit itself reports "No known vulnerabilities found"."""
    report = "" if packages is None else f"open(sys.argv[-1], 'w').write({json.dumps({'dependencies': packages})!r})"
    script = tmp_path / "pip-audit"
    script.write_text(f"#!{sys.executable}\nimport sys\n{report}\nsys.exit('details\\nno network')\n")
    script.chmod(0o755)
    monkeypatch.setattr(release, "TOOLS", tmp_path)
    assert release.audit(tmp_path / "some.lock") == (f"some.lock: {words}", faulty)


@pytest.mark.exhaustive  # test_stories.py runs commands of the installed wheel
def test_the_installed_wheel_is_imported(installed: Path, tmp_path: Path) -> None:
    code = "import tercet, tercet.kernel; print(tercet.__file__, tercet.kernel.warm_up())"
    command = [installed / "bin" / "python", "-c", code]
    environment = {"PATH": str(installed / "bin"), "HOME": str(tmp_path), "TERCET_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    file, compiled = result.stdout.split()
    assert Path(file).is_relative_to(installed)
    assert compiled == "False"  # no compiler: fallback to PyTorch
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.exhaustive
@needs_levels
def test_prebuilt_kernels_are_used_without_compiling(installed_with_kernels: Path, tmp_path: Path) -> None:
    """No compiler is available."""
    report = json.loads(tercet(installed_with_kernels, "doctor", "--json", folder=tmp_path))
    assert report["compiler"] is None
    assert (report["kernel_level"], report["kernel_origin"]) == (RUNNABLE[0].name, "prebuilt")
    train_and_write(installed_with_kernels, tmp_path)
    [state] = tmp_path.glob("run/checkpoints/*/state.ckpt")
    assert report["kernel_build"].encode() in state.read_bytes()  # part of the arithmetic that an exact resume requires
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.exhaustive
@needs_levels
def test_each_prebuilt_instruction_set_can_be_selected(installed_with_kernels: Path, tmp_path: Path) -> None:
    builds = {level.name: kernels_of(installed_with_kernels, level, tmp_path) for level in RUNNABLE}
    assert len(set(builds.values())) == len(builds)


@pytest.mark.exhaustive
@needs_levels
@pytest.mark.skipif(choose_kernels().origin != "compiled", reason="no kernels were compiled here")
def test_compiled_kernels_equal_prebuilt_ones(installed_with_kernels: Path, tmp_path: Path) -> None:
    """Either build can resume a run of the other bit for bit, at equal speed."""
    level = next((level for level in RUNNABLE if level.name == choose_kernels().level), None)
    if level is None:
        pytest.skip("the compiler supports none of the instruction sets")
    assert kernels_of(installed_with_kernels, level, tmp_path) == build_id()


def kernels_of(installed: Path, level: Level, folder: Path) -> str:
    """Return the build id of the kernels in a process that requests this level."""
    names = "build_id(), k().level, k().origin, k().reason"
    code = f"from tercet.kernel.build import build_id, choose_kernels as k; print({names})"
    result = subprocess.run(
        [installed / "bin" / "python", "-c", code], env={"PATH": "", "TERCET_KERNEL": level.name}, cwd=folder,
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    build, *choice = result.stdout.split()
    assert choice == [level.name, "prebuilt", f"TERCET_KERNEL={level.name}"]
    return build


@pytest.mark.exhaustive  # a guide trains and serves in the same way
def test_without_a_compiler_a_model_is_trained_and_writes(installed: Path, tmp_path: Path) -> None:
    train_and_write(installed, tmp_path)


def train_and_write(installed: Path, tmp_path: Path) -> None:
    assert "tercet" in tercet(installed, "--help", folder=tmp_path)
    settings = (
        "training.max_steps=20",
        "training.validate_every=20",
        "training.compile=never",
        "model.stack.n_layers=1",
    )
    changes = [word for setting in settings for word in ("--set", setting)]
    tercet(installed, "train", "demo", "--out", "run", "--quiet", *changes, folder=tmp_path)
    text = tercet(installed, "generate", "run", "--prompt", "cats", "--max-new-tokens", "8", folder=tmp_path)
    assert text.startswith("cats")
    assert len(text) > len("cats\n")
    scores = tercet(installed, "evaluate", "run", "--json", folder=tmp_path)
    assert "nats_per_token" in scores
    assert not list(tmp_path.rglob("*.so"))
