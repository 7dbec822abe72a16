"""The moving average is validated and exported; the run itself continues from the plain weights."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from by_hand import Step, steps_by_hand
from tiny_runs import NO_SAMPLES, TINY, figures, resume_state, tiny_pairs_recipe, weights
from torch import Tensor
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from tercet.checkpoint import load_model
from tercet.models import build
from tercet.training import train
from tercet.training.loop import module as module_file
from tercet.training.loop.module import TrainingModule
from tercet.training.loop.out_of_memory import MicroBatchHalving
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.tasks.open_task import task_of

pytestmark = pytest.mark.slow  # each test trains a whole run


def families(*normal: str) -> list[Any]:
    """Return all families; those that are not named are exhaustive tests."""
    return [name if name in normal else pytest.param(name, marks=pytest.mark.exhaustive) for name in TINY]


def resume_weights(run: Path) -> dict[str, Tensor]:
    """Return the weights that a run resumes from."""
    state = resume_state(run)["state_dict"]
    return {name.removeprefix("model."): x for name, x in state.items() if name.startswith("model.")}


def assert_is_average(run: Path, folder: str, step: Step) -> None:
    saved_weights = load_model(run / folder).model.state_dict()
    assert saved_weights.keys() == step.average.keys()
    for name, average in step.average.items():
        torch.testing.assert_close(
            saved_weights[name], average, atol=1e-6, rtol=1e-5, msg=lambda m, name=name: f"{name}: {m}"
        )


@pytest.mark.parametrize("family", families("pairs", "labels"))
def test_best_and_last_are_averages_of_the_steps(
    tmp_path: Path, finished_run: Callable[[str], Path], family: str
) -> None:
    recipe = TINY[family](tmp_path, ema=0.4, **NO_SAMPLES[family])
    out = finished_run(family) if family == "pairs" else train(recipe, tmp_path / "run", quiet=True)
    steps = list(steps_by_hand(task_of(recipe, progress=False)))
    assert_is_average(out, "last", steps[-1])
    assert_is_average(out, "best", steps[load_model(out / "best").card.step - 1])
    saved_weights = resume_weights(out)
    assert all(torch.equal(saved_weights[name], x) for name, x in steps[-1].weights.items())
    name = "embedding.weight"
    assert not torch.allclose(steps[-1].average[name], steps[-1].weights[name], atol=1e-5)


def test_slow_average_is_detected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def plain(model: Any, decay: float) -> AveragedModel:
        return AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(decay)).requires_grad_(False)

    monkeypatch.setattr(module_file, "MovingAverage", plain)
    recipe = tiny_pairs_recipe(tmp_path, max_steps=3)
    out = train(recipe, tmp_path / "run", quiet=True)
    *_, last = steps_by_hand(task_of(recipe, progress=False))
    with pytest.raises(AssertionError, match="not close"):
        assert_is_average(out, "last", last)


def test_early_average_is_not_the_first_weights(tmp_path: Path) -> None:
    """With a decay of 0.999 and no warm-up, the average would equal the first step's weights after five steps."""
    out = train(tiny_pairs_recipe(tmp_path, ema=0.999, max_steps=5), tmp_path / "run", quiet=True)
    first = train(tiny_pairs_recipe(tmp_path, max_steps=1), tmp_path / "first", quiet=True)
    average = load_model(out / "last").model.state_dict()["embedding.weight"]
    first_embedding, last_embedding = resume_weights(first)["embedding.weight"], resume_weights(out)["embedding.weight"]
    assert float((average - last_embedding).norm()) < 0.5 * float((first_embedding - last_embedding).norm())
    assert load_model(first / "last").model.state_dict().keys() == resume_weights(first).keys()
    assert torch.equal(load_model(first / "last").model.state_dict()["embedding.weight"], first_embedding)


@pytest.mark.parametrize("family", families("pairs", "text"))
def test_average_changes_only_validated_weights(
    tmp_path: Path, finished_run: Callable[[str], Path], family: str
) -> None:
    other_recipe = TINY[family](tmp_path, ema=None if family == "pairs" else 0.4)
    runs = finished_run(family), train(other_recipe, tmp_path / "other", quiet=True)
    averaged_run, plain_run = runs if family == "pairs" else reversed(runs)
    assert not any("average" in name for name in resume_state(plain_run)["state_dict"])
    averaged_weights, plain_weights = resume_weights(averaged_run), resume_weights(plain_run)
    assert all(torch.equal(averaged_weights[name], x) for name, x in plain_weights.items())
    expected, actual = figures(plain_run), figures(averaged_run)
    assert actual["train/loss"] == expected["train/loss"]
    assert actual["grad_norm"] == expected["grad_norm"]
    assert actual["val/loss"] != expected["val/loss"]
    saved_weights = load_model(plain_run / "last").model.state_dict()
    assert all(torch.equal(saved_weights[name], x) for name, x in plain_weights.items())
    assert weights(averaged_run) != weights(plain_run)


def test_tied_weights_stay_tied_in_the_average(tmp_path: Path) -> None:
    task = task_of(tiny_pairs_recipe(tmp_path), progress=False)
    halving = MicroBatchHalving(task, exact=False, save=lambda step, size: None)
    module = TrainingModule(build(task.recipe.model), task, halving)
    assert module.eval_model is not module.model
    assert module.eval_model.embedding.weight is not module.model.embedding.weight
    assert module.eval_model.unembedding.weight is module.eval_model.embedding.weight
    sizes = [sum(p.numel() for p in model.parameters()) for model in (module.model, module.eval_model)]
    assert sizes[0] == sizes[1]
    assert not any(p.requires_grad for p in module.eval_model.parameters())
    parameters = [
        p for group in build_optimizer(module.spec.optimizer, module.model).param_groups for p in group["params"]
    ]
    assert len(parameters) == len(list(module.model.parameters()))
