"""Reading a run folder while it grows, and downsampling its metrics."""

import os
import time
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from made_runs import HOSTILE, line, make_run, write_metrics

from tercet.checkpoint.find_run import find_run_folder
from tercet.checkpoint.metrics import MetricsFile
from tercet.checkpoint.run_folder import RunFolder
from tercet.config import UserError
from tercet.dashboard.answers import RunAnswers
from tercet.dashboard.downsample import downsample
from tercet.dashboard.watch import check_runs


@pytest.fixture
def tail(tmp_path: Path) -> MetricsFile:
    return MetricsFile(tmp_path / "metrics.csv")


def test_only_appended_lines_are_read(tail: MetricsFile) -> None:
    tail.refresh()
    assert len(tail) == 0
    write_metrics(tail.path, range(1, 1001))
    tail.refresh()
    with tail.path.open("a", newline="") as file:
        file.write(line(1001)[:30])  # an incomplete line
    tail.refresh()
    assert len(tail) == 1000
    with tail.path.open("a", newline="") as file:
        file.write(line(1001)[30:] + line(1002, validate=True))
    tail.refresh()
    assert tail.column("step").tolist() == [*range(1, 1003)]
    assert tail.column("val/loss")[-2:].tolist() == pytest.approx([np.nan, 2.1 + 1 / 1002], nan_ok=True)
    assert np.isnan(tail.column("val/bleu")).all()
    assert (tail.generation, tail.unreadable) == (1, 0)


def test_a_truncated_file_is_read_again(tail: MetricsFile) -> None:
    write_metrics(tail.path, range(1, 101))
    tail.refresh()
    prefix = "".join(tail.path.read_text().splitlines(keepends=True)[:51])
    tail.path.write_text(prefix + line(51, loss=9.0), newline="")
    tail.refresh()
    assert len(tail) == 51
    assert tail.column("train/loss")[-1] == 9.0
    assert tail.generation == 2
    tail.path.write_text(prefix + line(51, loss=8.0) + line(52), newline="")  # the file is not shorter than before
    tail.refresh()
    assert tail.column("train/loss")[-2] == 8.0
    assert tail.generation == 3


def test_invalid_lines_are_skipped_and_counted(tail: MetricsFile) -> None:
    write_metrics(tail.path, range(1, 4))
    with tail.path.open("a") as file:
        file.write("4,what,is,this\r\n" + line(2) + line(5))
    tail.refresh()
    assert tail.column("step").tolist() == [1, 2, 3, 5]
    assert (tail.unreadable, tail.first_unreadable) == (2, 5)
    tail.path.unlink()
    write_metrics(tail.path, range(1, 4))  # as after a resumed run, which rewrites the file
    tail.refresh()
    assert (tail.unreadable, tail.first_unreadable) == (0, None)
    with tail.path.open("a") as file:
        file.write(line(4) + "5,what,is,this\r\n")
    tail.refresh()
    assert (tail.unreadable, tail.first_unreadable) == (1, 6)
    tail.path.unlink()
    tail.refresh()
    assert (tail.unreadable, tail.first_unreadable) == (0, None)
    tail.path.write_text("a,b\n1,2\n")
    for _ in range(2):
        with pytest.raises(UserError, match="line 1: invalid line of metrics"):
            tail.refresh()
        with tail.path.open("a") as file:
            file.write("3,4\n")


@settings(max_examples=30, deadline=None)
@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=300), st.integers(2, 50), st.booleans())
def test_downsampling_keeps_minimum_and_maximum(values: list[float], buckets: int, log: bool) -> None:
    y, x = np.array(values), np.arange(1.0, len(values) + 1)
    downsampled = downsample(x, y, start=1.0, end=float(len(values)) + 0.5, buckets=buckets, log=log)
    assert len(downsampled.x) <= buckets + 2
    assert (downsampled.low.min(), downsampled.high.max()) == (y.min(), y.max())
    assert (np.diff(downsampled.x) > 0).all()
    assert (downsampled.low <= downsampled.mean + 1e-6).all()
    assert (downsampled.mean <= downsampled.high + 1e-6).all()


@pytest.mark.parametrize("log", [False, True])
def test_buckets_are_equally_wide_on_the_axis(log: bool) -> None:
    x = np.arange(1.0, 1001.0)
    downsampled = downsample(x, x, start=1.0, end=1000.0, buckets=8, log=log)
    edges = np.geomspace(1, 1000, 9) if log else np.linspace(1, 1000, 9)
    buckets = [x[(low <= x) & (x < high)] for low, high in pairwise(edges)]
    buckets[-1] = np.append(buckets[-1], 1000.0)  # the end of the axis belongs to the last bucket
    assert downsampled.low.tolist() == [bucket.min() for bucket in buckets]
    assert downsampled.high.tolist() == [bucket.max() for bucket in buckets]


