"""A step of `TrainingModule` without a trainer: its order, its average, and the seeds of its dropout."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tiny_runs import tiny_labels_recipe, tiny_recipe
from torch import Tensor

from tercet.models import build
from tercet.nn.specs import LoRA
from tercet.training.distributed.reduction import MeanReduction
from tercet.training.loop import module as module_file
from tercet.training.loop.datamodule import StepDataModule
from tercet.training.loop.module import TrainingModule, seed_generators, step_seed
from tercet.training.loop.out_of_memory import MicroBatchHalving
from tercet.training.optim.optimizers import base_rates, build_optimizer
from tercet.training.optim.trainable import set_trainable
from tercet.training.recipe.recipe import Recipe
from tercet.training.tasks.open_task import task_of


def make_module(recipe: Recipe, monkeypatch: pytest.MonkeyPatch) -> tuple[TrainingModule, torch.optim.Optimizer]:
    task = task_of(recipe, progress=False)
    halving = MicroBatchHalving(task, exact=False, save=lambda step, size: None)
    module = TrainingModule(build(task.recipe.model), task, halving)
    optimizer = build_optimizer(recipe.training.optimizer, module.model)
    module.base_rates, module.reduction = base_rates(optimizer), MeanReduction(module, 1)
    monkeypatch.setattr(module, "optimizers", lambda: optimizer)
    monkeypatch.setattr(module, "manual_backward", lambda loss: loss.backward())
    return module, optimizer


def embedding(model: Any) -> Tensor:
    return model.embedding.weight.detach().clone()


def test_the_average_is_taken_after_the_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first average is the weights after the first step, not the initial weights."""
    module, _ = make_module(tiny_recipe(tmp_path, ema=0.9, warmup_steps=0), monkeypatch)
    assert torch.equal(embedding(module.eval_model), initial := embedding(module.model))
    module.training_step(module.task.batches(0, 0, 1), 0)
    assert not torch.equal(embedding(module.model), initial)
    assert torch.equal(embedding(module.eval_model), embedding(module.model))
    assert all(p.grad is None for p in module.parameters())
    assert module.tokens_seen == module.task.tokens_before(1) > 0


@pytest.mark.parametrize("decay", [0.5, 0.999])
def test_a_young_average_has_a_smaller_decay(decay: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In step n, counted from 0, it is min(decay, (1 + n) / (10 + n)); the first average is the first weights."""
    module, _ = make_module(tiny_recipe(tmp_path, ema=decay), monkeypatch)
    assert module.average is not None
    expected = 0.0
    for n in range(20):
        with torch.no_grad():
            module.model.embedding.weight.fill_(float((n + 2) ** 2))
        module.average.update_parameters(module.model)
        early = min(decay, (1 + n) / (10 + n)) if n else 0.0
        expected = early * expected + (1 - early) * (n + 2) ** 2
        assert float(embedding(module.eval_model)[0, 0]) == pytest.approx(expected, rel=1e-5)


def test_each_micro_batch_of_each_rank_draws_its_own_dropout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The micro-batches of two ranks are numbered like those of one rank."""
    module, _ = make_module(tiny_recipe(tmp_path, devices=2, strategy="ddp", micro_batch_size=4, seed=5), monkeypatch)
    seeds = list[int]()
    monkeypatch.setattr(module_file, "seed_generators", lambda seed, device: seeds.append(seed))
    for rank in range(2):
        monkeypatch.setattr(TrainingModule, "global_rank", rank)
        module.training_step(module.task.batches(0, rank, 2), 0)
    assert seeds == [step_seed(5, 0, micro_batch) for micro_batch in range(4)]


def test_seeds_of_steps_are_distinct() -> None:
    places = [(seed, step, part) for seed in range(4) for step in range(20) for part in range(20)]
    assert len({step_seed(*place) for place in places}) == len(places)
    assert 0 <= step_seed(2**63 - 1, 2**40, 2**10) < 2**63


@pytest.mark.parametrize(("limit", "scale"), [(None, 1.0), (0.5, None), (1e6, 1.0)])
def test_gradients_are_clipped_only_with_a_limit(
    limit: float | None, scale: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tiny_recipe(tmp_path, optimizer={"kind": "muon"}, clip_norm=limit)
    module, optimizer = make_module(recipe, monkeypatch)
    monkeypatch.setattr(TrainingModule, "trainer", type("Trainer", (), {"precision": "32-true"}))
    gradients = [torch.randn_like(p) for p in module.model.parameters()]
    norm = torch.cat([x.flatten() for x in gradients]).norm()
    for p, gradient in zip(module.model.parameters(), gradients, strict=True):
        p.grad = gradient.clone()
    module.on_before_optimizer_step(optimizer)
    torch.testing.assert_close(module.last_norm, norm)
    for p, gradient in zip(module.model.parameters(), gradients, strict=True):
        torch.testing.assert_close(p.grad, gradient * (0.5 / norm if scale is None else scale), rtol=1e-4, atol=1e-8)


def test_a_resumed_run_takes_the_batches_that_are_left(tmp_path: Path) -> None:
    task = task_of(tiny_recipe(tmp_path), progress=False)
    data: Any = StepDataModule(task)
    strategy = SimpleNamespace(root_device=torch.device("cpu"))
    data.trainer = SimpleNamespace(global_step=9, global_rank=0, strategy=strategy)
    inputs = [[batch.inputs.tolist() for batch in batches] for batches in data.train_dataloader()]
    assert inputs == [[batch.inputs.tolist() for batch in task.batches(step, 0, 1)] for step in (9, 10, 11)]


def test_new_weights_are_trained_with_an_adapter(tmp_path: Path) -> None:
    model = build(task_of(tiny_labels_recipe(tmp_path), progress=False).recipe.model)
    set_trainable(model, new=["embedding.weight"], adapter=LoRA(rank=2), seed=1)
    learning = {name for name, p in model.named_parameters() if p.requires_grad}
    assert {"classifier.weight", "classifier.bias", "embedding.weight"} < learning
    rest = learning - {"embedding.weight"}
    assert all("lora" in name or name.startswith("classifier.") for name in rest)
    assert any("lora" in name for name in rest)


def test_generators_are_seeded_as_torch_seeds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(11)
    expected = torch.get_rng_state()
    torch.rand(3)
    seed_generators(11, torch.device("cpu"))
    assert torch.equal(torch.get_rng_state(), expected)
    seeds = list[int]()
    monkeypatch.setattr(torch.cuda, "manual_seed", seeds.append)
    torch.rand(3)
    seed_generators(11, torch.device("cuda"))
    assert torch.equal(torch.get_rng_state(), expected)
    assert seeds == [11]
