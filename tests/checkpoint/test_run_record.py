"""A run's record contains its length, its micro-batches, and the files that belong to a save."""

from dataclasses import replace
from pathlib import Path

import pytest

from tercet.checkpoint.metrics import read_metrics, to_history, training_time
from tercet.checkpoint.run_record import Change, RunRecord, read_record
from tercet.config import UserError
from tercet.storage import DamagedFile

RECORD = RunRecord(data="1", tokenizer="2", precision="float32", matmul="highest", compile="off", steps=100)
CHANGES = (
    Change(step=10, key="training.max_steps", old=100, new=200, steps=200),
    Change(step=20, key="training.max_steps", old=200, new=300, steps=300),
    Change(step=30, key="training.seed", old=1, new=2),
)


def test_record_is_read_back_unchanged(tmp_path: Path) -> None:
    record = replace(RECORD, threads=3, micro_batches=((0, 8), (5, 4)), changes=CHANGES, saved=40, finished=True)
    record.write(tmp_path)
    assert read_record(tmp_path) == record
    assert read_record(tmp_path / "elsewhere") is None


def test_last_change_of_the_length_counts() -> None:
    assert RECORD.total_steps == 100
    assert replace(RECORD, changes=CHANGES).total_steps == 300
    assert replace(RECORD, micro_batches=((0, 8), (5, 4))).micro_batch == 4
    assert RECORD.micro_batch is None


def test_save_keeps_samples_up_to_its_step(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    for step in (5, 10, 15, 20):
        (tmp_path / "samples" / f"step-{step:06d}.txt").write_text(f"at {step}")
    (tmp_path / "recipe.yaml").write_text("seed: 1")
    (tmp_path / "notes.txt").write_text("of a user")

    def samples(record: RunRecord) -> list[int]:
        return sorted(int(name[-10:-4]) for name in record.files.files if name.startswith("samples/"))

    first = RECORD.update_saved(tmp_path, 10)
    assert (first.saved, samples(first)) == (10, [5, 10])
    assert "recipe.yaml" in first.files.files
    assert "notes.txt" not in first.files.files
    second = first.update_saved(tmp_path, 20)
    assert samples(second) == [5, 10, 15, 20]
    (tmp_path / "samples" / "step-000005.txt").write_text("overwritten since the first save")
    third = second.update_saved(tmp_path, 15)  # as in a run that was resumed from an earlier checkpoint
    assert samples(third) == [5, 10, 15]
    with pytest.raises(DamagedFile):
        third.check_file(tmp_path, "samples/step-000005.txt")
    third.check_file(tmp_path, "samples/step-000015.txt")


def test_metrics_may_grow_until_the_run_is_finished(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text("step,seconds\n1,2.0\n")
    record = RECORD.update_saved(tmp_path, 1)
    path.write_text(path.read_text() + "2,3.0\n")
    record.check_file(tmp_path, "metrics.csv")
    with pytest.raises(DamagedFile):
        replace(record, finished=True).check_file(tmp_path, "metrics.csv")


def test_metrics_are_read_by_column(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_text(
        "step,train/loss,val/loss,tokens,tokens_per_second,seconds\n"
        "10,3.0,,100,50,2.5\n20,2.0,2.5,200,10,9.0\n30,1.0,,300,70,9.5\n"
    )
    columns = read_metrics(path)
    assert columns["train/loss"] == [(10, 3.0), (20, 2.0), (30, 1.0)]
    assert columns["val/loss"] == [(20, 2.5)]
    time = training_time(columns)
    assert time is not None
    assert (time.seconds, time.tokens_per_second, time.steps, time.tokens) == (9.5, 50.0, 30, 300)
    history = to_history(columns)
    assert list(history) == ["step", "train/loss", "val/loss", "tokens", "tokens_per_second", "seconds"]
    assert history["step"] == [10, 20, 30]
    assert [x == x for x in history["val/loss"]] == [False, True, False]  # NaN if nothing was measured


def test_metrics_with_two_line_ends_and_an_incomplete_line(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    path.write_bytes(b"step,lr,val/loss\n1,0.5,3\n2,0.25,\r\n3,0.1")
    columns = read_metrics(path)
    assert columns["lr"] == [(1, 0.5), (2, 0.25)]
    assert columns["val/loss"] == [(1, 3.0)]
    path.write_bytes(path.read_bytes() + b"25,hot\n")
    with pytest.raises(UserError, match=r"metrics\.csv line 4: invalid line of metrics"):
        read_metrics(path)
