"""Whole runs on a GPU: results are parsed from the output of a process, and runs without a result are recorded."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from benchmarks.gpu import whole_runs
from benchmarks.gpu.whole_runs import RunFailed, RunOptions, process, theirs_to_loss

ROOT = Path(__file__).parents[2]
SHAKESPEARE = "import time\nfor loss in (4.2, 2.0, 1.46, 1.4):\n    print(f'step 1: train loss 1, val loss {loss}')\n"


def options(folder: Path, program: str, *, seconds: float = 60.0) -> RunOptions:
    checkout = folder / "checkout"
    checkout.mkdir()
    (checkout / "train.py").write_text(program)
    return RunOptions(nanogpt=checkout, folder=folder, goal=1.4697, seconds=seconds, tiny=False)


@pytest.mark.slow
def test_first_loss_that_reaches_the_goal_is_the_figure(tmp_path: Path) -> None:
    result = theirs_to_loss(options(tmp_path, f"{SHAKESPEARE}time.sleep(60)\n"))
    assert (result["step"], result["loss"]) == (500, 1.46)
    assert 0 < result["seconds"] < 30


@pytest.mark.slow
@pytest.mark.parametrize(
    ("program", "words"),
    [
        ("print('val loss 3.1')", r"its validation losses stayed above 1\.4697"),
        ("raise SystemExit('no memory')", "exit code 1: no memory"),
        ("import time; time.sleep(60)", "no figure within 1 s"),
    ],
)
def test_run_without_result_has_a_reason(tmp_path: Path, program: str, words: str) -> None:
    with pytest.raises(RunFailed, match=words):
        theirs_to_loss(options(tmp_path, program, seconds=1.0 if "sleep" in program else 60.0))


@pytest.mark.slow
def test_process_is_ended_with_its_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import time; time.sleep(60)"]
    with process(command, 60.0, tmp_path / "log") as runs:
        assert runs()
    with pytest.raises(RunFailed, match="exit code -9"):
        runs()


def test_existing_runs_are_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def second(options: RunOptions) -> dict[str, float]:
        raise RunFailed("no luck")

    runs = {
        "first": lambda options: pytest.fail("run again"),
        "second": second,
        "third": lambda options: {"seconds": 3.0},
    }
    monkeypatch.setattr(whole_runs, "RUNS", runs)
    path = tmp_path / "runs.json"
    path.write_text(json.dumps({"first": {"seconds": 1.0}, "second": {"missed": "the time was used up"}}))
    assert whole_runs.main(["--out", str(tmp_path)]) == 0
    assert json.loads(path.read_text()) == {
        "first": {"seconds": 1.0}, "second": {"missed": "no luck"}, "third": {"seconds": 3.0}
    }  # fmt: skip
    assert "first" not in capsys.readouterr().out


@pytest.mark.exhaustive
@pytest.mark.usefixtures("shakespeare")
def test_all_runs_work_at_tiny_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_GPU_DRY", "1")
    monkeypatch.setenv("TERCET_GPU_BUNDLE", str(tmp_path / "none"))
    monkeypatch.setenv("PYTHON", sys.executable)
    monkeypatch.setenv("OUT", str(tmp_path / "out"))
    process = subprocess.run(["bash", str(ROOT / "benchmarks" / "gpu.sh"), "280"], capture_output=True, text=True)
    assert process.returncode == 0, process.stderr
    rows = json.loads((tmp_path / "out" / "speed.json").read_text())["rows"]
    assert all(row["figures"] for row in rows)
    assert len(rows) == 8
    runs = json.loads((tmp_path / "out" / "runs.json").read_text())
    assert runs["step-124m"]["tokens_per_second"] > 0
    assert runs["time-to-loss, nanoGPT"] == {"missed": "give --nanogpt the folder of a checkout"}
