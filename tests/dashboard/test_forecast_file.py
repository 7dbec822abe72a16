"""The file of a forecast: written once, read back, and shown by the report and the dashboard."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from made_runs import make_run

from tercet.checkpoint.forecast import Forecast, Pilot, SizeForecast, read_forecast, register
from tercet.checkpoint.run_record import FORECAST, read_record
from tercet.config import UserError
from tercet.dashboard.answers import RunAnswers
from tercet.reports import report
from tercet.storage import DamagedFile

SMALL = SizeForecast(
    size=64, steps=900, tokens=921_600, passes=1.0, seconds=90.0, loss=2.2, low=2.0, high=2.4
)  # fmt: skip
LARGE = replace(SMALL, size=96, steps=500, loss=2.1, low=1.9, high=2.3, passes=0.555)
FORECAST_OF_RUN = Forecast(
    hours=0.03, chosen=LARGE, candidates=(SMALL, LARGE),
    pilots=(Pilot(size=64, steps=60, tokens=61_440, loss=3.0, seconds=4.0, step_seconds=0.05),),
    unique_tokens=921_600, unigram_loss=3.3, unit="nats per token", seconds_left=90.0, reasons=("It is.", "So is it."),
)  # fmt: skip


def test_a_forecast_is_read_as_it_was_written(tmp_path: Path) -> None:
    assert read_forecast(tmp_path) is None
    register(FORECAST_OF_RUN, tmp_path)
    assert read_forecast(tmp_path) == FORECAST_OF_RUN


def test_a_forecast_is_written_once(tmp_path: Path) -> None:
    register(FORECAST_OF_RUN, tmp_path)
    with pytest.raises(UserError, match="a forecast is never changed; pass another --out, or --restart"):
        register(replace(FORECAST_OF_RUN, hours=1.0), tmp_path)
    assert read_forecast(tmp_path) == FORECAST_OF_RUN


@pytest.mark.parametrize("change", ["chosen", "hours", "candidates"])
def test_a_damaged_file_is_an_error(tmp_path: Path, change: str) -> None:
    register(FORECAST_OF_RUN, tmp_path)
    plain = json.loads((tmp_path / FORECAST).read_text())
    plain[change] = None
    (tmp_path / FORECAST).write_text(json.dumps(plain))
    with pytest.raises(DamagedFile):
        read_forecast(tmp_path)


def test_the_hash_of_the_forecast_is_that_of_the_first_save(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=200)
    record = read_record(run)
    assert record is not None
    assert FORECAST not in record.update_saved(run, 0).files.files
    register(FORECAST_OF_RUN, run)
    first = record.update_saved(run, 0)
    (run / FORECAST).write_text("{}")
    later = first.update_saved(run, 100)
    assert later.files.files[FORECAST] == first.files.files[FORECAST]
    with pytest.raises(DamagedFile):
        later.check_file(run, FORECAST)


@pytest.mark.parametrize(
    ("loss", "place"), [(1.8, "below the interval"), (2.0, "within the interval"), (2.4, "above the interval")]
)
def test_the_outcome(loss: float, place: str) -> None:
    text = FORECAST_OF_RUN.describe_outcome(loss)
    assert text == f"Forecast before training: 2.1000 (1.9000 to 2.3000). Outcome: {loss:.4f}, {place}."
    assert FORECAST_OF_RUN.contains(loss) == (place == "within the interval")


def test_the_table_marks_the_choice() -> None:
    rows = FORECAST_OF_RUN.candidate_rows()
    assert [row[0] for row in rows] == ["64", "96 *"]
    assert rows[1][-2:] == ("2.100", "1.900 to 2.300")


def test_the_report_shows_the_forecast(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", steps=200, finished=True)
    assert "Forecast" not in report(run).read_text()
    register(FORECAST_OF_RUN, run)
    page = report(run).read_text()
    assert "Forecast before training: 2.1000 (1.9000 to 2.3000). Outcome: 2.1050, within the interval." in page
    assert "It is. So is it." in page
    assert "96 *" in page


def test_the_dashboard_shows_the_forecast(tmp_path: Path) -> None:
    with_forecast = make_run(tmp_path / "with", steps=200)
    register(FORECAST_OF_RUN, with_forecast)
    damaged = tmp_path / "damaged"
    shutil.copytree(with_forecast, damaged)
    (damaged / FORECAST).write_text("{}")
    answers = RunAnswers([with_forecast, make_run(tmp_path / "without", steps=200), damaged])
    shown, without, wrong = answers.overview()["runs"]
    assert shown["forecast"] == {"loss": 2.1, "low": 1.9, "high": 2.3}
    assert without["forecast"] is None
    assert wrong["forecast"] is None
    assert FORECAST in wrong["error"]
