"""With `training.exact` the weights are bitwise identical for any number of threads, which is recorded."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import MUON, TINY, figures, tiny_numbers_recipe, tiny_recipe, tiny_sets_recipe, weights

from tercet.kernel import is_thread_independent, kernel_threads, thread_independent
from tercet.settings_yaml import write_yaml
from tercet.training import train
from tercet.training.compute.threads import process_threads
from tercet.training.recipe.specs import TrainingSpec

RECIPES = {**TINY, "numbers": tiny_numbers_recipe, "sets": tiny_sets_recipe}
NORMS: dict[str, dict[str, Any]] = {"layer": {}, "layer_std": {}, "rms": {"norm_bias": False}}
POSITIONS = ("learned", "sinusoidal", "rotary", "alibi", "relative_bias")
WIDE = {"d_model": 64, "n_layers": 2, "n_heads": 4}
LARGE = {"batch_size": 64, "micro_batch_size": 32}  # enough rows for PyTorch to use several threads
LARGE_PAIRS = {"batch_tokens": 512, "micro_batch_tokens": 256, "ema": None, "best_by": "loss"}


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Restore the number of threads, which each test sets."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.slow
def test_each_number_of_threads_ends_with_the_same_weights(tmp_path: Path) -> None:
    """The gradient of the layer norm's weight is enough to make them differ."""
    results: list[tuple[bytes, Any]] = []
    for count in (1, 3):
        torch.set_num_threads(count)
        out = train(tiny_recipe(tmp_path, exact=True, max_steps=2), tmp_path / str(count), quiet=True)
        results.append((weights(out), figures(out)))
        assert json.loads((out / "run.json").read_text())["threads"] == count
        assert torch.get_num_threads() == count
    assert results[0] == results[1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("family", RECIPES)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_each_model_ends_with_the_same_weights_on_1_2_and_3_threads(
    tmp_path: Path, family: str, norm: str, position: str, precision: str
) -> None:
    stack = {**WIDE, "norm": norm, **NORMS[norm], "position": {"kind": position}}
    sides = ("encoder", "decoder") if family == "pairs" else ("stack",)
    optimizer = {"optimizer": MUON} if norm == "rms" else {}
    recipe = RECIPES[family](
        tmp_path, {"model": dict.fromkeys(sides, stack)}, exact=True, max_steps=3, precision=precision,
        **optimizer, **(LARGE_PAIRS if family == "pairs" else LARGE),
    )  # fmt: skip
    results = list[bytes]()
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        results.append(weights(train(recipe, tmp_path / str(count), quiet=True)))
    assert results == results[:1] * 3


@pytest.mark.exhaustive
@pytest.mark.parametrize("devices", [1, 2])
@pytest.mark.parametrize("count", [None, "1", "2"])
def test_a_command_ends_with_the_same_weights_as_one_thread(tmp_path: Path, count: str | None, devices: int) -> None:
    """Run the command of the guide; `count` is OMP_NUM_THREADS, or None if it is not set."""
    changes = {"model": {"stack": {"n_layers": 2}}}
    recipe = tiny_recipe(tmp_path, changes, exact=True, max_steps=3, validate_every=3, save_every=3)
    path, out = tmp_path / "recipe.yaml", tmp_path / "command"
    path.write_text(write_yaml(recipe))
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {} if count is None else {"OMP_NUM_THREADS": count}
    command = ["train", str(path), "--out", str(out), "--devices", str(devices), "--quiet"]
    process = subprocess.run(
        [sys.executable, "-m", "tercet", *command], env=environment, capture_output=True, text=True, timeout=150,
        check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    torch.set_num_threads(1)
    assert weights(out) == weights(train(recipe, tmp_path / "one", quiet=True))
    n_threads = json.loads((out / "run.json").read_text())["threads"]
    assert n_threads == (int(count) if count else max(1, len(os.sched_getaffinity(0)) // devices))


def test_processes_of_a_node_divide_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lightning divides the threads later, but not if the variable is set."""
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    torch.set_num_threads(4)
    with process_threads(TrainingSpec(max_steps=1, accelerator="cpu", devices=2)):
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (2, "2")
    assert torch.get_num_threads() == 4
    assert "OMP_NUM_THREADS" not in os.environ
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with process_threads(TrainingSpec(max_steps=1, accelerator="cpu", devices=2)):
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (4, "3")


def test_kernels_keep_their_threads_while_pytorch_has_one() -> None:
    torch.set_num_threads(3)
    with thread_independent(), thread_independent():
        assert (torch.get_num_threads(), kernel_threads(), is_thread_independent()) == (1, 3, True)
    assert (torch.get_num_threads(), kernel_threads(), is_thread_independent()) == (3, 3, False)
