"""A model that is split over ranks by tensor parallelism equals the whole model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from machines import run_ranks
from tiny_runs import TINY

from tercet.config import UserError
from tercet.models import build
from tercet.training import Recipe
from tercet.training.planning.micro_batch import micro_batch
from tercet.training.planning.plan_run import count_step, plan_run
from tercet.training.planning.ranks import communicated_bytes, rank_part

RANKS = Path(__file__).with_name("tensor_parallel_program.py")
NO_DROPOUT: dict[str, Any] = {"attention": 0.0, "activation": 0.0}


@pytest.mark.slow
@pytest.mark.parametrize("world", [2, pytest.param(4, marks=pytest.mark.exhaustive)])
def test_losses_and_gradients_are_those_of_the_whole(world: int, tmp_path: Path) -> None:
    """The test covers all families, position schemes and forms of attention, over gloo."""
    for results in run_ranks(RANKS, tmp_path, world):
        assert len(results) >= 13
        for name, (actual, expected, numbers) in results.items():
            assert set(actual) == set(expected), name
            for key in expected:
                is_close = torch.allclose(actual[key], expected[key], atol=1e-6, rtol=1e-4)
                assert is_close, f"{name}: {key} is off by {(actual[key] - expected[key]).abs().max()}"
            assert numbers < sum(x.numel() for x in expected.values()), name


def tp(folder: Path, family: str = "text", /, **stack: Any) -> Recipe:
    stack = {"dropout": NO_DROPOUT, **stack}
    parts = ("encoder", "decoder") if family == "pairs" else ("stack",)
    changes = {"model": dict.fromkeys(parts, stack)}
    return TINY[family](folder, changes, devices=2, strategy="tp", ema=None, best_by="loss")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_heads": 3, "d_head": 4}, "strategy=tp: n_heads=3 is not divisible by 2 devices"),
        ({"n_kv_heads": 1}, "n_kv_heads=1"),
        ({"d_ff": 33}, "d_ff=33"),
        ({"dropout": {"attention": 0.1, "activation": 0.0}}, "set dropout.attention to 0"),
        ({"dropout": {"attention": 0.0, "activation": 0.1}}, "set dropout.activation to 0"),
    ],
)
def test_indivisible_models_are_rejected(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=message):
        tp(tmp_path, **changes)


def test_it_is_for_one_node_and_not_exact(tmp_path: Path) -> None:
    training = tp(tmp_path).training
    with pytest.raises(ValueError, match="expected one node, got 2; set strategy to fsdp"):
        replace(training, nodes=2)
    with pytest.raises(ValueError, match="exact does not support strategy=tp"):
        replace(training, exact=True)
    with pytest.raises(ValueError, match="ema requires the whole model on one device, but strategy=tp"):
        replace(training, ema=0.9)


def test_all_devices_have_the_same_rows(tmp_path: Path) -> None:
    recipe = tp(tmp_path)
    single_device_recipe = replace(recipe, training=replace(recipe.training, devices=1, strategy="auto"))
    assert micro_batch(recipe) == micro_batch(single_device_recipe)
    assert {recipe.training.data_parallel_rank(rank) for rank in range(2)} == {0}


@pytest.mark.slow
@pytest.mark.parametrize("family", ["masked", "pairs"])
def test_a_plan_counts_what_a_device_has(family: str, tmp_path: Path) -> None:
    recipe = tp(tmp_path, family)
    plan = plan_run("tiny", recipe)
    assert plan.vocabulary_at_most is not None
    sized_recipe = replace(recipe, model=replace(recipe.model, vocab_size=max(plan.vocabulary_at_most.values())))
    n_parameters, n_part = (
        sum(p.numel() for p in build(r.model).parameters()) for r in (sized_recipe, rank_part(sized_recipe))
    )
    assert plan.strategy == "tp"
    assert plan.parameters == n_parameters
    assert plan.memory[0].weights == 4 * n_part
    assert plan.batch == plan.micro_batch * plan.micro_batches


@pytest.mark.slow
def test_communication_is_hidden_states(tmp_path: Path) -> None:
    """For each sublayer there is one sum per direction: a ring sends (R - 1)/R of twice its bytes."""
    recipe = tp(tmp_path)
    step = count_step(recipe, "cpu", "fp32", 1, False)
    stack, rows = recipe.model.stack, recipe.task.batch_size  # pyright: ignore
    numbers = 2 * 2 * stack.n_layers * rows * recipe.model.max_len * stack.d_model
    assert communicated_bytes(recipe, step, "fp32", share=rows, passes=1) == 4 * numbers
    assert communicated_bytes(recipe, step, "bf16", share=rows, passes=1) == 2 * numbers
