"""A step that runs out of memory is repeated with half the micro-batch: same batch, same result as if set so."""

import gc
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from machines import Ranks, start_run
from small_memory import hold_rows
from tiny_runs import NO_DROPOUT, TINY, figures, newest_checkpoint, weights

from tercet.checkpoint import load_model
from tercet.checkpoint.run_record import read_record
from tercet.config import UserError
from tercet.storage import write_sealed_json
from tercet.training import train
from tercet.training.loop.out_of_memory import OutOfMemory, is_out_of_memory
from tercet.training.run_folder.choices import Resume


@pytest.fixture(scope="module", autouse=True)
def frozen_objects() -> None:
    """Exclude the objects of all imported modules from the collections of garbage at each halving: a second each."""
    gc.collect()
    gc.freeze()


@pytest.mark.slow
@pytest.mark.parametrize(
    "family", ["text", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("masked", "labels", "chat"))]
)
def test_a_run_that_halves_at_its_first_step_is_one_of_small_micro_batches(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = train(TINY[family](tmp_path, max_steps=4), tmp_path / "expected", quiet=True)
    rows_per_step = hold_rows(lambda step: 6, monkeypatch.setattr)
    out = train(TINY[family](tmp_path, max_steps=4, micro_batch_size=None), tmp_path / "run", quiet=True)
    assert rows_per_step == {step: [4, 4, 4, 4] for step in range(4)}
    assert weights(out) == weights(expected)
    record = read_record(out)
    assert record is not None
    assert record.micro_batches == ((0, 8), (0, 4))
    assert capsys.readouterr().err.splitlines()[-2:] == [
        "step 1 is out of memory with 16 rows per micro-batch; continuing with 8 rows",
        "step 1 is out of memory with 8 rows per micro-batch; continuing with 4 rows",
    ]


@pytest.mark.slow
def test_a_bucket_of_pairs_goes_through_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model_changes = {side: {"dropout": NO_DROPOUT} for side in ("encoder", "decoder")}
    settings: dict[str, Any] = {"micro_batch_tokens": None, "batch_tokens": 128, "best_by": "loss", "max_steps": 4}
    recipe = TINY["pairs"](tmp_path, {"model": model_changes}, **settings)
    expected = train(recipe, tmp_path / "expected", quiet=True)
    rows_per_step = hold_rows(lambda step: 6 if step > 1 else 99, monkeypatch.setattr)
    out = train(recipe, tmp_path / "run", quiet=True)
    assert [len(rows_per_step[step]) for step in range(4)] == [1, 1, 4, 4]
    assert 6 >= max(rows_per_step[2]) >= min(rows_per_step[2]) >= max(rows_per_step[2]) - 1
    expected_metrics, actual_metrics = figures(expected), figures(out)
    assert [y for _, y in actual_metrics["train/loss"]] == pytest.approx(
        [y for _, y in expected_metrics["train/loss"]], rel=1e-4
    )
    a, b = (load_model(run / "last").model.state_dict() for run in (expected, out))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-4, rtol=1e-3)
    assert weights(out) != weights(expected)  # otherwise no bucket was divided


@pytest.mark.slow
def test_run_continues_with_the_smaller_micro_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe = TINY["text"](tmp_path, micro_batch_size=8)
    rows_per_step = hold_rows(lambda step: 4 if step > 4 else 8, monkeypatch.setattr)
    expected = train(recipe, tmp_path / "expected", quiet=True)
    assert [rows_per_step[step] for step in (4, 5, 11)] == [[8, 8], [4] * 4, [4] * 4]
    out = train(TINY["text"](tmp_path, micro_batch_size=8, max_steps=8), tmp_path / "run", quiet=True)
    capsys.readouterr()
    monkeypatch.undo()  # now there is enough memory
    train(recipe, out, quiet=True)
    record = read_record(out)
    assert record is not None
    assert record.micro_batches == ((5, 4),)
    assert weights(train(TINY["text"](tmp_path, micro_batch_size=8), tmp_path / "whole", quiet=True)) != weights(out)
    output = capsys.readouterr().err
    assert "arithmetic: micro_batch unset, now 4: up to rounding, the run ends as an uninterrupted run would" in output
    assert json.loads((out / "run.json").read_text())["micro_batches"] == [[5, 4]]
    state = torch.load(newest_checkpoint(out) / "state.ckpt", weights_only=True)
    assert [entry.get("micro_batch") for entry in state["arithmetic"]] == [None, "4"]
    # The first cosine had 8 steps instead of 12, so the weights differ; the rows of each step do not.
    assert figures(expected)["tokens"] == figures(out)["tokens"]


