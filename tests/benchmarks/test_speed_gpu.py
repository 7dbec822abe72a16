"""The GPU rows at tiny sizes on a CPU, and runs with a time budget or on top of earlier results."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from benchmarks.speed import __main__ as program
from benchmarks.speed.contender import Contender, Function, Settings
from benchmarks.speed.limits import device_clock
from benchmarks.speed.measure import Result, Timing, measure
from benchmarks.speed.row import Lineup, Options, Row
from benchmarks.speed.rows import GPU_ROWS
from benchmarks.speed.rows.gpu_loss import TINY
from benchmarks.speed.rows.gpu_training import bf16

from tercet.objectives import likelihood

LIMITS = {"fp32": 2000.0, "fp32 TF32": 4000.0, "bf16": 9000.0, "memory": 4000.0}
SHORT_TIMING = Timing(rounds=2, seconds=0.0, repeats=0)
N_SAME_ANSWERS = {
    "gpt-124m": 2, "gpt-baby": 2, "bert": 2, "translation": 4, "greedy-1": 1, "greedy-32": 1, "embed": 1, "beam": 1,
}  # fmt: skip
N_SAME_ANSWERS |= dict.fromkeys(("loss-65", "loss-8k", "loss-50k"), 2)


def tiny(folder: Path, **kwargs: Any) -> Options:
    return Options(folder=folder, device="cuda", scale="tiny", bf16=True, **kwargs)


def measure_quickly(
    row: Row, options: Options, log: Any = lambda line: None, timing: Timing = SHORT_TIMING, **kwargs: Any
) -> Result:
    return measure(row, options, timing, log, rest=0.0, measure_limits=lambda: dict(LIMITS), **kwargs)


def of(*contenders: Contender, name: str = "made") -> Row:
    return Row(name=name, title="Made by hand", lineup=lambda options: Lineup(list(contenders)))


class Ticking:
    """A clock that advances by the work of a contender."""

    now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float) -> Any:
        def work(n: int) -> float:
            self.now += seconds
            return n

        return work


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        name if name in ("gpt-baby", "loss-65") else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in GPU_ROWS
    ],
)
def test_rows_of_a_gpu_run_at_tiny_sizes_with_the_answers_of_peers(tmp_path: Path, name: str) -> None:
    messages: list[str] = []
    result = measure_quickly(GPU_ROWS[name], tiny(tmp_path), messages.append)
    assert not result.failed
    assert {"readme", "best"} <= set(result.ratios)
    sides = [figure["side"] for figure in result.figures.values()]
    assert {"ours", "readme"} <= set(sides)
    assert sum("same answer" in line for line in messages) >= N_SAME_ANSWERS.get(name, 0)


def test_each_loss_is_measured_in_its_form(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used = list[str]()

    def noting(name: str) -> Any:
        work = getattr(likelihood, name)
        return lambda *args: (used.append(name), work(*args))[1]

    for name in ("_whole", "_chunked", "_library"):
        monkeypatch.setattr(likelihood, name, noting(name))
    contenders = GPU_ROWS["loss-8k"].lineup(tiny(tmp_path)).contenders
    for contender in contenders:
        if contender.side == "ours":
            contender.setup()
            assert contender.run(2) == 2 * TINY.rows
    names = ["_chunked", "_whole", "_chunked", *(["_library"] if len(contenders) == 6 else [])]
    assert used == [name for name in names for _ in range(3)]


def test_rows_of_a_gpu_are_listed_by_priority(capsys: pytest.CaptureFixture[str]) -> None:
    assert program.main(["--device", "cuda", "--list"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()] == list(GPU_ROWS)


@pytest.mark.slow
def test_continued_run_measures_rows_without_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["greedy-1", "--device", "cuda", "--scale", "tiny", "--rounds", "1", "--seconds", "0"]
    out = ["--out", str(tmp_path), "--resume"]
    assert program.main([*arguments, *out, "--budget", "60"]) == 0
    first = (tmp_path / "speed.json").read_text()
    assert json.loads(first)["machine"]["gpu"] is None or torch.cuda.is_available()
    capsys.readouterr()
    assert program.main([*arguments, *out]) == 0
    assert "ready in" not in capsys.readouterr().out
    assert json.loads(first)["rows"][0]["figures"]
    assert [row["name"] for row in json.loads((tmp_path / "speed.json").read_text())["rows"]] == ["greedy-1"]


def test_rows_that_were_tried_come_last(tmp_path: Path) -> None:
    rows = [of(name=name) for name in ("whole", "ended", "new")]
    earlier = [Result.empty(rows[0]), Result.empty(rows[1])]
    earlier[0].figures = {"tercet": {}}
    assert [row.name for row in program.left_over(rows, earlier)] == ["new", "ended"]
    assert program.earlier_results(tmp_path) == []


@pytest.mark.slow
def test_result_is_read_as_it_was_written(tmp_path: Path) -> None:
    mine, theirs = (Function(name, side, lambda n: n) for name, side in (("mine", "ours"), ("theirs", "readme")))
    result = measure_quickly(of(mine, theirs), tiny(tmp_path))
    assert result.ratios
    assert Result.of(json.loads(json.dumps(result.plain()))) == result


def test_budget_ends_a_row_with_ready_contenders(tmp_path: Path) -> None:
    clock = Ticking()
    contenders = [
        Function("mine", "ours", clock.work(10.0)),
        Function("theirs", "readme", clock.work(20.0)),
        Function("late", "peer", clock.work(1.0)),
    ]
    timing = Timing(rounds=4, seconds=0.0, repeats=0, budget=70.0)
    result = measure_quickly(of(*contenders), tiny(tmp_path), timing=timing, clock=clock)
    assert set(result.figures) == {"mine", "theirs"}
    assert result.left_out == {"late": "the row's time was used up"}
    assert len(result.rounds) == 1


@pytest.mark.slow
def test_shapes_are_compiled_one_by_one_if_they_do_not_change(tmp_path: Path) -> None:
    import torch._dynamo as dynamo

    options = Options(folder=tmp_path, device="cuda")
    static = bf16(options)
    assert static.compiled
    default = dynamo.config.automatic_dynamic_shapes
    with static.apply():
        assert dynamo.config.automatic_dynamic_shapes is False
        assert torch.get_float32_matmul_precision() == "high"
    assert dynamo.config.automatic_dynamic_shapes is default
    with Settings(compiled=True).apply():
        assert dynamo.config.automatic_dynamic_shapes is default


def test_cpu_clock_does_not_wait() -> None:
    clock = device_clock(torch.device("cpu"))
    assert clock() <= clock()
