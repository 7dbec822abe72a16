"""Sharded checkpoints can be resumed on any number of ranks, and as whole models."""

import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from machines import start
from safetensors.torch import save_file
from tiny_runs import CHECKPOINT, dies_at_rename, weights
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

from tercet.checkpoint import load_model
from tercet.training.run_folder.sharded_state import flatten_checkpoint, load_full_checkpoint, unflatten_checkpoint

NAMES = st.from_regex(r"[a-z]{1,4}(\.[a-z0-9_]{1,4}){0,3}", fullmatch=True)
SHAPES = st.lists(st.integers(1, 3), max_size=3)


@pytest.mark.slow
@given(st.dictionaries(NAMES, SHAPES, min_size=1, max_size=4), st.lists(st.sampled_from("abc"), unique=True))
def test_checkpoint_is_reassembled(shapes: dict[str, list[int]], keys: list[str]) -> None:
    state = {name: {key: torch.zeros(shape) for key in keys} for name, shape in shapes.items() if keys}
    checkpoint = {
        "global_step": 3,
        "state_dict": {name: torch.ones(shape) for name, shape in shapes.items()},
        "optimizer_states": [{"state": state, "param_groups": [{"params": [*shapes], "lr": 0.5}]}],
    }
    tensors, rest = flatten_checkpoint(checkpoint)
    assert all(isinstance(x, torch.Tensor) for x in tensors.values())
    assert not rest["state_dict"]
    assert unflatten_checkpoint(tensors, rest) == checkpoint


def test_shards_are_read_as_one_tensor(tmp_path: Path) -> None:
    whole = torch.arange(12.0).view(4, 3)
    for number, rows in enumerate((slice(0, 3), slice(3, 4)), start=1):
        offsets = f'{{"weights.a": {{"saved_offsets": [{rows.start}, 0]}}}}'
        save_file({"weights.a": whole[rows].clone()}, tmp_path / f"shard-{number:05d}-model-00001-of-00001.safetensors",
                  {"format": "pt", "DCP_SHARDING_INFO": offsets})  # fmt: skip
    state = load_full_checkpoint(tmp_path, {"optimizer_states": [{"param_groups": []}]})
    assert torch.equal(state["state_dict"]["a"], whole)


@pytest.mark.parametrize(
    "machines",
    [
        pytest.param(("fsdp on 4",), marks=pytest.mark.slow),  # the test of a full disk resumes on one rank
        pytest.param(("one rank", "ddp on 2", "fsdp on 2"), marks=pytest.mark.exhaustive),
    ],
    ids=" and ".join,
)
def test_every_machine_resumes_from_shards(machines: tuple[str, ...], tmp_path: Path) -> None:
    """A checkpoint of two ranks gives the same weights on one rank and as shards on two or four ranks."""
    settings: dict[str, Any] = {"max_steps": 6, "schedule": "constant", "validate_every": 6}
    partial_run = tmp_path / "begun"
    die = dies_at_rename(1, after=True, name=CHECKPOINT)
    assert (
        start(tmp_path, "text", "fsdp on 2", partial_run, save_every=2, prepare=die, **settings).wait()
        == -signal.SIGKILL
    )
    assert not json.loads((partial_run / "run.json").read_text())["finished"]
    (newest, *_) = sorted(partial_run.glob("checkpoints/step-*"), reverse=True)
    assert len([*newest.glob("shard-*.safetensors")]) == 2
    runs = [tmp_path / machine for machine in machines]
    for run in runs:
        shutil.copytree(partial_run, run)
        start(tmp_path, "text", run.name, run, save_every=6, **settings).finish()
    start(tmp_path, "text", "one rank", tmp_path / "unbroken", save_every=6, **settings).finish()
    for run in runs:
        assert weights(run) == weights(tmp_path / "unbroken"), run.name


def fill_disk_of_rank_1() -> None:
    """Make the second save of this rank fail."""
    write_data, saves = HuggingFaceStorageWriter.write_data, list[Any]()

    def write(writer: HuggingFaceStorageWriter, plan: Any, planner: Any) -> Any:
        saves.append(plan)
        if len(saves) == 2:
            raise OSError(28, "No space left on device")
        return write_data(writer, plan, planner)

    if os.environ["RANK"] == "1":
        HuggingFaceStorageWriter.write_data = write


@pytest.mark.slow
def test_a_disk_that_is_full_on_one_rank_ends_all(tmp_path: Path) -> None:
    """The reason is reported, and the previous checkpoint can be resumed."""
    out, settings = tmp_path / "run", {"max_steps": 6, "save_every": 2}
    ranks = start(tmp_path, "text", "fsdp on 2", out, prepare=fill_disk_of_rank_1, **settings)
    assert ranks.wait() == 1
    assert "disk full while writing" in ranks.stderr.read_text()
    assert [path.name for path in out.glob("checkpoints/*")] == ["step-000002"]
    start(tmp_path, "text", "one rank", out, **settings).finish()
    start(tmp_path, "text", "one rank", tmp_path / "unbroken", **settings).finish()
    assert weights(out) == weights(tmp_path / "unbroken")


@pytest.mark.parametrize(
    "switches",
    [
        pytest.param((("tp on 2", "one rank"),), marks=pytest.mark.slow),
        pytest.param((("one rank", "tp on 2"),), marks=pytest.mark.exhaustive),
        pytest.param((("tp on 2", "fsdp on 2"), ("tp on 2", "tp on 2")), marks=pytest.mark.exhaustive),
    ],
    ids=["tp to one rank", "one rank to tp", "tp and fsdp"],
)
def test_row_and_column_shards_resume_on_any_machine(switches: tuple[tuple[str, str], ...], tmp_path: Path) -> None:
    """Tensor parallelism shards some matrices by rows and some by columns, and replicates the other parameters."""
    changes = {"model": {"stack": {"dropout": {"attention": 0.0, "activation": 0.0, "residual": 0.1}}}}
    settings: dict[str, Any] = {"changes": changes, "exact": False, "schedule": "constant", "max_steps": 4}
    longer = {**settings, "max_steps": 8}
    for first_machine in {first_machine for first_machine, _ in switches}:
        start(tmp_path, "text", first_machine, tmp_path / first_machine, **settings).finish()
    start(tmp_path, "text", "one rank", tmp_path / "unbroken", **longer).finish()
    expected = load_model(tmp_path / "unbroken" / "last").model.state_dict()
    for first_machine, machine in switches:
        run = tmp_path / f"{first_machine}, then {machine}"
        shutil.copytree(tmp_path / first_machine, run)
        start(tmp_path, "text", machine, run, **longer).finish()
        actual = load_model(run / "last").model.state_dict()
        for name, x in expected.items():
            torch.testing.assert_close(actual[name], x, atol=1e-5, rtol=1e-4)
