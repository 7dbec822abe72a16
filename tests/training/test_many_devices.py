"""Two processes train as one process does: the batch is divided among them, and metrics cover all of it."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from machines import start_run
from tiny_runs import (
    CHECKPOINT,
    MUON,
    NO_DROPOUT,
    PAIRS_MUON,
    TINY,
    dies_at_rename,
    figures,
    tiny_numbers_recipe,
    tiny_sets_recipe,
)

from tercet.checkpoint import load_model
from tercet.config import merge, to_plain
from tercet.settings_yaml import write_yaml
from tercet.training import Recipe, parse_recipe, train

PROGRAM = Path(__file__).with_name("train_one.py")
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
PLAIN_CALL: list[str] = []  # the first process starts the second
COMPARABLE_SETTINGS: dict[str, dict[str, Any]] = {
    # Without biases: the gradient of a key's bias is rounding noise, which Adam scales to a full step.
    "text": {"model": {"stack": {"bias": False, "dropout": NO_DROPOUT}}},
    "pairs": {
        "model": {"encoder": {"dropout": NO_DROPOUT}, "decoder": {"dropout": NO_DROPOUT}},
        "task": {"batch_tokens": 256},  # four buckets, divisible by two
    },
    "masked": {"model": {"stack": {"dropout": NO_DROPOUT}}},
    "labels": {"model": {"classifier": {"dropout": 0.0}}},
    "numbers": {"model": {"classifier": {"dropout": 0.0}}},
    "sets": {"model": {"classifier": {"dropout": 0.0}}},
}
RECIPES = {**TINY, "numbers": tiny_numbers_recipe, "sets": tiny_sets_recipe}
WHOLE = {"ema": None, "best_by": "loss", "validation_sentences": 0}  # the features available for sharded models

pytestmark = pytest.mark.slow


def recipe_for_two(folder: Path, family: str, **training: Any) -> Recipe:
    if family != "pairs":
        training["micro_batch_size"] = 2
    return RECIPES[family](folder, COMPARABLE_SETTINGS[family], devices=2, **training)


def launch(folder: Path, launcher: list[str], recipe: Recipe) -> Path:
    """Train in processes that a launcher starts, as users do."""
    (folder / "two.yaml").write_text(write_yaml(recipe))
    out = folder / "two"
    command = [sys.executable, *launcher, str(PROGRAM), str(folder / "two.yaml"), str(out)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=150, check=False)
    assert process.returncode == 0, process.stderr[:3000] + "\n...\n" + process.stderr[-3000:]
    return out


SCORE_METRICS = (
    "val/bleu",
    "val/f1",
    "val/rmse",
    "val/pearson",
    "val/spearman",
    "val/recall_at_1",
    "val/recall_at_10",
    "val/mrr",
    "val/ndcg_at_10",
    "val/unigram_entropy",
)  # computed on the whole model, which no device has in a sharded run


def assert_nearly_same(expected_run: Path, actual_run: Path, *, sharded: bool = False) -> None:
    for folder in ("last", "best"):
        a, b = (load_model(run / folder).model.state_dict() for run in (expected_run, actual_run))
        for name in a:
            torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-4)
    expected, actual = figures(expected_run), figures(actual_run)
    for name in expected:
        if sharded and name in SCORE_METRICS:
            assert not actual[name]
            continue
        assert [step for step, _ in expected[name]] == [step for step, _ in actual[name]], name
        assert [y for _, y in actual[name]] == pytest.approx([y for _, y in expected[name]], rel=1e-4), name
    assert json.loads((actual_run / "run.json").read_text())["finished"]
    assert (actual_run / "loss.png").exists()


def exhaustive(*values: Any) -> Any:
    return pytest.param(*values, marks=pytest.mark.exhaustive)


@pytest.mark.exhaustive  # test_exact_threads.py covers a command that starts its second process; the other tests fork
@pytest.mark.parametrize(
    ("launcher", "family", "training"),
    [
        (TORCHRUN, "text", {"strategy": "ddp"}),
        (PLAIN_CALL, "text", {"strategy": "tp", "optimizer": MUON}),
        (PLAIN_CALL, "text", {"optimizer": MUON}),
        (TORCHRUN, "pairs", {"strategy": "fsdp", **WHOLE}),
    ],
    ids=["torchrun-ddp", "plain-call-tp", "plain-call-ddp", "torchrun-fsdp"],
)
def test_launched_processes_train_like_one(
    tmp_path: Path, launcher: list[str], family: str, training: dict[str, Any]
) -> None:
    single_run = train(
        RECIPES[family](tmp_path, COMPARABLE_SETTINGS[family], **training | {"strategy": "auto"}),
        tmp_path / "one",
        quiet=True,
    )
    two = launch(tmp_path, launcher, recipe_for_two(tmp_path, family, **training))
    assert_nearly_same(single_run, two, sharded=training.get("strategy") in ("fsdp", "tp"))


@pytest.mark.parametrize(
    ("family", "training"),
    [
        ("text", {"strategy": "fsdp", "optimizer": MUON}),
        exhaustive("text", {"strategy": "fsdp"}),
        exhaustive("text", {"strategy": "tp"}),
        exhaustive("pairs", {}),
        exhaustive("pairs", {"strategy": "ddp", "optimizer": PAIRS_MUON}),
        exhaustive("pairs", {"strategy": "fsdp", **WHOLE}),
        exhaustive("pairs", {"strategy": "tp", **WHOLE}),
        exhaustive("masked", {"strategy": "ddp"}),
        exhaustive("masked", {"strategy": "fsdp", "ema": None, "best_by": "loss"}),
        ("masked", {"strategy": "tp", "ema": None, "best_by": "loss"}),
        ("labels", {}),
        exhaustive("labels", {"strategy": "fsdp", "ema": None, "best_by": "loss"}),
        exhaustive("labels", {"strategy": "tp", "ema": None, "best_by": "loss"}),
        exhaustive("numbers", {"strategy": "ddp"}),
        exhaustive("numbers", {"strategy": "fsdp", "best_by": "loss"}),
        exhaustive("sets", {}),
    ],
    ids=lambda x: x if isinstance(x, str) else x.get("strategy", "auto"),
)
def test_two_processes_train_like_one(tmp_path: Path, family: str, training: dict[str, Any]) -> None:
    training = {"max_steps": 6, **training}
    single_run = train(
        RECIPES[family](tmp_path, COMPARABLE_SETTINGS[family], **training | {"strategy": "auto"}),
        tmp_path / "one",
        quiet=True,
    )
    start_run(recipe_for_two(tmp_path, family, **training), tmp_path / "two").finish()
    assert_nearly_same(single_run, tmp_path / "two", sharded=training.get("strategy") in ("fsdp", "tp"))


@pytest.mark.parametrize("family", ["text", exhaustive("pairs"), exhaustive("labels")])
def test_two_processes_train_one_adapter(tmp_path: Path, finished_run: Callable[[str], Path], family: str) -> None:
    """Most weights have no gradient, and a strategy that waits for gradients must skip them."""
    settings = to_plain(TINY[family](tmp_path, COMPARABLE_SETTINGS[family]))
    settings["model"] = {"stack": {"dropout": NO_DROPOUT}} if family == "text" else COMPARABLE_SETTINGS[family]["model"]
    settings |= {"pretrained": str(finished_run(family)), "adapter": {"kind": "lora", "rank": 3, "targets": ["all"]}}
    single_run = train(parse_recipe(settings, name="one"), tmp_path / "one", quiet=True)
    two_device_settings = merge(settings, {"training": {"devices": 2, "strategy": "ddp"}})
    start_run(parse_recipe(two_device_settings, name="two"), tmp_path / "two").finish()
    assert_nearly_same(single_run, tmp_path / "two")
    assert load_model(tmp_path / "two" / "last").adapter is not None


@pytest.mark.parametrize(
    ("family", "training"),
    [("text", {"strategy": "ddp"}), ("text", {"strategy": "fsdp"}), ("pairs", {"strategy": "ddp"})],
    ids=["text-ddp", "text-fsdp", "pairs-ddp"],
)
@pytest.mark.exhaustive  # test_exact_ranks.py and test_sharded_checkpoint.py resume on several ranks
def test_two_processes_resume(tmp_path: Path, family: str, training: dict[str, Any]) -> None:
    single_run = train(
        TINY[family](tmp_path, COMPARABLE_SETTINGS[family], **training | {"strategy": "auto"}),
        tmp_path / "one",
        quiet=True,
    )
    recipe, two = recipe_for_two(tmp_path, family, **training), tmp_path / "two"
    assert start_run(recipe, two, prepare=dies_at_rename(1, after=True, name=CHECKPOINT)).wait() == -signal.SIGKILL
    assert list((two / "checkpoints").iterdir())
    assert not json.loads((two / "run.json").read_text())["finished"]
    start_run(recipe, two).finish()
    assert_nearly_same(single_run, two, sharded=training["strategy"] == "fsdp")


@pytest.mark.parametrize("launcher", [TORCHRUN, PLAIN_CALL], ids=["torchrun", "lightning"])
@pytest.mark.exhaustive
def test_launched_processes_extend_a_run(tmp_path: Path, launcher: list[str]) -> None:
    """The processes determine the new length separately, before or after the first has recorded it."""
    single_run = train(
        TINY["text"](tmp_path, COMPARABLE_SETTINGS["text"], schedule="constant"), tmp_path / "one", quiet=True
    )
    launch(tmp_path, launcher, recipe_for_two(tmp_path, "text", schedule="constant", max_steps=6))
    assert_nearly_same(single_run, launch(tmp_path, launcher, recipe_for_two(tmp_path, "text", schedule="constant")))


@pytest.mark.exhaustive
def test_two_processes_extend_a_run(tmp_path: Path) -> None:
    single_run = train(
        TINY["text"](tmp_path, COMPARABLE_SETTINGS["text"], schedule="constant"), tmp_path / "one", quiet=True
    )
    for steps in (6, 12):
        recipe = recipe_for_two(tmp_path, "text", schedule="constant", max_steps=steps)
        start_run(recipe, tmp_path / "two").finish()
    assert_nearly_same(single_run, tmp_path / "two")
