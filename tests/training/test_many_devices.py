"""Two processes train what one trains: the batch is shared among them, and the figures are of all of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import MUON, figures, tiny_recipe

from tercet.checkpoint import load_model
from tercet.config import write_yaml
from tercet.training import train

PROGRAM = Path(__file__).with_name("train_one.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
# Without biases too: the gradient of a key's bias is nothing but rounding, which Adam blows up to a step.
NO_DROPOUT = {
    "model": {"stack": {"bias": False, "dropout": {"embedding": 0.0, "attention": 0.0, "residual": 0.0}}},
}

pytestmark = pytest.mark.slow


def run_two(tmp_path: Path, launcher: list[str], **training: Any) -> Path:
    recipe = tiny_recipe(tmp_path, NO_DROPOUT, devices=2, micro_batch_size=2, **training)
    (tmp_path / "two.yaml").write_text(write_yaml(recipe))
    out = tmp_path / "two"
    command = [sys.executable, *launcher, str(PROGRAM), str(tmp_path / "two.yaml"), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def assert_nearly_same(one: Path, two: Path) -> None:
    a, b = (load_model(run / "last").model.state_dict() for run in (one, two))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-4)
    there, here = figures(one), figures(two)
    for name in there:
        assert [step for step, _ in there[name]] == [step for step, _ in here[name]], name
        assert [y for _, y in here[name]] == pytest.approx([y for _, y in there[name]], rel=1e-4), name
    assert json.loads((two / "run.json").read_text())["finished"]
    assert (two / "loss.png").exists()


@pytest.mark.parametrize(
    ("launcher", "training"),
    [
        (TORCHRUN, {"strategy": "ddp"}),
        ([], {"optimizer": MUON}),  # a plain call: the first process starts the second
        (TORCHRUN, {"strategy": "fsdp"}),
        (TORCHRUN, {"strategy": "fsdp", "optimizer": MUON}),
    ],
    ids=["ddp-adamw", "plain-call-muon", "fsdp-adamw", "fsdp-muon"],
)
def test_two_processes_are_one(tmp_path: Path, launcher: list[str], training: dict[str, Any]) -> None:
    one = train(tiny_recipe(tmp_path, NO_DROPOUT, **training | {"strategy": "auto"}), tmp_path / "one", quiet=True)
    two = run_two(tmp_path, launcher, **training)
    assert_nearly_same(one, two)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_go_on_where_they_stopped(tmp_path: Path, strategy: str) -> None:
    one = train(tiny_recipe(tmp_path, NO_DROPOUT), tmp_path / "one", quiet=True)
    stop = tmp_path / "sitecustomize.py"
    stop.write_text(DIES)
    recipe = tiny_recipe(tmp_path, NO_DROPOUT, devices=2, micro_batch_size=2, strategy=strategy)
    (tmp_path / "two.yaml").write_text(write_yaml(recipe))
    command = [sys.executable, *TORCHRUN, str(PROGRAM), str(tmp_path / "two.yaml"), str(tmp_path / "two")]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": path}
    died = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert died.returncode != 0
    assert (tmp_path / "two" / "resume.ckpt").exists()
    assert not json.loads((tmp_path / "two" / "run.json").read_text())["finished"]
    stop.unlink()
    assert_nearly_same(one, run_two(tmp_path, TORCHRUN, strategy=strategy))


DIES = """
import os, signal
rename = os.replace
def replace(source, target):
    rename(source, target)
    if str(target).endswith("resume.ckpt"):
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace
"""
