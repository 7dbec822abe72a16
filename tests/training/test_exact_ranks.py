"""`training.exact`: bitwise identical weights on any machine, and on several machines in sequence."""

import json
import random
import signal
from pathlib import Path
from typing import Any

import pytest
from machines import FAMILIES, MACHINES, start
from tiny_runs import dies_at_rename, figures, tiny_pairs_recipe, tiny_recipe, weights

from tercet.config import UserError
from tercet.training import read_recipe, train

UNSHARDED_METRIC = "val/unigram_entropy"  # sharded runs do not have it on any device


def assert_same(first: Path, second: Path) -> None:
    for folder in ("last", "best"):
        assert weights(first, folder) == weights(second, folder), folder
    expected, actual = (
        {name: column for name, column in figures(run).items() if name != UNSHARDED_METRIC} for run in (first, second)
    )
    assert expected == actual


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "machines"),
    [
        ("text", ("one rank", "ddp on 2", "fsdp on 2")),
        pytest.param("pairs", ("one rank", "fsdp on 2"), marks=pytest.mark.exhaustive),
        pytest.param("masked", ("one rank", "fsdp on 2"), marks=pytest.mark.exhaustive),
        *(pytest.param(family, tuple(MACHINES), marks=pytest.mark.exhaustive) for family in FAMILIES),
    ],
    ids=["text on some", "pairs on two", "masked on two", *FAMILIES],
)
def test_each_machine_ends_with_the_same_weights(tmp_path: Path, family: str, machines: tuple[str, ...]) -> None:
    for machine in machines:
        start(tmp_path, family, machine, tmp_path / machine, max_steps=6).finish()
        assert_same(tmp_path / "one rank", tmp_path / machine)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "attempts"),
    [("text", 2), *(pytest.param(family, 8, marks=pytest.mark.exhaustive) for family in FAMILIES)],
)
def test_killed_and_moved_run_equals_uninterrupted_run(tmp_path: Path, family: str, attempts: int) -> None:
    start(tmp_path, family, "one rank", tmp_path / "whole", save_every=2).finish()
    rng, out = random.Random(family), tmp_path / "moved"
    machines, exit_codes = [*MACHINES], list[int]()
    for _ in range(attempts):
        die = dies_at_rename(rng.randint(4, 16), after=rng.random() < 0.5)
        exit_codes.append(start(tmp_path, family, rng.choice(machines), out, prepare=die, save_every=2).wait())
    start(tmp_path, family, rng.choice(machines), out, save_every=2).finish()
    assert set(exit_codes) <= {0, -signal.SIGKILL}
    assert -signal.SIGKILL in exit_codes
    assert_same(tmp_path / "whole", out)


@pytest.mark.exhaustive
def test_without_exact_the_last_bits_differ(tmp_path: Path) -> None:
    for machine in ("one rank", "ddp on 4"):
        start(tmp_path, "text", machine, tmp_path / machine, exact=False).finish()
    assert weights(tmp_path / "one rank") != weights(tmp_path / "ddp on 4")


@pytest.mark.slow
def test_exact_on_one_rank_is_close_to_run_without_it(tmp_path: Path) -> None:
    runs = [train(tiny_recipe(tmp_path, exact=exact), tmp_path / str(exact), quiet=True) for exact in (True, False)]
    losses = [[loss for _, loss in figures(run)["train/loss"]] for run in runs]
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)
    assert json.loads((runs[0] / "run.json").read_text())["threads"] >= 1


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"micro_batch_size": None}, "set task.micro_batch_size to a size that fits on any device"),
        ({"micro_batch_size": 5}, "task.batch_size=16 must be a multiple of task.micro_batch_size=5"),
        ({"devices": 8, "micro_batch_size": 4}, "8 devices cannot share 4 micro-batches per step"),
        ({"devices": 3, "batch_size": 24}, "3 devices cannot share 6 micro-batches per step; set devices to a power"),
        ({"batch_ramp": 0.5}, "exact does not support batch_ramp"),
        ({"precision": "fp16"}, "exact does not support fp16, whose loss scale"),
    ],
)
def test_settings_without_fixed_order_are_rejected(tmp_path: Path, settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        tiny_recipe(tmp_path, exact=True, **settings)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "settings", "words"),
    [
        (tiny_recipe, {"batch_ramp": 0.5, "batch_size": 32}, "training.batch_ramp"),
        (tiny_pairs_recipe, {"micro_batch_tokens": None}, "without task.micro_batch_tokens"),
    ],
)
def test_a_run_whose_data_follow_from_its_devices_stays_on_them(
    tmp_path: Path, recipe: Any, settings: dict[str, Any], words: str
) -> None:
    out = train(recipe(tmp_path, max_steps=2, **settings), tmp_path / "run", quiet=True)
    with pytest.raises(UserError, match=rf"cannot change the number of devices of .*{words}"):
        train(recipe(tmp_path, max_steps=2, devices=2, **settings), out, quiet=True)


@pytest.mark.slow
def test_changes_of_strategy_are_recorded(tmp_path: Path) -> None:
    """The strategy is recorded at each start; unlike other changed settings, the previous one is not kept."""
    out = train(tiny_recipe(tmp_path, max_steps=2, schedule="constant"), tmp_path / "run", quiet=True)
    train(tiny_recipe(tmp_path, max_steps=4, schedule="constant", strategy="single"), out, quiet=True)
    assert read_recipe(out).training.strategy == "single"
    train(tiny_recipe(tmp_path, max_steps=6, schedule="constant"), out, quiet=True)
    changes = json.loads((out / "run.json").read_text())["changes"]
    strategies = [(change["old"], change["new"]) for change in changes if change["key"] == "training.strategy"]
    assert strategies == [("auto", "single"), ("single", "auto")]