@pytest.mark.slow
def test_exact_run_is_not_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_rows(lambda step: 2 if step > 4 else 8, monkeypatch.setattr)
    message = (
        r"^step 6 is out of memory with 4 rows per micro-batch, which an exact run must not change: "
        r"set training.activation_checkpointing=true or .* and resume the run; or start again with a smaller model"
    )
    with pytest.raises(OutOfMemory, match=message):
        train(TINY["text"](tmp_path, exact=True), tmp_path / "run", quiet=True)
    with pytest.raises(OutOfMemory, match=message):
        train(TINY["text"](tmp_path), tmp_path / "other", Resume(exact=True), quiet=True)
    monkeypatch.undo()
    out = train(TINY["text"](tmp_path, exact=True, activation_checkpointing=True), tmp_path / "run", quiet=True)
    assert weights(out) == weights(train(TINY["text"](tmp_path, exact=True), tmp_path / "whole", quiet=True))


@pytest.mark.slow
def test_single_row_cannot_be_halved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_rows(lambda step: 0, monkeypatch.setattr)
    with pytest.raises(
        OutOfMemory, match=r"out of memory with 1 row per micro-batch: set training.strategy=fsdp on several"
    ):
        train(TINY["text"](tmp_path, activation_checkpointing=True), tmp_path / "run", quiet=True)
    with pytest.raises(OutOfMemory, match=r"out of memory with 8 tokens per side per micro-batch"):
        train(TINY["pairs"](tmp_path), tmp_path / "pairs", quiet=True)


def test_out_of_memory_elsewhere_ends_the_run_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr("tercet.training.optim.adamw.FusedAdamW.step", no_memory)
    with pytest.raises(
        OutOfMemory, match=r"^out of memory outside of the forward and backward passes: set training.activation_check"
    ):
        train(TINY["text"](tmp_path), tmp_path / "run", quiet=True)


def test_other_errors_are_not_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(1 << 60)
    assert is_out_of_memory(error.value)
    with pytest.raises(RuntimeError) as error:
        torch.empty(3).view(2)
    assert not is_out_of_memory(error.value)


@pytest.mark.parametrize("plain", [3, [3], [[0, 0]], [[-1, 4]], [[0, 4, 5]], [["0", 4]], [[0, True]], {"0": 4}])
def test_invalid_record_is_rejected(tmp_path: Path, plain: Any) -> None:
    run_settings = {"data": "a", "tokenizer": "b", "precision": "fp32", "matmul": "highest", "compile": "never"}
    write_sealed_json(tmp_path / "run.json", {**run_settings, "micro_batches": plain, "files": {}})
    with pytest.raises(UserError, match=r"run\.json was written by another version"):
        read_record(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    "strategy", ["ddp", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in ("fsdp", "tp"))]
)
def test_several_ranks_end_and_resume_with_half(tmp_path: Path, strategy: str) -> None:
    settings = {"devices": 2, "strategy": strategy, "micro_batch_size": 8, "max_steps": 4}
    changes = {"model": {"stack": {"dropout": NO_DROPOUT}}}
    recipe = TINY["text"](tmp_path, changes, **settings)

    def run() -> Ranks:
        return start_run(recipe, tmp_path / "run", prepare=lambda: hold_rows(lambda step: 4))

    assert (ranks := run()).wait() == 1
    assert "step 1 is out of memory with 8 rows per micro-batch; start the run again to resume it with 4 rows" in (
        ranks.stderr.read_text()
    )
    run().finish()
    record = read_record(tmp_path / "run")
    assert record is not None
    assert (record.finished, record.micro_batches) == (True, ((0, 4),))
    single = settings | {"devices": 1, "strategy": "single"}
    train(
        TINY["text"](tmp_path, {"model": {"stack": {"dropout": NO_DROPOUT}}}, **single), tmp_path / "whole", quiet=True
    )
    a, b = (load_model(tmp_path / name / "last").model.state_dict() for name in ("run", "whole"))
    for name in a:
        torch.testing.assert_close(a[name], b[name], atol=1e-5, rtol=1e-4)


REAL = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from tiny_runs import tiny_recipe
import tercet.training
from tercet.training import train
from tercet.training.loop import fit
begin = fit.fit
def limited(*args, **kwargs):
    used = next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmData"))
    free = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_DATA, (1024 * used + (96 << 20), free))
    try:
        return begin(*args, **kwargs)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (free, free))
fit.fit = limited
folder = Path(sys.argv[2])
model = {"max_len": 64, "stack": {"d_model": 128, "n_layers": 2, "n_heads": 4}}
recipe = tiny_recipe(folder, {"model": model}, batch_size=256, micro_batch_size=None, max_steps=2, save_every=2)
train(recipe, folder / "run")
"""


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="limits what a process may have, as Linux does it")
def test_process_with_limited_memory_trains(tmp_path: Path) -> None:
    process = subprocess.run(
        [sys.executable, "-c", REAL, str(Path(__file__).parent), str(tmp_path)],
        env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=280, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-3000:]
    assert "step 1 is out of memory with 256 rows per micro-batch; continuing with 128 rows" in process.stderr
    record = read_record(tmp_path / "run")
    assert record is not None
    assert record.finished
    assert 1 <= (record.micro_batch or 0) <= 128
