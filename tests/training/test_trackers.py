"""Each tracker shows a run again: its name, settings, and one row per step, also after it is resumed.

The tests of a tracker run if its package is installed.
"""

import json
import shutil
import struct
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tiny_runs import tiny_recipe

from tercet.checkpoint.metrics import read_metrics
from tercet.cli.main import main
from tercet.training import train

NAME = "my run"
Found = tuple[set[str], dict[int, float], bool]  # names of runs, training loss by step, if the settings are found


def unique(points: list[tuple[int, float]]) -> dict[int, float]:
    """Return the values by step; no step may occur twice."""
    steps = [step for step, _ in points]
    assert len(set(steps)) == len(steps), steps
    return dict(points)


def find_tensorboard(out: Path) -> Found:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(out / "tensorboard"))
    events.Reload()
    points = [(event.step, event.value) for event in events.Scalars("train/loss")]
    return {out.name}, unique(points), "max_steps" in (out / "tensorboard" / "hparams.yaml").read_text()


def read_records(content: bytes) -> list[bytes]:
    """Return the records of a .wandb file: the format of LevelDB's log, in blocks of 32 KiB, after 7 bytes."""
    records, place = list[bytes](), 7
    while place + 7 <= len(content):
        if 32768 - place % 32768 < 7:  # the rest of a block that is too short for a head
            place += 32768 - place % 32768
            continue
        size, kind = struct.unpack_from("<HB", content, place + 4)
        if place + 7 + size > len(content):  # not yet written
            break
        data, place = content[place + 7 : place + 7 + size], place + 7 + size
        if kind in (1, 2):  # a whole record, or its first part
            records.append(data)
        else:
            records[-1] += data
    return records


def find_wandb(out: Path) -> Found:
    """Read the files that `wandb sync` uploads; both have the id of the same run."""
    from wandb.proto import wandb_internal_pb2

    names, points, has_settings = set[str](), [], False
    for path in sorted(out.glob("wandb/offline-run-*/*.wandb")):
        for data in read_records(path.read_bytes()):
            record = wandb_internal_pb2.Record()
            record.ParseFromString(data)
            if record.HasField("run"):
                names |= {record.run.display_name, record.run.run_id}
                has_settings |= any(item.key == "training" for item in record.run.config.update)
            items = {item.key or item.nested_key[0]: json.loads(item.value_json) for item in record.history.item}
            if "train/loss" in items:
                points.append((items["trainer/global_step"], items["train/loss"]))
    return names, unique(points), has_settings


def find_mlflow(out: Path) -> Found:
    from mlflow.tracking import MlflowClient

    client = MlflowClient(f"sqlite:///{out / 'mlflow' / 'mlflow.db'}")
    experiment = client.get_experiment_by_name("tercet")
    assert experiment is not None
    (run,) = client.search_runs([experiment.experiment_id])
    assert run.info.status == "FINISHED"
    points = [(point.step, point.value) for point in client.get_metric_history(run.info.run_id, "train/loss")]
    return {run.info.run_name}, unique(points), run.data.params["training/max_steps"] == "6"


def find_trackio(out: Path) -> Found:
    from trackio.sqlite_storage import SQLiteStorage

    runs = SQLiteStorage.get_run_records("tercet")
    points = [(row["step"], row["train/loss"]) for row in SQLiteStorage.get_logs("tercet", NAME) if "train/loss" in row]
    config = SQLiteStorage.get_run_config("tercet", NAME)
    assert len(runs) == 1
    return {str(runs[0]["name"])}, unique(points), config is not None and config["training"]["max_steps"] in (6, 9)


FINDERS: dict[str, Callable[[Path], Found]] = {
    "tensorboard": find_tensorboard, "wandb": find_wandb, "mlflow": find_mlflow, "trackio": find_trackio
}  # fmt: skip


@pytest.fixture(autouse=True)
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write no tracker's files outside of the test's folder."""
    for name in ("MLFLOW_TRACKING_URI", "WANDB_API_KEY", "TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    if find_spec("trackio") is not None:
        for module in ("trackio.utils", "trackio.sqlite_storage", "trackio.fragments"):
            monkeypatch.setattr(f"{module}.TRACKIO_DIR", tmp_path / "trackio", raising=False)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # of the trackers
@pytest.mark.parametrize("tracker", FINDERS)
def test_a_resumed_run_is_one_run_with_each_step_once(
    tracker: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if find_spec(tracker) is None:
        pytest.skip(f"needs {tracker}")
    settings: dict[str, Any] = {"max_steps": 6, "save_every": 4, "schedule": "constant"}
    recipe = tiny_recipe(tmp_path, {"logging": {"tracker": tracker}}, **settings)
    out = train(recipe, tmp_path / NAME, quiet=True)
    assert capsys.readouterr().out == ""
    check(tracker, out, last=6)
    shutil.rmtree(out / "checkpoints" / "step-000006")  # as if the run had been killed after step 6
    assert main(["train", str(out), "--more", "3", "--quiet"]) == 0
    check(tracker, out, last=9)


def check(tracker: str, out: Path, *, last: int) -> None:
    deadline = time.monotonic() + 30
    names, losses, has_settings = FINDERS[tracker](out)
    while last not in losses and time.monotonic() < deadline:  # the process of W&B may write after `finish`
        time.sleep(0.1)
        names, losses, has_settings = FINDERS[tracker](out)
    assert names == {NAME}
    assert has_settings
    assert losses == pytest.approx(dict(read_metrics(out / "metrics.csv")["train/loss"]), rel=1e-6)
    assert max(losses) == last
