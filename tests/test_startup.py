"""What is imported when: nothing before it is needed, torch not for what needs no tensor, its compiler for no model."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from tercet.checkpoint import Card, save_model
from tercet.models import build
from tercet.models.presets import model_spec
from tercet.tokens import Characters, Tokenizer

PACKAGE = Path(__file__).parent.parent / "src/tercet"
ROOMS = sorted(path for path in PACKAGE.rglob("__init__.py") if "export_lazily(" in path.read_text())
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


def test_importing_all_names_starts_nothing_and_imports_nothing_heavy(tmp_path: Path) -> None:
    """No thread, no process, no compiler, and no file of the kernels read, beside what `import torch` does itself."""
    done = run_python(
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
    assert done.returncode == 0, done.stderr


def test_a_model_is_opened_and_writes_without_the_compiler(model_folder: Path) -> None:
    """PyTorch imports it, which doubles the time to the first token, to draw numbers on the meta device."""
    program = f"""
import sys
import tercet
next(tercet.load({str(model_folder)!r}).stream("to", max_new_tokens=1))
assert not (loaded := set({HEAVY!r}) & set(sys.modules)), loaded
"""
    done = run_python(program, model_folder)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["train", "nosuch"], "unknown recipe 'nosuch'"),
        (["recipes", "nosuch"], "unknown recipe 'nosuch'"),
        (["train", "nosuch.yaml"], "nosuch.yaml"),
        (["train", "demo", "--data", "no.txt"], "no such file or folder: no.txt"),
        (["train", "demo", "--pretrained", "nosuch"], "no such folder: nosuch"),
        (["train", "numbers", "--source", "no.de", "--target", "no.en"], "no.de"),
        (["train", "classify-sections", "--set", "data.source=no.jsonl"], "no.jsonl"),
        (["train", "demo", "--set", "training.max_stepz=5"], "did you mean 'max_steps'?"),
        (["train", "demo", "--set", "training.max_steps=-5"], "training.max_steps=-5 must be at least 1"),
        (["train", "demo", "--set", "model.stack.position=rotory"], "did you mean 'rotary'?"),
        (["train", "demo", "--set", "training.optimizer=muom"], "did you mean 'muon'?"),
        (["train", "demo", "--set", "task.masking.rate=2"], "unknown key 'masking'"),
        (["train", "demo", "--out", "taken"], "taken is not empty and holds no run"),
        (["train", "demo", "--out", "taken/file"], "is a file"),
        (["generate", "nosuch"], "no such folder: nosuch"),
        (["generate", "taken"], "no model in taken"),
        (["generate", "taken", "--temperature", "-1"], "argument --temperature: -1.0 must be at least 0"),
        (["translate", "nosuch"], "no such folder: nosuch"),
        (["translate", "nosuch", "--beam", "0"], "argument --beam: 0 must be at least 1"),
        (["fill", "nosuch", "a [MASK]"], "no such folder: nosuch"),
        (["embed", "nosuch", "--output", "x.npz"], "no such folder: nosuch"),
        (["classify", "nosuch"], "no such folder: nosuch"),
        (["evaluate", "nosuch"], "no such folder: nosuch"),
        (["score", "nosuch"], "no such folder: nosuch"),
        (["serve", "nosuch"], "no such folder: nosuch"),
        (["explore", "nosuch"], "no such folder: nosuch"),
        (["convert", "nosuch", "out"], "no such folder: nosuch"),
        (["data", "nosuch.txt"], "nosuch.txt"),
        (["inspect", "nosuch"], "no folder, preset or recipe is called 'nosuch'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_needs_no_tensor_is_refused_without_torch(command: list[str], words: str, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken/file").write_text("text")
    program = f"""
import sys
from tercet.cli.main import main
code = main({command!r})
print("torch" in sys.modules)
sys.exit(code)
"""
    done = run_python(program, tmp_path)
    assert (done.returncode, done.stdout) == (2, "False\n"), done.stdout + done.stderr
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.parametrize("path", ROOMS, ids=lambda path: path.parent.relative_to(PACKAGE.parent).as_posix())
def test_a_room_gives_what_the_type_checker_reads(path: Path) -> None:
    room = importlib.import_module(".".join(path.parent.relative_to(PACKAGE.parent).parts))
    nodes = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)]
    own = {"typing", "tercet.lazy_exports", "importlib.metadata"}
    names = {alias.name: str(node.module) for node in nodes if node.module not in own for alias in node.names}
    assert set(room.__all__) == set(names)
    for name, module in names.items():
        assert getattr(room, name) is getattr(importlib.import_module(module), name)
        assert name in dir(room)
    with pytest.raises(AttributeError, match="has no attribute 'nosuch'"):
        _ = room.nosuch


def test_a_function_goes_before_the_file_of_its_name_whichever_is_imported_first(tmp_path: Path) -> None:
    program = "import tercet.data.prepare\nfrom tercet.data import prepare\nassert callable(prepare)"
    done = run_python(program, tmp_path)
    assert done.returncode == 0, done.stderr
