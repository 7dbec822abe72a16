"""Imports are lazy: no torch without tensors, and no compiler of torch for inference."""

import ast
import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.load.startup import REFUSALS, places

from tercet.checkpoint import Card, save_model
from tercet.cli.main import VERBS
from tercet.models import build
from tercet.models.presets import model_spec
from tercet.tokens import Characters, Tokenizer

PACKAGE = Path(__file__).parent.parent / "src/tercet"
LAZY_PACKAGES = sorted(path for path in PACKAGE.rglob("__init__.py") if "export_lazily(" in path.read_text())
HEAVY = (
    "torch._dynamo", "torch._inductor", "sympy", "pytorch_lightning", "transformers", "torchvision", "matplotlib",
    "scipy", "pandas", "datasets", "sklearn", "fastapi", "sacrebleu",
)  # fmt: skip


def run_python(program: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, timeout=120)


@pytest.fixture
def model_folder(tmp_path: Path) -> Path:
    tokenizer = Tokenizer.train(Characters(), ["to be or not to be"])
    sizes = {"preset": "gpt2", "vocab_size": tokenizer.vocab_size, "max_len": 16}
    spec = model_spec({**sizes, "stack": {"d_model": 16, "n_layers": 1, "n_heads": 2}}, name="model")
    save_model(tmp_path / "model", build(spec), tokenizer, Card())
    return tmp_path / "model"


@pytest.mark.slow
def test_importing_all_names_starts_no_thread_and_imports_no_heavy_module(tmp_path: Path) -> None:
    """It starts no thread, process or compiler and reads no file of the kernels, except for `import torch` itself."""
    completed = run_python(
        f"""
import os, sys, threading
import torch

forbidden = []
def audit(event, args):
    if event in ("subprocess.Popen", "os.fork", "os.posix_spawn", "os.system", "os.exec"):
        forbidden.append((event, args))
    if event == "open" and str(args[0]).endswith((".cpp", ".h", ".so")) and "tercet" in str(args[0]):
        forbidden.append((event, args))
sys.addaudithook(audit)
tasks = lambda: len(os.listdir("/proc/self/task")) if os.path.isdir("/proc/self/task") else 0
before = tasks()
import tercet
for name in tercet.__all__:
    getattr(tercet, name)
assert not forbidden, forbidden
assert tasks() == before and threading.active_count() == 1
loaded = set({HEAVY!r}) & set(sys.modules)
assert not loaded, loaded
""",
        tmp_path,
    )
    assert completed.returncode == 0, completed.stderr


@pytest.mark.slow
def test_loading_and_generating_do_not_import_the_compiler(model_folder: Path) -> None:
    """PyTorch would import its compiler to draw numbers on the meta device, and double the time to the first token."""
    program = f"""
import sys
import tercet
next(tercet.load({str(model_folder)!r}).stream("to", max_new_tokens=1))
assert not (loaded := set({HEAVY!r}) & set(sys.modules)), loaded
"""
    completed = run_python(program, model_folder)
    assert completed.returncode == 0, completed.stderr


@pytest.fixture(scope="module")
def refused_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("places")
    with places(folder):
        yield folder


@pytest.mark.slow
def test_errors_without_tensors_do_not_import_torch(refused_places: Path) -> None:
    """The commands run in one process: the first command that imports torch fails the test."""
    program = f"""
import contextlib, io, json, sys
from tercet.cli.main import main
for command in {list(REFUSALS)!r}:
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(command.split())
    loaded = sorted({{"torch", "numpy", "tokenizers"}} & set(sys.modules))
    print(json.dumps([command, code, loaded, out.getvalue(), err.getvalue()]))
"""
    completed = run_python(program, refused_places)
    assert completed.returncode == 0, completed.stderr
    answers = [json.loads(line) for line in completed.stdout.splitlines()]
    assert len(answers) == len(REFUSALS)
    for command, code, loaded, out, err in answers:
        assert (code, loaded, out) == (2, [], ""), command
        assert REFUSALS[command] in err
        assert err.count("\n") == 1, command


def test_each_verb_has_an_error_without_torch() -> None:
    assert {command.split()[0] for command in REFUSALS} == set(VERBS)


@pytest.mark.parametrize("path", LAZY_PACKAGES, ids=lambda path: path.parent.relative_to(PACKAGE.parent).as_posix())
def test_lazy_package_exports_names_of_type_checking(path: Path) -> None:
    package = importlib.import_module(".".join(path.parent.relative_to(PACKAGE.parent).parts))
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    ignored_modules = {"typing", "tercet.lazy_exports", "tercet.version"}
    names = {
        alias.name: str(node.module) for node in nodes if node.module not in ignored_modules for alias in node.names
    }
    assert set(package.__all__) == set(names)
    for name, module in names.items():
        assert getattr(package, name) is getattr(importlib.import_module(module), name)
        assert name in dir(package)
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        _ = package.nosuch


@pytest.mark.slow
def test_function_shadows_module_of_its_name_in_any_import_order(tmp_path: Path) -> None:
    program = "import tercet.dashboard.watch\nfrom tercet.dashboard import watch\nassert callable(watch)"
    completed = run_python(program, tmp_path)
    assert completed.returncode == 0, completed.stderr
