"""The guide of an objective: its package trains, resumes, compares, and is checked; faults are reported."""

import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from package_of_guides import ALLOW, forget, importable_package

import tercet
from tercet.cli.main import main
from tercet.config import UserError
from tercet.custom_code import ALLOWED
from tercet.diagnosis import check_part

FOCAL = "my_package.focal:Focal"
TINY = (
    "data.validation=tail", "data.tokenizer={kind: characters}", "model.max_len=16", "model.stack.d_model=24",
    "model.stack.n_layers=1", "model.stack.n_heads=2", "task.batch_size=4", "task.micro_batch_size=2",
    "training.max_steps=4", "training.validate_every=2", "training.save_every=2", "training.log_every=1",
    "task.sample_tokens=5", "task.sample_prompt=is", "training.precision=fp32", "training.compile=never",
)  # fmt: skip
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Write `my_package` as the guides do, and add its folder to the path."""
    site = tmp_path_factory.mktemp("site")
    (site / "faulty_objectives.py").write_text(FAULTY)
    with importable_package(site):
        yield


@pytest.fixture(autouse=True)
def no_permission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "")
    forget()


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "text.txt"
    path.write_text("".join(f"{number} is followed by {number + 1}.\n" for number in range(99)))
    return path


def words(text: Path, out: Path, *changes: str, verb: str = "train") -> list[str]:
    sets = [word for change in (*TINY, *changes) for word in ("--set", change)]
    return [verb, "demo", "--data", str(text), "--out", str(out), "--quiet", *sets, *ALLOW]


def test_run_with_an_objective_is_recorded_and_resumes_exactly(text: Path, tmp_path: Path) -> None:
    objective = f"task.objective={{kind: {FOCAL!r}, gamma: 1.5}}"
    for name, steps in (("whole", (4,)), ("resumed", (2, 4))):
        for length in steps:
            assert (
                main(
                    words(
                        text, tmp_path / name, objective, "training.schedule=constant", f"training.max_steps={length}"
                    )
                )
                == 0
            )
        assert json.loads((tmp_path / name / "run.json").read_text())["code"] == {FOCAL: None}
    forget()
    whole, resumed = (tercet.load(tmp_path / name / "last") for name in ("whole", "resumed"))
    assert "my_package" not in sys.modules  # the model does not contain the objective
    for weight, expected in zip(resumed.model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(weight, expected)
    with (tmp_path / "whole" / "metrics.csv").open(encoding="utf-8") as file:
        last = list(csv.DictReader(file))[-1]
    assert 0 < float(last["train/loss"]) < float(last["train/nll"])
    assert 0 < float(last["val/objective"]) < float(last["val/loss"])


def test_recipe_with_an_objective_is_rejected_without_permission(
    text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(text, tmp_path / "run", f"task.objective={FOCAL}")[: -len(ALLOW)]) == 2
    assert f"{FOCAL} is code of the package my_package, which is not allowed" in capsys.readouterr().err
    assert "my_package" not in sys.modules
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (f"task.objective={{kind: {FOCAL!r}, gamma: 0.5}}", "task.objective.gamma=0.5 must be at least 1"),
        (f"task.objective={{kind: {FOCAL!r}, gama: 2}}", "did you mean 'gamma'?"),
        ("task.objective=focal", "an import path such as my_package.parts:Part"),
        ("task.objective=my_package.decay:SquareRoot", "must be a subclass of CustomObjective"),
        ("task.objective=faulty_objectives:Mean", "expected one loss per target"),
    ],
)
def test_wrong_objective_is_rejected_before_the_folder_is_made(
    change: str, message: str, text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [*words(text, tmp_path / "run", change)[:-1], "my_package,faulty_objectives"]
    assert main(arguments) == 2
    error = capsys.readouterr().err
    assert message in error
    assert not (tmp_path / "run").exists()


def test_label_smoothing_excludes_an_objective(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = (f"task.objective={FOCAL}", "training.label_smoothing=0.1")
    assert main(words(text, tmp_path / "run", *changes)) == 2
    assert f"training.label_smoothing does not apply to task.objective={FOCAL}; set it to 0" in capsys.readouterr().err


def test_plan_and_compare_use_the_objective(text: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [word for word in words(text, tmp_path, f"task.objective={FOCAL}") if word != "--quiet"]
    out = arguments.index("--out")
    assert main([*arguments[:out], *arguments[out + 2 :], "--plan"]) == 0
    assert FOCAL in capsys.readouterr().out
    arguments = words(text, tmp_path / "sweep", "training.max_steps=2", verb="compare")
    assert main([*arguments, "--vary", f"task.objective=null,{FOCAL}", "--seeds", "1"]) == 0
    assert "objective=null" in capsys.readouterr().out
    codes = [json.loads(path.read_text()).get("code", {}) for path in sorted((tmp_path / "sweep").glob("*/run.json"))]
    assert sorted(codes, key=len) == [{}, {FOCAL: None}]


FAULTY = """
import torch
import torch.nn.functional as F
from tercet.objectives import CustomObjective
from tercet.spec import spec


