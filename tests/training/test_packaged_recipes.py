"""Every recipe that comes with Tercet builds, and takes a step when its sizes are made small."""

import csv
import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_runs import tiny_recipe

from tercet.checkpoint import load_model
from tercet.config import UserError, parse_yaml, write_yaml
from tercet.models import DecoderOnly
from tercet.training import load_recipe, parse_recipe, recipe_names, recipe_text, train
from tercet.training.metrics import COLUMNS

SMALL: dict[str, Any] = {
    "data": {"tokenizer": {"kind": "characters", "byte_fallback": True, "pad": True}, "validation": {"kind": "tail"}},
    "model": {"max_len": 8, "stack": {"d_model": 16, "n_layers": 1, "n_heads": 2, "d_ff": 16}},
    "training": {
        "max_steps": 1,
        "max_epochs": None,
        "batch_size": 2,
        "micro_batch_size": 1,
        "sample_tokens": 3,
        "validation_tokens": 64,
        "accelerator": "cpu",
    },
    "logging": {"wandb": "none"},
}

has_wandb = pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb")
has_tensorboard = pytest.mark.skipif(importlib.util.find_spec("tensorboard") is None, reason="needs tensorboard")


@pytest.mark.parametrize("name", recipe_names())
def test_it_builds_at_its_own_size(name: str) -> None:
    recipe = load_recipe(name)
    assert parse_recipe(parse_yaml(write_yaml(recipe), name=name), name=name) == recipe
    assert recipe_names()[name]  # its first line says what it is
    assert recipe_text(name).startswith("# ")
    with torch.device("meta"):
        DecoderOnly(recipe.with_vocabulary(recipe.model.vocab_size or 100).model)


@pytest.mark.parametrize("name", recipe_names())
def test_it_takes_a_step(name: str, tmp_path: Path) -> None:
    changes = {**SMALL, "data": {**SMALL["data"], "source": str(tmp_path / "text.txt")}}
    tiny_recipe(tmp_path)  # writes the text
    out = train(load_recipe(name, changes), tmp_path / "run", quiet=True)
    assert load_model(out).card.step == 1
    with (out / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["step"] for row in rows] == ["1"]
    assert list(rows[0]) == list(COLUMNS)
    assert all(float(rows[0][name]) > 0 for name in ("train/loss", "val/loss", "lr", "grad_norm", "seconds"))


def test_an_unknown_recipe() -> None:
    with pytest.raises(UserError, match="unknown recipe 'animal'; did you mean 'animals'"):
        load_recipe("animal")


def test_its_own_gpt2_parameters() -> None:
    recipe = load_recipe("gpt2-124m")
    assert recipe.model.vocab_size == 50257
    with torch.device("meta"):
        model = DecoderOnly(recipe.model)
    padded = 47 * 768  # 50,257 rows rounded up to a multiple of 64
    assert sum(p.numel() for p in model.parameters()) == 124_439_808 + padded


@has_wandb
@pytest.mark.slow
def test_nutshell_writes_an_offline_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny_recipe(tmp_path)
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    changes = {
        **SMALL,
        "data": {**SMALL["data"], "source": str(tmp_path / "text.txt")},
        "logging": {"wandb": "offline"},
    }
    out = train(load_recipe("nutshell", changes), tmp_path / "my run", quiet=True)
    assert list(out.glob("wandb/offline-run-*/*.wandb"))


@has_tensorboard
@pytest.mark.slow
def test_tensorboard(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, {"logging": {"tensorboard": True}}, max_steps=2)
    out = train(recipe, tmp_path / "run", quiet=True)
    assert list(out.glob("tensorboard/events.out.tfevents.*"))


@pytest.mark.parametrize("name", ["wandb", "tensorboard"])
def test_a_logger_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    value = {"wandb": "offline", "tensorboard": True}[name]
    recipe = tiny_recipe(tmp_path, {"logging": {name: value}}, max_steps=1)
    with pytest.raises(UserError, match=rf"logging\.{name} needs the package {name}; pip install 'tercet\[{name}\]'"):
        train(recipe, tmp_path / "run", quiet=True)
    assert not json.loads((tmp_path / "run" / "run.json").read_text())["finished"]
