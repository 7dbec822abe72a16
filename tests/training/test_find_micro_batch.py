"""`auto` micro-batches: a device's share in as few equal parts as fit its memory, fixed when a run starts."""

from dataclasses import fields, replace
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny_runs import TINY, tiny_recipe, weights

from tercet.checkpoint.run_record import read_record
from tercet.config import UserError
from tercet.diagnosis.recipe_use import diagnose_recipe
from tercet.training import Recipe, train
from tercet.training.planning.gpus import GPU, Cluster
from tercet.training.planning.micro_batch import auto_micro_batch, device_share
from tercet.training.planning.plan_run import plan_run
from tercet.training.planning.step_memory import StepMemory, measure_step
from tercet.training.planning.this_machine import free_memory, free_of_linux, machine_memory
from tercet.training.run_folder.choices import More, Resume
from tercet.training.tasks.open_task import task_of

FREE = "tercet.training.planning.find_micro_batch.free_memory"
KEYS = {family: "micro_batch_tokens" if family == "pairs" else "micro_batch_size" for family in TINY}


def measure_memory(recipe: Recipe, micro: int) -> int:
    """Return the bytes of a step with this micro-batch, including the headroom."""
    sized_recipe = task_of(recipe, progress=False).recipe
    step = measure_step(sized_recipe, micro=micro, device="cpu", precision="fp32", checkpointing=False)
    total = step.weights + step.gradients + step.optimizer + step.average + step.activations + step.workspace
    return ceil(total / 0.9) + 10


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", [name if name == "text" else pytest.param(name, marks=pytest.mark.exhaustive) for name in TINY]
)
def test_micro_batch_is_determined_once(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = TINY[family](tmp_path, max_steps=3, schedule="constant", **{KEYS[family]: "auto"})
    half = device_share(recipe) // 2
    free = measure_memory(recipe, half)
    monkeypatch.setattr(FREE, lambda *_: free)
    out = train(recipe, tmp_path / "run")
    assert f"2 micro-batches of {half} " in capsys.readouterr().err
    monkeypatch.setattr(FREE, lambda *_: 1)
    train(recipe, out, Resume(More(1)), quiet=True)
    record = read_record(out)
    assert record is not None
    assert (record.saved, record.micro_batches) == (4, ((0, half),))
    if family != "pairs":  # with pairs, a micro-batch stays a device's share of a bucket
        fixed_recipe = TINY[family](tmp_path, max_steps=4, schedule="constant", **{KEYS[family]: half})
        assert weights(out) == weights(train(fixed_recipe, tmp_path / "told", quiet=True))


@pytest.mark.slow
def test_single_row_is_tried_even_if_estimated_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The estimate does not prevent the attempt."""
    monkeypatch.setattr(FREE, lambda *_: 10)
    recipe = tiny_recipe(tmp_path, max_steps=1, micro_batch_size="auto")
    record = read_record(train(recipe, tmp_path / "run", quiet=True))
    assert record is not None
    assert record.micro_batch == 1


@pytest.mark.slow
@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.integers(1, 200), available=st.integers(1, 300))
def test_parts_are_equal_and_as_few_as_fit(share: int, available: int, tmp_path: Path) -> None:
    recipe = tiny_recipe(tmp_path, batch_size=share, micro_batch_size="auto")
    empty_memory = StepMemory(**{field.name: 0 for field in fields(StepMemory)})
    micro = auto_micro_batch(
        recipe, lambda n, _: replace(empty_memory, activations=n), checkpointing=False, available_bytes=available
    )
    assert micro <= available
    assert ceil(share / micro) == ceil(share / available)
    assert micro * ceil(share / micro) - share < ceil(share / micro)  # one row fewer in each part would not be enough


@pytest.mark.parametrize("available", [1, 30, 31, 33, 40])
def test_micro_batch_of_pairs_holds_the_longest_sentence(available: int, tmp_path: Path) -> None:
    recipe = TINY["pairs"](tmp_path, batch_tokens=100, micro_batch_tokens="auto")
    recipe = replace(recipe, model=replace(recipe.model, max_len=30))
    empty_memory = StepMemory(**{field.name: 0 for field in fields(StepMemory)})
    micro = auto_micro_batch(
        recipe, lambda n, _: replace(empty_memory, activations=n), checkpointing=False, available_bytes=available
    )
    assert micro == {40: 34, 33: 30, 31: 30, 30: 30, 1: 30}[available]


@pytest.mark.exhaustive
def test_plan_determines_micro_batch(tmp_path: Path) -> None:
    auto, fixed_recipe = (tiny_recipe(tmp_path, batch_size=64, micro_batch_size=size) for size in ("auto", 32))
    free = measure_memory(fixed_recipe, 40)
    plan, expected = (
        plan_run("tiny", recipe, cluster=Cluster(GPU("small", free, None), 1)) for recipe in (auto, fixed_recipe)
    )
    assert plan == expected
    assert (plan.micro_batch, plan.micro_batches) == (32, 2)
    assert plan_run("tiny", auto).micro_batch == 64  # the memory of no device is known


@pytest.mark.slow
def test_doctor_determines_micro_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = tiny_recipe(tmp_path, batch_size=64, micro_batch_size="auto")
    free = measure_memory(recipe, 40)
    monkeypatch.setattr("tercet.diagnosis.recipe_use.device_memory", lambda: free)
    use = diagnose_recipe("tiny", recipe)
    assert (use.micro_batch, use.micro_batches, use.fits) == (32, 2, True)


def test_free_memory_is_the_minimum_of_reported_limits(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    group = tmp_path / "sys/fs/cgroup"
    group.mkdir(parents=True)
    assert list(free_of_linux(tmp_path)) == []
    (tmp_path / "proc/meminfo").write_text("MemTotal:       24 kB\nMemFree: 2 kB\nMemAvailable:   12 kB\n")
    assert list(free_of_linux(tmp_path)) == [12 << 10]
    (group / "memory.current").write_text("1000\n")
    (group / "memory.max").write_text("max\n")
    assert list(free_of_linux(tmp_path)) == [12 << 10]
    (group / "memory.max").write_text("5000\n")
    assert list(free_of_linux(tmp_path)) == [12 << 10, 4000]
    (group / "memory.current").write_text("6000\n")
    assert list(free_of_linux(tmp_path)) == [12 << 10, 0]
    for_one_process, for_two_processes, total = free_memory("cpu", 1), free_memory("cpu", 2), machine_memory()
    assert for_one_process is not None
    assert for_two_processes is not None
    assert total is not None
    assert 0.4 * for_one_process < for_two_processes < 0.6 * for_one_process < total


@pytest.mark.parametrize(
    ("family", "changes", "message"),
    [
        ("text", {"exact": True}, r"training.exact requires a fixed micro-batch; set task.micro_batch_size"),
        ("pairs", {"exact": True}, r"training.exact requires a fixed micro-batch; set task.micro_batch_tokens"),
        ("text", {"batch_ramp": 0.5}, r"training.batch_ramp starts with one micro-batch; set task.micro_batch_size"),
        ("pairs", {"strategy": "fsdp", "ema": None, "best_by": "loss"}, r"same number of micro-batches"),
    ],
)
def test_auto_micro_batch_is_rejected_if_it_affects_the_result(
    family: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match=message):
        TINY[family](tmp_path, **changes, **{KEYS[family]: "auto"})


@pytest.mark.parametrize("value", ["all", "Auto", "", 0, -1, 1.5, True, [4]])
def test_other_words_are_rejected(value: Any, tmp_path: Path) -> None:
    for family in ("text", "pairs"):
        with pytest.raises(UserError, match=KEYS[family]):
            TINY[family](tmp_path, **{KEYS[family]: value})


@pytest.mark.slow
def test_auto_run_with_buckets_stays_on_its_devices(tmp_path: Path) -> None:
    run_settings: dict[str, Any] = {"max_steps": 2, "micro_batch_tokens": "auto", "best_by": "loss"}
    out = train(TINY["pairs"](tmp_path, **run_settings), tmp_path / "run", quiet=True)
    with pytest.raises(
        UserError,
        match=r"cannot change the number of devices of .*batches of pairs depend on .*; use 1, as until now",
    ):
        train(TINY["pairs"](tmp_path, devices=2, **{**run_settings, "max_steps": 4}), out, quiet=True)