def objective(loss):
    return type("Base", (CustomObjective,), {"loss": loss})


def nll(logits, targets):
    return F.cross_entropy(logits, targets, reduction="none")


def changes_logits(self, logits, targets):
    return nll(logits.mul_(1.5), targets)


def divides_by_the_count(self, logits, targets):
    return nll(logits, targets) / len(targets)


def weights_by_the_largest(self, logits, targets):
    losses = nll(logits, targets)
    return losses * losses / losses.max()


def logarithm_of_a_probability(self, logits, targets):
    return -logits.softmax(-1).gather(1, targets[:, None])[:, 0].log()


def reads_a_value(self, logits, targets):
    return nll(logits, targets) * (1.0 if logits.sum().item() < 1e9 else 2.0)


def counts_calls(self, logits, targets):
    CALLS.append(None)
    return nll(logits, targets) * len(CALLS)


def wrong_sign(self, logits, targets):
    return -nll(logits, targets)


CALLS = []


@spec
class Mean(objective(lambda self, logits, targets: F.cross_entropy(logits, targets))):
    pass


@spec
class InPlace(objective(changes_logits)):
    pass


@spec
class DividedByCount(objective(divides_by_the_count)):
    pass


@spec
class RelativeToLargest(objective(weights_by_the_largest)):
    pass


@spec
class LogarithmOfProbability(objective(logarithm_of_a_probability)):
    pass


@spec
class ReadsValue(objective(reads_a_value)):
    pass


@spec
class CountsCalls(objective(counts_calls)):
    pass


@spec
class WrongSign(objective(wrong_sign)):
    pass
"""
FAULTS = {
    "InPlace": {"logits and targets are not changed"},
    "DividedByCount": {"the loss of a target depends only on its row", "ignored targets", "padding and the division"},
    "RelativeToLargest": {"the loss of a target depends only on its row"},
    "LogarithmOfProbability": {"losses and gradients are finite"},
    "ReadsValue": {"tensors are on the device of the logits"},
    "CountsCalls": {"two calls are equal"},
    "WrongSign": {"a correct prediction has a smaller loss"},
}


def test_check_part_passes_the_objective_of_the_guide(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--check-part", FOCAL, *ALLOW]) == 0
    lines = capsys.readouterr().out.splitlines()
    tasks = "language, masked, translation, chat, labels with problem_type single_label_classification"
    assert lines[0] == f"{FOCAL}: for task {tasks}"
    assert len(lines) == 10
    assert all(line.startswith("pass  ") for line in lines[1:]), lines


@pytest.mark.parametrize("name", FAULTS)
def test_check_part_finds_the_fault_of_an_objective(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "faulty_objectives")
    checks = check_part(f"faulty_objectives:{name}").checks
    failed = {check.name: check.problem for check in checks if not check.passed}
    assert all(any(check.startswith(fault) and failed[check] for check in failed) for fault in FAULTS[name]), failed
    assert len(failed) < len(checks) - 2, failed


def test_check_part_rejects_an_objective_without_a_loss_per_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ALLOWED, "faulty_objectives")
    with pytest.raises(UserError, match=r"faulty_objectives:Mean: loss returned shape \(\), expected one loss per"):
        check_part("faulty_objectives:Mean")
