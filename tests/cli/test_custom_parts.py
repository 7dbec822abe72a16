"""The guides of custom parts: their packages train, resume and decode, and open only with a permission."""

import json
import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from package_of_guides import ALLOW, PAGES, blocks, forget, importable_package

import tercet
from tercet.checkpoint import read_card
from tercet.cli.main import main
from tercet.cli.next_steps import next_steps
from tercet.config import UserError
from tercet.custom_code import ALLOWED
from tercet.training import CustomOptimizer

FOURIER = "my_package.fourier:Fourier"
TINY = (
    "data.validation=tail", "data.tokenizer={kind: characters}", "model.max_len=16", "model.stack.d_model=24",
    "model.stack.n_layers=1", "model.stack.n_heads=2", "task.batch_size=3", "training.max_steps=4",
    "training.validate_every=4", "training.save_every=4", "task.sample_tokens=5", "task.sample_prompt=is",
    "training.precision=fp32", "training.compile=never",
)  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write `my_package` as the guides do, and add its folder to the path."""
    with importable_package(tmp_path_factory.mktemp("site")):
        yield


@pytest.fixture(autouse=True)
def no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start each test without a permission and without the imports of earlier tests."""
    monkeypatch.setenv(ALLOWED, "")
    forget()


def forget_permission() -> None:
    os.environ[ALLOWED] = ""
    forget()


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    (folder / "text.txt").write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(99)))
    position = f"model.stack.position={{kind: {json.dumps(FOURIER)}, waves: 5}}"
    sets = [word for change in (*TINY, position) for word in ("--set", change)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ALLOWED, "")
        words = ["train", "demo", "--data", str(folder / "text.txt"), "--out", str(folder / "run"), "--quiet"]
        assert main([*words, *sets]) == 2
        assert not (folder / "run").exists()
        assert main([*words, *sets, *ALLOW]) == 0
    return folder / "run"


