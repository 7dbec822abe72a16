"""The readable example loop and the training of a run are the same algorithm."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import steps_by_hand
from tiny_runs import ADAMW, MUON, PAIRS_MUON, resume_state, tiny_pairs_recipe, tiny_recipe

from tercet.checkpoint import load_model
from tercet.training import train
from tercet.training.tasks.open_task import task_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "train_by_hand.py"


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": ADAMW},
        {"optimizer": MUON, "schedule": "wsd", "micro_batch_size": None, "clip_norm": None},
        {"optimizer": "adam", "max_steps": None, "max_epochs": 2, "micro_batch_size": 5, "clip_norm": 0.1},
    ],
)
@pytest.mark.parametrize("rows", ["packed", "padded"])
def test_same_weights(tmp_path: Path, training: dict[str, Any], rows: str) -> None:
    tokenizer = {"kind": "characters", "eos": False, "pad": True}
    recipe = tiny_recipe(tmp_path, {"data": {"rows": rows, "tokenizer": tokenizer}}, **training)
    if rows == "padded":  # an epoch of windows one token apart is long
        recipe = tiny_recipe(
            tmp_path, {"data": {"rows": {"kind": rows, "stride": 8}, "tokenizer": tokenizer}}, **training
        )
    by_hand = _example().train_by_hand(recipe).state_dict()
    trained_model = load_model(train(recipe, tmp_path / "run", quiet=True) / "last").model.state_dict()
    assert all(torch.equal(by_hand[name], trained_model[name]) for name in trained_model)


@pytest.mark.slow
@pytest.mark.parametrize(
    "training",
    [
        {"optimizer": PAIRS_MUON, "schedule": "wsd", "micro_batch_tokens": None, "clip_norm": None},
        {"optimizer": "adam", "max_steps": None, "max_epochs": 2, "clip_norm": 0.1, "label_smoothing": 0.0},
    ],
    ids=["muon", "adam"],
)
def test_same_weights_of_a_translator(tmp_path: Path, training: dict[str, Any]) -> None:
    recipe = tiny_pairs_recipe(tmp_path, **training, sample_sentences=0, validation_sentences=0, best_by="loss")
    out = train(recipe, tmp_path / "run", quiet=True)
    *_, last = steps_by_hand(task_of(recipe, progress=False))
    state = resume_state(out)["state_dict"]
    assert all(torch.equal(state[f"model.{name}"], x) for name, x in last.weights.items())


def _example() -> Any:
    spec = importlib.util.spec_from_file_location("train_by_hand", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
