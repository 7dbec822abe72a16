"""The wheel is the same wherever it is built, and works where there is nothing but what it asks for."""

import hashlib
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from types import ModuleType
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    spec = importlib.util.spec_from_file_location("release", ROOT / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def copied(target: Path) -> Path:
    """The project's files, as a checkout has them."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout: no list of the project's files")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target / name)
            if os.access(ROOT / name, os.X_OK):
                (target / name).chmod((target / name).stat().st_mode | 0o100)
    return target


@pytest.fixture(scope="module")
def built(release: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Path]]:
    """By kind, from two folders of other names, umasks and times."""
    results = list[dict[str, Path]]()
    for name, umask, time in (("a", 0o022, 1_500_000_000), ("another-folder", 0o077, 1_700_000_000)):
        folder = tmp_path_factory.mktemp("built") / name
        before = os.umask(umask)
        try:
            source = copied(folder / "source")
            for path in source.rglob("*"):
                os.utime(path, (time, time))
            release.build(source, folder / "dist", epoch=1_600_000_000)
        finally:
            os.umask(before)
        results.append({path.suffix: path for path in (folder / "dist").iterdir()})
    return results


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", [".whl", ".gz"])
def test_two_builds_give_the_same_bytes(built: list[dict[str, Path]], kind: str) -> None:
    first, second = (files[kind] for files in built)
    assert first.name == second.name
    assert digest(first) == digest(second)


def test_other_sources_give_another_wheel(
    release: ModuleType, built: list[dict[str, Path]], tmp_path: Path
) -> None:  # fmt: skip
    source = copied(tmp_path / "source")
    with (source / "src" / "tercet" / "cache_dir.py").open("a") as file:
        file.write("\n")
    release.build(source, tmp_path / "dist", epoch=1_600_000_000)
    [wheel] = (tmp_path / "dist").glob("*.whl")
    assert digest(wheel) != digest(built[0][".whl"])


def test_the_wheel_holds_the_package_alone(built: list[dict[str, Path]]) -> None:
    path = built[0][".whl"]
    with ZipFile(path) as wheel:
        names = wheel.namelist()
    about = "-".join(path.name.split("-")[:2]) + ".dist-info"
    assert {name.split("/")[0] for name in names} == {"tercet", about}
    here = {
        path.relative_to(ROOT / "src").as_posix()
        for path in (ROOT / "src").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name for name in names if name.startswith("tercet/")} == here


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
            "1 packages looked up; NOT LOOKED UP, for the service has no answer: 1",
            False,
        ),
        (None, "NOT LOOKED UP: no network", False),
    ],
)
def test_that_nobody_answered_is_no_answer(
    release: ModuleType,
    packages: list[object] | None,
    words: str,
    faulty: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where the service knows no package, pip-audit itself says "No known vulnerabilities found"."""
    report = "" if packages is None else f"open(sys.argv[-1], 'w').write({json.dumps({'dependencies': packages})!r})"
    script = tmp_path / "pip-audit"
    script.write_text(f"#!{sys.executable}\nimport sys\n{report}\nsys.exit('details\\nno network')\n")
    script.chmod(0o755)
    monkeypatch.setattr(release, "TOOLS", tmp_path)
    assert release.audit(tmp_path / "some.lock") == (f"some.lock: {words}", faulty)


@pytest.fixture(scope="module")
def installed(built: list[dict[str, Path]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel alone. PyTorch and the others are those of the tests, by a line in a .pth
    file: downloading them again would show nothing that `make setup` does not."""
    environment = tmp_path_factory.mktemp("installed") / "environment"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--no-index"]
    subprocess.run([environment / "bin" / "python", *install, built[0][".whl"]], check=True)
    [own] = environment.glob("lib/python*/site-packages")
    libraries = dict.fromkeys(sysconfig.get_path(name) for name in ("purelib", "platlib"))
    others = [path for path in sys.path if path.endswith("site-packages") and path not in libraries]
    (own / "libraries.pth").write_text("\n".join([*libraries, *others]) + "\n")  # after the wheel's own folder
    return environment


def tercet(installed: Path, *arguments: str, folder: Path) -> str:
    """In an environment of its own, where no compiler is found."""
    environment = {
        "PATH": str(installed / "bin"),
        "HOME": str(folder),
        "TERCET_CACHE": str(folder / "cache"),
        "OMP_NUM_THREADS": "1",
        "TERCET_OFFLINE": "1",
    }
    command = [installed / "bin" / "tercet", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_installed_wheel_is_what_runs(installed: Path, tmp_path: Path) -> None:
    code = "import tercet, tercet.kernel; print(tercet.__file__, tercet.kernel.warm_up())"
    command = [installed / "bin" / "python", "-c", code]
    environment = {"PATH": str(installed / "bin"), "HOME": str(tmp_path), "TERCET_CACHE": str(tmp_path / "cache")}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    file, compiled = done.stdout.split()
    assert Path(file).is_relative_to(installed)
    assert compiled == "False"  # no compiler: the plain way
    assert not list(tmp_path.rglob("*.so"))


def test_without_a_compiler_a_model_is_trained_and_writes(installed: Path, tmp_path: Path) -> None:
    assert "tercet" in tercet(installed, "--help", folder=tmp_path)
    settings = (
        "training.max_steps=20",
        "training.validate_every=20",
        "training.compile=never",
        "model.stack.n_layers=1",
    )
    changes = [word for setting in settings for word in ("--set", setting)]
    tercet(installed, "train", "demo", "--out", "run", "--quiet", *changes, folder=tmp_path)
    written = tercet(installed, "generate", "run", "--prompt", "cats", "--max-new-tokens", "8", folder=tmp_path)
    assert written.startswith("cats")
    assert len(written) > len("cats\n")
    scores = tercet(installed, "evaluate", "run", "--json", folder=tmp_path)
    assert "nats_per_token" in scores
    assert not list(tmp_path.rglob("*.so"))
