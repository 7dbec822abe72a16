"""The problems of a training are shown on the page, as text, in the report and in Python."""

from pathlib import Path

from made_runs import make_run

from tercet.checkpoint.metrics import COLUMNS
from tercet.checkpoint.run_folder import RunFolder
from tercet.dashboard.answers import RunAnswers
from tercet.dashboard.text_view import describe_run
from tercet.reports import report


def write_overfitting(folder: Path) -> Path:
    """Create the folder of a run whose validation loss rises from step 50 on."""
    run = make_run(folder, steps=100, finished=True)
    rows = [",".join(COLUMNS)]
    for step in range(5, 101, 5):
        validation = f"{3 + abs(step - 50) / 50:.3f}" if step % 10 == 0 else ""
        cells = {"step": str(step), "train/loss": f"{4 - step / 50:.3f}", "val/loss": validation, "seconds": str(step)}
        rows.append(",".join(cells.get(name, "") for name in COLUMNS))
    (run / "metrics.csv").write_text("\n".join(rows) + "\n")
    return run


def test_overfitting_is_shown_in_all_views(tmp_path: Path) -> None:
    run = write_overfitting(tmp_path / "run")
    words = "the validation loss rose from 3.000 (step 50) to 4.000 and the training loss fell to 2.200"
    folder = RunFolder(run)
    folder.metrics.refresh()
    (problem,) = folder.problems()
    assert (problem.name, problem.step) == ("overfitting", 100)
    assert problem.text.startswith(words)
    (answer,) = RunAnswers([run]).answer("runs", {})["runs"]
    assert answer["problems"] == [problem.text]
    assert f"step 100: {words}" in describe_run(run)
    assert f"Step 100: {words}" in report(run).read_text(encoding="utf-8")


def test_a_run_is_checked_again_if_it_has_new_lines(tmp_path: Path) -> None:
    run = write_overfitting(tmp_path / "run")
    lines = (run / "metrics.csv").read_text().splitlines(keepends=True)
    (run / "metrics.csv").write_text("".join(lines[:11]))
    folder = RunFolder(run)
    folder.metrics.refresh()
    assert folder.problems() == []
    (run / "metrics.csv").write_text("".join(lines))
    folder.metrics.refresh()
    assert [problem.name for problem in folder.problems()] == ["overfitting"]