def test_run_with_a_custom_position_is_recorded_and_resumed(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert json.loads((run / "run.json").read_text())["code"] == {FOURIER: None}
    assert json.loads((run / "best" / "config.json").read_text())["stack"]["position"] == {"kind": FOURIER, "waves": 5}
    assert main(["inspect", str(run), "--json", *ALLOW]) == 0
    model = tercet.load(run).model
    assert json.loads(capsys.readouterr().out)["parameters"] == sum(weight.numel() for weight in model.parameters())
    assert {name for name in model.state_dict() if "position" in name} == {
        "stack.position.mix.weight", "stack.position.mix.bias",
    }  # fmt: skip
    assert main(["train", str(run), "--quiet", "--set", "training.max_steps=6", *ALLOW]) == 0
    record = json.loads((run / "run.json").read_text())
    assert (record["saved"], record["code"]) == (6, {FOURIER: None})


@pytest.mark.parametrize(
    "words",
    [
        "train RUN --set training.max_steps=8", "generate RUN", "evaluate RUN", "inspect RUN", "explore RUN",
        "serve RUN", "convert RUN hf --to hf", "plot model RUN", "train RUN --plan",
    ],
)  # fmt: skip
def test_commands_reject_code_that_is_not_allowed(
    run: Path, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.replace("RUN", str(run)).split()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert f"{FOURIER} is code of the package my_package, which is not allowed; if you trust it, pass" in error
    assert "my_package" not in sys.modules


def test_functions_take_the_permission_as_an_argument(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which is not allowed"):
        tercet.convert(run, tmp_path / "copy")
    assert tercet.convert(run, tmp_path / "copy", allow_code="my_package").is_dir()
    forget_permission()
    shutil.copytree(run, tmp_path / "second")
    runs, out = [run, tmp_path / "second"], tmp_path / "table"
    with pytest.raises(UserError, match="which is not allowed"):
        tercet.compare(runs, out=out, quiet=True)
    assert len(tercet.compare(runs, out=out, quiet=True, allow_code=["my_package"]).leaderboard.rows) == 2
    forget_permission()
    with pytest.raises(UserError, match="which is not allowed"):
        tercet.load(run)
    assert tercet.load(run, allow_code="my_package").generate("1 is", max_new_tokens=3)


def test_next_steps_contain_the_permission(run: Path) -> None:
    lines = next_steps(run, read_card(run).recipe)
    assert all(line.endswith(" --allow-code my_package") for line in lines)


def test_export_rejects_a_custom_position_by_its_name(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for form in ("hf", "gguf", "ctranslate2"):
        assert main(["convert", str(run), str(tmp_path / form), "--to", form, *ALLOW]) == 2
        error = capsys.readouterr().err
        assert f"stack.position is {FOURIER}, which" in error  # no setting that a Llama would have
        assert "a model with built-in parts can be converted" in error


@pytest.mark.parametrize("page", PAGES)
def test_python_of_the_guide_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = blocks(page)[1]
    assert code
    exec(compile("\n".join(code), page, "exec"), {"__name__": "__main__"})


BAD = """
import torch
from tercet.nn import CustomPosition
from tercet.nn.positions import PositionScheme
from tercet.spec import spec

class Columns(PositionScheme):
    def __init__(self, d_model, table):
        super().__init__()
        self.unused = torch.nn.Parameter(torch.ones(2))
        if table:
            self.register_buffer("table", (torch.arange(13.0)[:, None] * torch.arange(d_model)).sin(), persistent=False)
        self.has_table, self.d_model = table, d_model

    def embed(self, positions):
        if self.has_table:
            return self.table[positions]
        if positions.max().item() < 0:
            return None
        return (torch.arange(positions.shape[1])[None, :, None] * torch.arange(float(self.d_model))).sin()

@spec
class OfColumns(CustomPosition):
    def build(self, *, d_model, **sizes):
        return Columns(d_model, False)

@spec
class OfBuffer(CustomPosition):
    def build(self, *, d_model, **sizes):
        return Columns(d_model, True)

@spec
class Constant(CustomPosition):
    def build(self, **sizes):
        return PositionScheme()

    def __post_init__(self):
        pass
"""


@pytest.mark.parametrize("part", [FOURIER, "tercet.nn.specs:Rotary"])
def test_check_part_passes_a_correct_scheme_and_rejects_other_classes(
    part: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main(["doctor", "--check-part", part, "--allow-code", "my_package"])
    output = capsys.readouterr()
    if part == FOURIER:
        lines = output.out.splitlines()
        assert (code, lines[0]) == (0, f"{FOURIER}: 792 parameters in a small model")
        assert len(lines) == 15
        assert all(line.startswith("pass  ") for line in lines[1:]), lines
    else:
        assert (code, output.err.count("\n")) == (2, 1)
        assert "must be a subclass of Custom" in output.err


@pytest.mark.parametrize(
    ("name", "faults"),
    [
        ("OfColumns", {"cached", "padding", "packed", "gradients", "torch.compile"}),
        ("OfBuffer", {"gradients", "a saved", "bfloat16", "the last positions"}),
        ("Constant", {"the order"}),
    ],
)
def test_check_part_finds_faults(
    name: str, faults: set[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "bad.py").write_text(BAD)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["doctor", "--check-part", f"my_package.bad:{name}", "--json", *ALLOW]) == 1
    checks = json.loads(capsys.readouterr().out)["checks"]
    failed = [check["name"] for check in checks if not check["passed"]]
    assert all(check["problem"] for check in checks if not check["passed"])
    assert {fault for fault in faults if not any(check.startswith(fault) for check in failed)} == set()
    assert len(failed) == len(faults), failed


LION, DECAY = "my_package.lion:Lion", "my_package.decay:SquareRoot"
FAULTY = """
import torch
from torch.optim import SGD, Optimizer
from tercet.spec import LearningRate, spec
from tercet.training import CustomOptimizer

class Counting(SGD):
    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight]["step"] = 1

@spec
class Counts(CustomOptimizer):
    lr: LearningRate = 0.1
    def build(self, model):
        return Counting(model.parameters(), lr=self.lr)

@spec
class Half(CustomOptimizer):
    lr: LearningRate = 0.1
    def build(self, model):
        return SGD(list(model.parameters())[1:], lr=self.lr)
"""


def lion_words(data: Path, out: Path, *changes: str) -> list[str]:
    sets = [word for change in (*TINY, *changes) for word in ("--set", change)]
    return ["train", "demo", "--data", str(data), "--out", str(out), "--quiet", *sets, *ALLOW]


def test_run_with_a_custom_optimizer_and_schedule_resumes_exactly(run: Path, tmp_path: Path) -> None:
    """A run that stops after 4 of 8 steps ends with the weights of a run that does not stop."""
    data, parts = run.parent / "text.txt", (f"training.optimizer={LION}", "training.schedule=constant")
    for name, steps in (("whole", (8,)), ("resumed", (4, 8))):
        for length in steps:
            assert main(lion_words(data, tmp_path / name, *parts, f"training.max_steps={length}")) == 0
        assert json.loads((tmp_path / name / "run.json").read_text())["code"] == {LION: None}
    forget()
    whole, resumed, other = (tercet.load(tmp_path / name / "last") for name in ("whole", "resumed", "resumed"))
    assert "my_package" not in sys.modules  # the model does not contain the optimizer
    for weight, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(weight, expected)
    assert other.generate("1 is", max_new_tokens=2)


def test_custom_schedule_trains(run: Path, tmp_path: Path) -> None:
    data = run.parent / "text.txt"
    assert main(lion_words(data, tmp_path / "run", f"training.schedule={{kind: {DECAY!r}, final: 0.1}}")) == 0
    assert json.loads((tmp_path / "run" / "run.json").read_text())["code"] == {DECAY: None}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Counts", "has the state step of type int, which a checkpoint does not contain; make it a tensor"),
        ("Half", "must update each trainable parameter in exactly one group; use parameter_groups"),
    ],
)
def test_faulty_optimizer_is_rejected_before_work_is_lost(
    run: Path, name: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "faulty.py").write_text(FAULTY)
    torch.optim.SGD([torch.zeros(1)])  # from now on, PyTorch calls hooks also in `super().step()`
    monkeypatch.syspath_prepend(tmp_path)
    words = lion_words(run.parent / "text.txt", tmp_path / "run", f"training.optimizer=my_package.faulty:{name}")
    assert main(words) == 2
    assert f"my_package.faulty:{name} {message}" in capsys.readouterr().err


def test_optimizer_without_a_learning_rate_is_rejected() -> None:
    with pytest.raises(TypeError, match="Part has no setting lr with a default; add lr: LearningRate = 1e-3"):
        type("Part", (CustomOptimizer,), {})
