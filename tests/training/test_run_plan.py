"""A plan equals the run in steps, tokens and FLOPs; and its computation of time, cost and network traffic."""

import json
import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tiny_runs import TINY, figures, tiny_masked_recipe, tiny_pairs_recipe, tiny_recipe
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import tercet
from tercet.checkpoint.metrics import read_metrics
from tercet.config import UserError, to_plain
from tercet.models import build
from tercet.settings_yaml import write_yaml
from tercet.training import Recipe, train
from tercet.training.compute.speed import Speed
from tercet.training.optim.trainable import set_trainable
from tercet.training.planning import plan_run
from tercet.training.planning.flops import training_flops
from tercet.training.planning.gpus import GIB, GPU, Cluster
from tercet.training.planning.micro_batch import largest_that_fits, micro_batch
from tercet.training.planning.step_memory import measure_step
from tercet.training.tasks.open_task import task_of

FAST = GPU("fast", 16 * GIB, 100e12)


def make_plan(recipe: Recipe, **options: Any) -> Any:
    return plan_run("tiny", recipe, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("length", "ramp"),
    [
        ({"max_steps": None, "max_epochs": 2}, 0.5),
        pytest.param({}, None, marks=pytest.mark.exhaustive),
        pytest.param({}, 0.5, marks=pytest.mark.exhaustive),
    ],
)
def test_steps_and_tokens_are_those_of_the_run(length: dict[str, Any], ramp: float | None, tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, batch_ramp=ramp, **length)
    plan = make_plan(recipe)
    run = figures(train(recipe, tmp_path / "run", quiet=True))
    steps, tokens = run["tokens"][-1]
    assert (plan.steps, plan.tokens) == (steps, tokens)
    assert plan.length_from == ("max_epochs" if length else "max_steps")
    last = run["tokens"][-1][1] - run["tokens"][-2][1]
    assert plan.tokens_per_step == last == 16 * 8
    assert (plan.batch, plan.micro_batch, plan.micro_batches) == (16, 4, 4)
    assert plan.flops == plan.tokens * plan.flops_per_token
    assert plan.flops_per_step == plan.tokens_per_step * plan.flops_per_token


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [name if name in ("chat", "pairs") else pytest.param(name, marks=pytest.mark.exhaustive) for name in TINY]
)
def test_every_family_has_a_plan_in_json(family: str, tmp_path: Path) -> None:
    recipe, devices = TINY[family](tmp_path), 3 if family == "pairs" else 2
    plan = make_plan(recipe, cluster=Cluster(FAST, devices), mfu=0.5, price=3.0)
    assert json.loads(json.dumps(to_plain(plan)))["devices"] == devices
    plain, checkpointed = plan.memory
    assert not plain.checkpointing
    assert checkpointed.activations < plain.activations
    assert plain.fits
    assert plain.largest_micro_batch == plan.batch // devices
    max_vocabulary = sum((plan.vocabulary_at_most or {}).values())  # the text may have fewer tokens
    assert plan.parameters >= sum(p.numel() for p in build(task_of(recipe, progress=False).recipe.model).parameters())
    assert (plan.parameters > max_vocabulary * 16) if max_vocabulary else plan.vocabulary_at_most is None


def counted_flops(recipe: Recipe) -> tuple[float, int]:
    """Return PyTorch's FLOP count of a step's first micro-batch, forward and backward, and its number of tokens."""
    task = task_of(recipe, progress=False)
    model = build(task.recipe.model).train()
    set_trainable(model, freeze=recipe.freeze, adapter=recipe.adapter)
    batch: Any = task.batches(0, 0, 1)[0]
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        task.loss(model, batch).total.backward()
    return counter.get_total_flops(), batch[0].numel()


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{}, {"model": {"tie_embeddings": False}}, {"model": {"tie_embeddings": False}, "freeze": ["unembedding"]}],
    ids=["tied", "untied", "frozen"],
)
def test_flops_equal_count_of_pytorch(changes: dict[str, Any], tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, changes)
    expected_flops, tokens = counted_flops(recipe)
    assert training_flops(task_of(recipe, progress=False).recipe).per_token * tokens == expected_flops


