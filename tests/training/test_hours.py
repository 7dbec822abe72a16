"""`train --hours`: pilot runs, the registered forecast, the run, its end in time, and its errors."""

import json
import shutil
import signal
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.checkpoint import read_card, verify
from tercet.checkpoint.forecast import Forecast, Pilot, read_forecast
from tercet.checkpoint.metrics import read_metrics
from tercet.checkpoint.run_record import FORECAST, PILOTS, read_record
from tercet.cli.main import main
from tercet.config import Plain, UserError, merge
from tercet.storage import DamagedFile
from tercet.training import Interrupted
from tercet.training.budget.choose import Work, best_of, candidates, neighbor, pilot_of
from tercet.training.budget.pilots import SIZES, PilotRuns, step_seconds
from tercet.training.budget.plan_hours import plan_hours
from tercet.training.budget.priors import read_prior
from tercet.training.budget.settings import TextSize, dropout, learning_rate, run_settings, weight_decay
from tercet.training.budget.train_hours import forecast_hours, train_hours
from tercet.training.request import RunRequest

TEXT = "".join(f"{n} times {m} is {n * m}.\n" for n in range(3, 60) for m in range(2, 60))
SECONDS = 20.0
FIRST = f"size-0032-steps-{60:06}"  # folder of the first pilot run
SLOW = "8GiB@0.001TFLOPS"
# Steps of a millisecond, so that a run of seconds has hundreds.
SMALL: Plain = {
    "task": {"batch_size": 4, "validation_tokens": 512, "sample_tokens": 0},
    "data": {"tokenizer": {"kind": "characters"}},
    "model": {"size": 32, "max_len": 16},
    "training": {"precision": "fp32", "compile": "never", "accelerator": "cpu"},
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(TEXT)
    return path


def flat(settings: Plain, prefix: str = "") -> list[tuple[str, object]]:
    """Return the keys of nested settings with dots, and their values."""
    return [
        item
        for key, value in settings.items()
        for item in (flat(value, f"{prefix}{key}.") if isinstance(value, dict) else [(prefix + key, value)])
    ]


def small_request(text: Path, out: Path, changes: Plain | None = None) -> RunRequest:
    return RunRequest(recipe=str(text), changes=merge(SMALL, changes or {}), out=out)


@pytest.fixture(scope="module")
def trained(text: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """Return a finished run within `SECONDS`, and the seconds that it took."""
    out = tmp_path_factory.mktemp("hours") / "run"
    started = time.perf_counter()
    train_hours(small_request(text, out), SECONDS / 3600)
    return out, time.perf_counter() - started


def test_the_run_ends_in_time(trained: tuple[Path, float]) -> None:
    _, seconds = trained
    assert 0.5 * SECONDS < seconds < 1.5 * SECONDS  # other work on the machine changes the speed


def test_the_forecast_is_that_of_the_run(trained: tuple[Path, float]) -> None:
    out, _ = trained
    forecast, record, card = read_forecast(out), read_record(out), read_card(out)
    assert forecast is not None
    assert record is not None
    assert record.finished
    assert 0.3 < record.total_steps / forecast.chosen.steps < 3  # other work changes the speed, and so the length
    assert forecast.chosen.size == 32
    assert forecast.chosen.low < forecast.chosen.loss < forecast.chosen.high < forecast.unigram_loss * 1.5
    assert forecast.chosen.tokens == forecast.chosen.steps * 4 * 16
    assert forecast.contains(card.metrics["val/loss"]) == (
        "within" in forecast.describe_outcome(card.metrics["val/loss"])
    )
    assert len(forecast.pilots) >= 2
    assert sum(pilot.seconds for pilot in forecast.pilots) < 0.8 * SECONDS
    assert Forecast.parse(json.loads(json.dumps(forecast.to_dict()))) == forecast
    metrics = read_metrics(out / "metrics.csv")
    assert metrics["seconds"][-1][1] < 1.5 * forecast.seconds_left


def test_the_forecast_is_registered_before_the_run_and_cannot_be_changed(
    trained: tuple[Path, float], tmp_path: Path
) -> None:
    out, _ = trained
    record = read_record(out)
    assert record is not None
    assert FORECAST in record.files.files
    copy = tmp_path / "copy"
    shutil.copytree(out, copy)
    assert (copy / FORECAST).stat().st_mtime <= (copy / "recipe.yaml").stat().st_mtime
    plain = json.loads((copy / FORECAST).read_text())
    plain["chosen"]["loss"] = read_card(copy).metrics["val/loss"]  # as if it had been right
    (copy / FORECAST).write_text(json.dumps(plain))
    with pytest.raises(DamagedFile):
        read_forecast(copy)
    with pytest.raises(DamagedFile):
        record.check_file(copy, FORECAST)
    assert FORECAST in str(verify(copy).damaged)


def test_a_finished_run_is_not_trained_again(text: Path, trained: tuple[Path, float]) -> None:
    out, _ = trained
    before = (out / "run.json").read_bytes(), (out / FORECAST).read_bytes()
    train_hours(small_request(text, out), SECONDS / 3600)
    assert ((out / "run.json").read_bytes(), (out / FORECAST).read_bytes()) == before


def test_other_hours_are_rejected(text: Path, trained: tuple[Path, float]) -> None:
    with pytest.raises(UserError, match=r"has a forecast for .* hours; pass --hours"):
        train_hours(small_request(text, trained[0]), 1.0)


@pytest.fixture
def pilots_only(trained: tuple[Path, float], tmp_path: Path) -> Path:
    """Return a folder with only the results of the pilot runs, and the first of them, by which the text is measured."""
    folder = tmp_path / "copy"
    (folder / PILOTS).mkdir(parents=True)
    shutil.copyfile(trained[0] / PILOTS / "pilots.json", folder / PILOTS / "pilots.json")
    shutil.copytree(trained[0] / PILOTS / FIRST, folder / PILOTS / FIRST)
    return folder


def test_pilot_runs_are_not_repeated(text: Path, trained: tuple[Path, float], pilots_only: Path) -> None:
    out, copy = trained[0], pilots_only
    started = time.perf_counter()
    forecast, before = forecast_hours(small_request(text, copy), SECONDS / 3600), read_forecast(out)
    assert time.perf_counter() - started < 0.5 * SECONDS
    assert before is not None
    assert forecast.pilots == before.pilots
    assert sorted(path.name for path in (copy / PILOTS).iterdir() if path.is_dir()) == [FIRST]


def test_the_forecast_for_another_machine_has_its_speed_and_is_not_registered(
    text: Path, pilots_only: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    request = small_request(text, pilots_only)
    slow, fast = (plan_hours(request, SECONDS / 3600, gpus=gpus, mfu=1.0) for gpus in (SLOW, f"2x{SLOW}"))
    assert fast.chosen.steps == pytest.approx(2 * slow.chosen.steps, rel=0.1)  # with the same validations
    assert fast.pilots == slow.pilots
    assert (slow.memory_bytes or 0) > 0
    assert slow.machine == "1 x GPU (8 GiB, 0.001 TFLOP/s in bf16) at 100.0% of 0.001 TFLOP/s (assumed)"
    assert "with pilot runs on this machine" in str(slow.view())
    assert not (pilots_only / FORECAST).exists()
    words = ["train", str(text), "--hours", "0.01", "--plan", "--out", str(pilots_only)]
    changes = [word for key, value in flat(SMALL) for word in ("--set", f"{key}={value}")]
    assert main([*words, *changes, "--gpus", SLOW, "--mfu", "1", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["machine"] == slow.machine


def test_restart_deletes_the_forecast_and_the_pilot_runs(
    text: Path, trained: tuple[Path, float], tmp_path: Path
) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(trained[0], copy)
    forecast = forecast_hours(small_request(text, copy), 2 * SECONDS / 3600, restart=True)
    assert forecast.hours == 2 * SECONDS / 3600
    assert not (copy / "run.json").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"training": {"max_steps": 5}}, "--hours and training.max_steps both set the length"),
        ({"training": {"devices": 2, "strategy": "ddp"}}, "--hours supports one device"),
        ({"model": {"size": 33}}, "multiple of 32"),
        ({"model": {"stack": {"n_layers": 3}}}, "--hours chooses model.size, from which model.stack.n_layers follows"),
    ],
)
def test_contradictions(text: Path, tmp_path: Path, changes: Plain, message: str) -> None:
    with pytest.raises(UserError, match=message):
        forecast_hours(small_request(text, tmp_path / "run", changes), 1.0)
    assert not (tmp_path / "run" / FORECAST).exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["demo", "--hours", "1"], "--hours chooses model.size, which the recipe demo does not have"),
        (["gpt", "--hours", "0"], "0"),
        (["gpt", "--hours", "-1"], "-1"),
        (["gpt", "--hours", "1", "--more", "5"], "--more and --hours exclude each other"),
        (["gpt", "--hours", "1", "--plan", "--report"], "--report has no effect with --plan"),
        (["gpt", "--hours", "1", "--page"], "--page and --hours exclude each other"),
        (["gpt", "--hours", "1", "--print-config"], "--print-config and --hours exclude each other"),
        (["gpt", "--hours", "1", "--devices", "2"], "--devices and --hours exclude each other"),
        (["multi30k-de-en", "--hours", "1"], "--hours chooses model.size"),
        (["gpt", "--hours", "1", "--gpus", "1xH100"], "--gpus requires --plan"),
        (["gpt", "--hours", "1", "--plan", "--gpus", "1xH100"], "requires the speed of a GPU; pass --mfu SHARE or"),
        (["gpt", "--hours", "1", "--plan", "--mfu", "0.1"], "--mfu with --hours is for another machine; pass --gpus"),
        (["gpt", "--hours", "1", "--plan", "--gpus", "1xH10", "--mfu", "0.1"], "--gpus '1xH10'"),
        (["gpt", "--hours", "1", "--plan", "--gpus", "1xH100", "--mfu", "3"], "--mfu=3.0 must be above 0"),
        (["gpt", "--hours", "1", "--plan", "--gpus", "1xH100", "--measured", "none"], "none: not a run folder"),
    ],
)
def test_wrong_commands(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", *words]) == 2
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_forecast_is_printed_without_training(
    text: Path, trained: tuple[Path, float], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copyfile(trained[0] / FORECAST, copy / FORECAST)
    forecast = read_forecast(copy)
    assert forecast is not None
    words = ["train", str(text), "--hours", str(forecast.hours), "--out", str(copy), "--plan"]
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(forecast.to_dict()))
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "expected loss" in printed
    assert f"{forecast.chosen.loss:.3f}" in printed
    assert sorted(path.name for path in copy.iterdir()) == [FORECAST]


@pytest.mark.parametrize("words", [[], ["--plan"]])
def test_a_signal_during_a_pilot_run_ends_the_command(
    words: list[str], text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(pilots: PilotRuns, size: int, steps: int) -> Pilot:
        raise Interrupted(signal.SIGINT, "saved in a folder; run the same command again to resume")

    monkeypatch.setattr(PilotRuns, "train", stop)
    assert main(["train", str(text), "--hours", "1", "--out", str(tmp_path / "run"), *words]) == 130
    assert "stopped by SIGINT: saved in a folder" in capsys.readouterr().err


def test_too_few_hours(text: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="leaves no time for 250 steps of any size; pass more hours"):
        forecast_hours(small_request(text, tmp_path / "run"), 0.5 / 3600)


SMALL_TEXT, LARGE_TEXT = TextSize(50_000, 1024, 1024), TextSize(50_000_000, 1024, 1024)


def work_of(text: TextSize) -> Work:
    """Return the work of steps whose FLOPs are proportional to the square of the size."""
    return Work(
        task="language", unit="nats per token", text=text, unigram_loss=6.0, ngram_loss=4.0, validation_tokens=8192,
        flops={size: 1e6 * size**2 for size in SIZES}, multiplied={size: 12 * 4 * size**2 for size in SIZES},
    )  # fmt: skip


def test_more_time_means_a_larger_model() -> None:
    work, pilots = work_of(LARGE_TEXT), [pilot(64, 0.01), pilot(128, 0.03)]
    prior = read_prior("gpt")
    pilots += [pilot(256, 0.1), pilot(512, 0.4)]
    sizes = [best_of(candidates(work, pilots, prior, seconds)).size for seconds in (20, 200, 2000, 20_000)]
    assert sizes == sorted(sizes)
    assert sizes[0] < sizes[-1]


def test_a_small_text_ends_the_run_early_and_a_large_one_does_not() -> None:
    pilots, prior = [pilot(64, 0.01), pilot(128, 0.03)], read_prior("gpt")
    small, large = (best_of(candidates(work_of(text), pilots, prior, 2000.0)) for text in (SMALL_TEXT, LARGE_TEXT))
    assert small.seconds < 1000
    assert large.seconds == 2000


def test_candidates_fit_into_the_time() -> None:
    work, pilots = work_of(LARGE_TEXT), [pilot(64, 0.01), pilot(256, 0.1)]
    found = candidates(work, pilots, read_prior("gpt"), 60.0)
    assert [candidate.size for candidate in found] == sorted(candidate.size for candidate in found)
    for candidate in found:
        assert candidate.steps >= 250
        assert candidate.seconds <= 60
        assert candidate.low < candidate.loss < candidate.high
        assert candidate.steps * step_seconds(pilots, work.flops, candidate.size) < 60
    assert candidates(work, pilots, read_prior("gpt"), 0.01) == []


def test_sizes_far_above_the_pilot_runs_are_only_considered_for_another_machine() -> None:
    work, pilots, prior = work_of(LARGE_TEXT), [pilot(64, 0.01)], read_prior("gpt")
    assert [one.size for one in candidates(work, pilots, prior, 1e5)] == [32, 64, 96]
    found = candidates(work, pilots, prior, 1e5, flops_per_second=1e10)
    assert [one.size for one in found] == [*SIZES]
    for one in found:
        assert one.steps * work.flops[one.size] / 1e10 <= 1e5


def test_a_pilot_run_has_enough_steps_or_a_smaller_size() -> None:
    work, pilots = work_of(LARGE_TEXT), [pilot(64, 0.01), pilot(128, 0.04)]
    assert pilot_of(work, pilots, 128, 10.0) == (128, 247)  # 250 steps without the time of a validation
    assert pilot_of(work, pilots, 128, 2.0) == (96, 86)
    assert pilot_of(work, pilots, 128, 1e-3) is None


def test_neighbors() -> None:
    assert [neighbor(64, distance, SIZES) for distance in (-2, -1, 0, 1)] == [None, 32, 64, 96]
    assert neighbor(SIZES[-1], 1, SIZES) is None


@given(st.sampled_from(SIZES), st.floats(0.01, 1000), st.integers(1000, 10**9))
def test_dropout_rises_with_passes_and_size(size: int, passes: float, unique: int) -> None:
    rate = dropout(size, passes, unique)
    assert 0 <= rate <= 0.3
    assert rate == 0 or passes * max(1, 12 * 14 * size**2 / unique) ** 0.5 > 4
    assert dropout(size, 2 * passes, unique) >= rate
    assert all(dropout(larger, passes, unique) >= rate for larger in SIZES if larger >= size)


@pytest.mark.parametrize(
    ("passes", "vocab_size", "decay"),
    [
        (0.99, 1024, 0.0),
        (1.0, 1024, 0.1),
        (4.0, 1024, 0.4),
        (10.0, 1024, 1.0),
        (500.0, 1024, 1.0),
        (4.0, 64, 0.25),  # 1,600 occurrences of each token
        (4.0, 16, 0.0),
    ],
)
def test_embeddings_decay_by_passes_if_tokens_are_rare(passes: float, vocab_size: int, decay: float) -> None:
    text = TextSize(unique_tokens=102_400, step_tokens=1024, vocab_size=vocab_size)
    steps = round(100 * passes)
    assert weight_decay(steps, text) == pytest.approx(decay, abs=0.01)
    settings = run_settings(64, steps, validations=1, text=text)
    assert settings["training"]["optimizer"]["adam_weight_decay"] == weight_decay(steps, text)
    assert run_settings(64, steps, validations=1)["training"]["optimizer"]["adam_weight_decay"] == 0.0


def pilot(size: int, seconds: float) -> Pilot:
    return Pilot(size=size, steps=100, tokens=1000, loss=5.0, seconds=1.0, step_seconds=seconds)


def test_the_speed_of_a_size() -> None:
    flops = {size: float(size**2) for size in SIZES}
    pilots = [pilot(64, 0.01), pilot(64, 0.008), pilot(256, 0.08)]
    assert step_seconds(pilots, flops, 64) == pytest.approx(0.008)  # the fastest
    assert step_seconds(pilots, flops, 256) == pytest.approx(0.08)
    assert step_seconds(pilots, flops, 128) == pytest.approx((0.008 * 0.08) ** 0.5)  # halfway between the logarithms
    speeds = [step_seconds(pilots, flops, size) for size in SIZES]
    assert speeds == sorted(speeds)
    assert step_seconds([pilot(64, 0.01)], flops, 512) == pytest.approx(0.01 * 64**0.75)


def test_settings_of_a_length() -> None:
    assert learning_rate(1000) == 0.025
    assert learning_rate(4000) == pytest.approx(0.025 / 4**0.4, abs=1e-6)
    settings = run_settings(64, 95, validations=10)
    assert settings["training"]["validate_every"] == 10
    assert settings["model"] == {"size": 64}