def test_values_that_are_not_finite_are_skipped() -> None:
    downsampled = downsample(np.arange(5.0), np.array([1, np.nan, np.inf, 2, 3]), start=0, end=4, buckets=10)
    assert downsampled.mean.tolist() == [1, 2, 3]


def test_a_run_is_running_finished_or_interrupted(tmp_path: Path) -> None:
    running = RunFolder(make_run(tmp_path / "running", steps=100, total=300))
    running.metrics.refresh()
    status = running.status()
    assert (status.state, status.step, status.total) == ("running", 100, 300)
    assert status.left == pytest.approx(20)  # 200 steps of 0.1 s
    assert RunFolder(make_run(tmp_path / "gone", steps=9, pid=2**30)).status().state == "interrupted"
    assert RunFolder(make_run(tmp_path / "ended", steps=9, pid=None)).status().state == "interrupted"
    assert RunFolder(make_run(tmp_path / "done", steps=9, finished=True, pid=None)).status().state == "finished"
    assert RunFolder(tmp_path / "soon").status().state == "waiting"


def test_a_run_on_another_machine_runs_while_it_writes(tmp_path: Path) -> None:
    run = RunFolder(make_run(tmp_path / "far", steps=100, total=300))
    (run.folder / ".owner.json").write_text('{"host": "elsewhere", "pid": 1, "since": "today"}')
    run.metrics.refresh()
    assert (run.status().state, run.status().detail) == ("running", "on elsewhere")
    for path in (run.folder / "metrics.csv", run.folder / "run.json", run.folder / ".owner.json"):
        os.utime(path, (time.time() - 3600, time.time() - 3600))
    assert run.status().state == "interrupted"
    assert run.status().detail == "nothing heard from elsewhere for 60 minutes"


def test_answers_of_two_runs(tmp_path: Path) -> None:
    folders = [make_run(tmp_path / name / "run", steps=2000, lr=lr) for name, lr in (("a", 0.001), ("b", 0.002))]
    answers = RunAnswers(folders)
    assert [run["name"] for run in answers.answer("runs", {})["runs"]] == ["a/run", "b/run"]
    curves = answers.answer("curves", {"buckets": 50})
    loss = [curve for curve in curves["curves"] if curve["metric"] == "train/loss"]
    assert [max(curve["high"]) for curve in loss] == [50, 50]  # the spike of one step
    assert all(len(curve["x"]) <= 52 for curve in curves["curves"])
    part = answers.answer("curves", {"x": "seconds", "start": 77.0, "end": 78.0, "buckets": 50})
    assert [zoomed_curve["x"][1] for zoomed_curve in part["curves"] if zoomed_curve["metric"] == "lr"] == pytest.approx(
        [77, 77]
    )
    rows = {row["key"]: row for row in answers.answer("settings", {})["rows"]}
    assert rows["training.optimizer.lr"] == {
        "key": "training.optimizer.lr", "values": ["0.001", "0.002"], "differs": True,
    }  # fmt: skip
    assert not rows["training.max_steps"]["differs"]
    assert answers.answer("sample", {"run": 1, "step": 2000})["text"] == f"after 2000: {HOSTILE}"


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("curve", {}, "no such query: 'curve'"),
        ("runs", [], "a query must be a JSON object"),
        ("curves", {"bucket": 3}, "^query: .*did you mean 'buckets'?"),
        ("curves", {"buckets": 10**9}, "buckets=1000000000 must be"),
        ("curves", {"x": "../x"}, "x"),
        ("sample", {"run": 0, "step": 3}, "cannot read"),
        ("sample", {"run": 7, "step": 3}, "no such run: 7"),
        ("sample", {"run": 0, "step": "../../x"}, "step"),
    ],
)
def test_invalid_queries_are_rejected(name: str, body: object, message: str, tmp_path: Path) -> None:
    answers = RunAnswers([make_run(tmp_path / "run", steps=10)])
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        answers.answer(name, body)


def test_a_damaged_run_is_reported_next_to_others(tmp_path: Path) -> None:
    intact, damaged = make_run(tmp_path / "good", steps=50), make_run(tmp_path / "bad", steps=50)
    (damaged / "run.json").write_text("{}")
    answers = RunAnswers([intact, damaged]).answer("runs", {})["runs"]
    assert [run["state"] for run in answers] == ["running", "unreadable"]
    assert answers[0]["error"] is None
    assert "run.json" in answers[1]["error"]


def test_which_folders_can_be_watched(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=5)
    (run / "best").mkdir()
    assert find_run_folder(run / "best") == run
    check_runs([run])
    for folders, message in (
        ([run, tmp_path / "." / "run"], "is given twice"),
        ([tmp_path], "contains no run"),
        ([tmp_path / "none"], "no such folder:"),
        ([run] * 17, "cannot show 17 runs; pass 1 to 16"),
    ):
        with pytest.raises(UserError, match=message):
            check_runs(folders)
