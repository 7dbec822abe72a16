"""The architecture rules that a program can check: import directions, lazy imports, lengths of files."""

import ast
import graphlib
import resource
import statistics
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import grimp
import pytest
from importlinter import cli as importlinter

from tercet.kernel.levels import CPP
from tercet.lazy_exports import paused_collector

ROOT = Path(__file__).parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
MAX_FUNCTION_LINES = 60  # from the definition to the end, including the docstring


@pytest.fixture(scope="module", autouse=True)
def parsed_files() -> Iterator[None]:
    """Keep the syntax trees of all files for these tests only, and search them for no garbage: half of the time."""
    with paused_collector():
        yield
        parse_file.cache_clear()


@cache
def parse_file(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def functions(node: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield child
        if not isinstance(child, ast.expr):
            yield from functions(child)


def test_imports_go_one_way(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    # Its logging setup would disable the loggers of all tests that run in this process afterwards.
    monkeypatch.setattr(importlinter, "_configure_logging", lambda verbose: None)
    code = importlinter.lint_imports(config_filename="pyproject.toml", no_cache=True)
    assert code == 0, capsys.readouterr().out


def test_nn_imports_only_torch_and_kernels_in_one_file() -> None:
    allowed_modules = {"torch", "jaxtyping", *sys.stdlib_module_names}
    paths = [*(ROOT / "src/tercet/nn").glob("*.py")]
    assert len(paths) > 10
    for path in paths:
        internal = ("tercet.kernel",) if path.name == "kernels.py" else ("tercet.spec", "tercet.lazy_exports")
        packages = ("tercet.nn", *internal)
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] in allowed_modules or name.startswith(packages), f"{path.name} imports {name}"


def test_no_import_cycles() -> None:
    """Imports within functions and for type checkers count too."""
    graph = grimp.build_graph("tercet", cache_dir=None)
    arrows = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    assert len(arrows) > 400
    graphlib.TopologicalSorter(arrows).prepare()  # raises CycleError with the modules of a cycle


def test_no_two_public_classes_have_one_name() -> None:
    """Classes within functions are not public."""
    classes: dict[str, list[str]] = {}

    def collect(body: list[ast.stmt], path: Path) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                classes.setdefault(node.name, []).append(f"{path.relative_to(ROOT / 'src/tercet')}:{node.lineno}")
            if isinstance(node, ast.ClassDef | ast.If | ast.Try):
                collect(node.body, path)

    for path in SOURCES:
        collect(parse_file(path).body, path)
    assert not {name: files for name, files in classes.items() if len(files) > 1}


def test_package_is_marked_as_typed() -> None:
    assert (ROOT / "src" / "tercet" / "py.typed").is_file()


def test_a_wheel_carries_the_sources_of_the_kernels() -> None:
    """The wheel includes all files of the package that git does not ignore."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] == ["src/tercet"]
    sources = [*(ROOT / "src/tercet/kernel/cpp").iterdir()]
    assert {path.suffix for path in sources} == {".h", ".cpp"}
    assert CPP.samefile(ROOT / "src/tercet/kernel/cpp")
    ignored = subprocess.run(["git", "check-ignore", *map(str, sources)], cwd=ROOT, capture_output=True, text=True)
    assert not ignored.stdout


@pytest.mark.parametrize("program", ["import tercet", "from tercet.cli.main import main; main([])"])  # prints the help
def test_heavy_modules_are_imported_lazily(program: str) -> None:
    heavy = "{'torch', 'numpy', 'pydantic', 'yaml', 'rich', 'tokenizers', 'pytorch_lightning', 'matplotlib'}"
    program = f"{program}\nimport sys\nassert not (loaded := {heavy} & set(sys.modules)), loaded"
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_help_is_fast() -> None:
    """The limit is on processor time, which does not depend on the load of the machine: measured at 0.06 s."""
    times: list[float] = []
    for _ in range(5):
        start = cpu_seconds_of_children()
        subprocess.run([sys.executable, "-m", "tercet", "--help"], check=True, capture_output=True)
        times.append(cpu_seconds_of_children() - start)
    assert statistics.median(times) < 0.3


def cpu_seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_files_and_functions_are_short_and_files_open_with_a_docstring() -> None:
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in SOURCES}
    assert len(texts) > 400
    assert [name for name, text in texts.items() if len(text.splitlines()) > 400] == []
    assert [path.name for path in SOURCES if not ast.get_docstring(parse_file(path))] == []
    lengths = {
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}": (node.end_lineno or 0) - node.lineno + 1
        for path in SOURCES
        for node in functions(parse_file(path))
    }
    assert len(lengths) > 3000
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


def test_test_files_are_short() -> None:
    long = {
        path.name: lines
        for path in (ROOT / "tests").rglob("*.py")
        if (lines := len(path.read_text().splitlines())) > 500
    }
    assert not long, f"split by theme: {long}"


def test_no_file_contains_paths_of_a_development_machine() -> None:
    result = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True
    )
    if result.returncode:
        pytest.skip("not a git checkout: no list of the project's files")
    # Assembled here, so that this file contains neither path.
    places = [b"/".join(parts) for parts in ((b"", b"work", b""), (b"..", b"shared"))]
    for name in map(Path, result.stdout.splitlines()):
        if name == Path(".ci/run") or not (ROOT / name).is_file():
            continue
        data = (ROOT / name).read_bytes()
        for place in places:
            assert place not in data, f"{name} names {place.decode()}"