def test_masked_model_scores_only_masked_positions(tmp_path: Path) -> None:
    recipe = tiny_masked_recipe(tmp_path)
    expected_flops, tokens = counted_flops(recipe)
    assert training_flops(task_of(recipe, progress=False).recipe).per_token * tokens == pytest.approx(
        expected_flops, rel=0.01
    )


@pytest.mark.slow
def test_time_and_cost_follow_from_flops_and_peak(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    plan = make_plan(recipe, cluster=Cluster(FAST, 4, 2), mfu=0.25, price=8.0)
    assert plan.time.seconds == pytest.approx(plan.flops / (4 * 0.25 * 100e12))
    assert plan.time.seconds_per_step == pytest.approx(plan.time.seconds / plan.steps)
    assert plan.time.gpu_hours == pytest.approx(4 * plan.time.seconds / 3600)
    assert plan.time.cost == pytest.approx(8 * plan.time.gpu_hours)
    assert plan.micro_batches == 1  # four rows each
    assert plan.communicated_bytes == 2 * 4 * plan.parameters * 3 // 4
    sharded = replace(recipe, training=replace(recipe.training, strategy="fsdp", ema=None))
    assert make_plan(sharded, cluster=Cluster(FAST, 4)).communicated_bytes == 2 * 4 * plan.parameters * 3 // 4
    assert make_plan(recipe).communicated_bytes == 0
    assert make_plan(recipe).time is None


@pytest.mark.slow
def test_hours_become_steps_by_the_speed(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, max_steps=None, max_hours=1e-9)
    assert make_plan(recipe).steps is None
    assert make_plan(recipe).flops is None
    plan = make_plan(recipe, cluster=Cluster(FAST, 1), mfu=0.5)
    assert plan.time.seconds <= 3600 * 1e-9 < plan.time.seconds + plan.time.seconds_per_step


@pytest.mark.slow
def test_plan_uses_measured_speed_of_a_run(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path)
    run = train(recipe, tmp_path / "run", quiet=True)
    rate = statistics.median(rate for _, rate in read_metrics(run / "metrics.csv")["tokens_per_second"])
    plan = make_plan(recipe, measured=run)
    assert plan.time.throughput.basis == "run"
    assert f"{rate:,.0f} tokens/s on one device (cpu) in {run}" in plan.time.throughput.described
    assert plan.time.seconds == pytest.approx(plan.tokens / rate)
    wider = replace(recipe, model=replace(recipe.model, max_len=16))  # a larger model at the same FLOP/s
    flops = make_plan(wider, measured=run)
    assert flops.time.seconds == pytest.approx(flops.flops / (rate * plan.flops_per_token))
    with pytest.raises(UserError, match="measures cpu, which does not apply to fast; leave out --gpus, or pass --mfu"):
        make_plan(recipe, measured=run, cluster=Cluster(FAST, 1))
    (run / "metrics.csv").unlink()
    with pytest.raises(UserError, match=r"no metrics\.csv yet"):
        make_plan(recipe, measured=run)


@pytest.mark.slow
def test_this_machine_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.training.compute.speed.speed", lambda *_, **__: Speed(2.0, 0.5, 3.0))
    plan = make_plan(tiny_recipe(tmp_path), here=True)
    assert plan.time.seconds == 12 * 2.5 + (12 // 3 + 1) * 3.0
    assert plan.time.throughput.flops_per_second == pytest.approx(plan.flops_per_step / 2.5)
    assert plan.time.throughput.described == "2.5 s per step, measured on this machine (cpu)"
    assert plan.memory[0].fits


@pytest.mark.slow
def test_the_largest_micro_batch_is_the_last_that_fits(tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, batch_size=32, micro_batch_size=1)
    sized_recipe = task_of(recipe, progress=False).recipe

    def total(micro: int) -> int:
        step = measure_step(sized_recipe, micro=micro, device="cuda", precision="fp32", checkpointing=False)
        return step.weights + step.gradients + step.optimizer + step.activations + step.workspace

    small = GPU("small", int(total(20) / 0.9) + 1, None)
    largest = make_plan(recipe, cluster=Cluster(small, 1)).memory[0].largest_micro_batch
    assert largest is not None
    assert total(largest) <= 0.9 * small.memory_bytes < total(largest + 1)
    assert micro_batch(sized_recipe) == 1
    tiny = make_plan(recipe, cluster=Cluster(GPU("tiny", 10_000, None), 1)).memory[0]
    assert (tiny.fits, tiny.largest_micro_batch) == (False, None)


@given(st.integers(0, 10**6), st.integers(1, 10**4), st.integers(0, 10**8), st.integers(1, 5000))
def test_largest_micro_batch_is_exact_for_linear_memory(base: int, row_bytes: int, room: int, maximum: int) -> None:
    found = largest_that_fits(lambda micro: base + row_bytes * micro, room, maximum=maximum)
    expected = min(maximum, (room - base) // row_bytes)
    assert found == (expected if expected >= 1 else None)


@pytest.mark.slow
def test_a_translator_is_planned_by_tokens(tmp_path: Path) -> None:
    plan = make_plan(tiny_pairs_recipe(tmp_path))
    assert (plan.unit, plan.rows) == ("token pair", "tokens per side")
    assert (plan.batch, plan.micro_batch, plan.micro_batches, plan.tokens_per_step) == (192, 64, 3, 192)
    assert plan.tokens == 12 * 192


@pytest.mark.slow
def test_an_adapter_learns_little_and_keeps_little(tmp_path: Path) -> None:
    run = train(tiny_recipe(tmp_path, max_steps=3), tmp_path / "run", quiet=True)
    recipe_file = tmp_path / "own.yaml"
    recipe_file.write_text(write_yaml(tiny_recipe(tmp_path)))
    full_plan = tercet.plan(recipe_file, pretrained=run)
    lora_plan = tercet.plan(recipe_file, pretrained=run, changes={"adapter": {"kind": "lora", "rank": 2}})
    assert lora_plan.trainable == 2 * 2 * 2 * 16  # two layers of one block, two matrices each
    assert lora_plan.parameters == full_plan.parameters + lora_plan.trainable
    assert lora_plan.memory[0].gradients == 4 * lora_plan.trainable
    assert lora_plan.memory[0].optimizer < full_plan.memory[0].optimizer
    assert full_plan.flops_per_token > lora_plan.flops_per_token > full_plan.flops_per_token * 2 // 3


@pytest.mark.slow
def test_indivisible_settings_are_reported(tmp_path: Path) -> None:
    with pytest.raises(
        UserError, match=r"on 3 GPUs: task\.batch_size=16 must be divisible by the number of devices: 3"
    ):
        make_plan(tiny_recipe(tmp_path), cluster=Cluster(FAST, 3))
    with pytest.raises(UserError, match="--mfu requires a peak, but --gpus has none"):
        make_plan(tiny_recipe(tmp_path), cluster=Cluster(GPU("48 GiB", 48 * GIB, None), 1), mfu=0.3)


@pytest.mark.exhaustive
def test_nothing_of_the_models_size_is_allocated(tmp_path: Path) -> None:
    """Planning a model of 3 TB works too."""
    stack = {"d_model": 65_536, "n_heads": 64, "n_layers": 16}
    recipe = tiny_recipe(tmp_path, {"model": {"stack": stack}})
    plan = make_plan(recipe, cluster=Cluster(FAST, 16))
    assert plan.memory[0].weights > 3 * 10**12
    assert not plan.memory[0].fits
    assert torch.get_default_dtype() == torch.float32
