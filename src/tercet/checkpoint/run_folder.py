"""Read-only view of a run's folder: progress, state, recipe, metrics and samples.

Nothing is written. The run's lock is not tested either, since this could prevent a training from taking it.
"""

import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from tercet.checkpoint.forecast import read_forecast
from tercet.checkpoint.metrics import MetricsFile
from tercet.checkpoint.run_record import METRICS, RECIPE, RECORD, RunRecord, check_run_links, read_record
from tercet.checkpoint.training_problems import TrainingFacts, TrainingProblem, find_training_problems
from tercet.config import UserError
from tercet.limits import RECIPE_CHARACTERS, SAMPLE_BYTES, YAML_BYTES
from tercet.reading.bounded_json import read_json_file
from tercet.reading.files import read_regular_file
from tercet.settings_yaml import parse_yaml
from tercet.storage.folder_lock import OWNER
from tercet.storage.processes import is_alive

State = Literal["waiting", "running", "interrupted", "finished"]
SILENCE = 300.0  # seconds without output after which a run on another machine counts as interrupted; see `_silence`
RECENT_STEPS = 64  # logged steps over which the speed is measured
SAMPLE = re.compile(r"step-(\d{1,18})\.txt")


@dataclass(frozen=True, kw_only=True)
class RunStatus:
    """Progress of a run.

    Attributes:
        state: State of the run; "waiting" before it has started.
        detail: More about the state, such as the machine on which the run is running; may be empty.
        step: Last logged step; 0 if there is none.
        total: Total number of steps; None if unknown.
        seconds: Seconds of training up to the last logged step; None if not logged.
        left: Estimated remaining seconds, from the recent speed; None if unknown or if the run is not running.
        updated: Seconds since metrics.csv was last changed; None if it does not exist.
    """

    state: State
    detail: str
    step: int
    total: int | None
    seconds: float | None
    left: float | None
    updated: float | None


class RunFolder:
    """A run's folder that can be read repeatedly; run.json and recipe.yaml are only read again if they changed.

    Attributes:
        folder: The run folder.
        metrics: Columns of metrics.csv, which are only updated by `metrics.refresh()`.

    Raises:
        UserError: If a link leads out of the run, as in `check_run_links`.
    """

    def __init__(self, folder: Path) -> None:
        check_run_links(folder)
        self.folder = folder
        self.metrics = MetricsFile(folder / METRICS)
        self._cache: dict[str, tuple[tuple[int, int], Any]] = {}
        self._problems: tuple[tuple[int, int], list[TrainingProblem]] | None = None

    @property
    def name(self) -> str:
        """The name of the run folder, with links resolved."""
        return self.folder.resolve().name

    def status(self) -> RunStatus:
        """Return the progress of the run as of the last `metrics.refresh()`.

        Raises:
            UserError: If run.json or recipe.yaml is damaged.
        """
        record, metrics = self.record(), self.metrics
        seconds, steps = metrics.column("seconds"), metrics.column("step")
        step = int(steps[-1]) if len(steps) else 0
        total = self.total_steps(record)
        state, detail = self._state(record)
        left = None
        if state == "running" and total is not None:
            left = _seconds_left(steps, seconds, total)
        updated = None
        with suppress(OSError):
            updated = max(0.0, time.time() - metrics.path.stat().st_mtime)
        finite_seconds = seconds[np.isfinite(seconds)]
        return RunStatus(
            state=state, detail=detail, step=step, total=total, left=left, updated=updated,
            seconds=float(finite_seconds[-1]) if len(finite_seconds) else None,
        )  # fmt: skip

    def total_steps(self, record: RunRecord | None) -> int | None:
        """Return the current length of the run in steps; None if unknown.

        Args:
            record: Content of run.json. If None, the length is read from recipe.yaml.
        """
        if record is not None:
            return record.total_steps
        training = self.recipe().get("training")
        steps = training.get("max_steps") if isinstance(training, Mapping) else None
        return steps if isinstance(steps, int) and steps > 0 else None

    def record(self) -> RunRecord | None:
        """Return the content of run.json; None before the run has started. Raises like `read_record`."""

        def read(_: Path) -> RunRecord | None:
            return read_record(self.folder)

        return self._read_once(RECORD, read)

    def recipe(self) -> dict[str, Any]:
        """Return the content of recipe.yaml; empty before the run has started. Raises UserError if it is invalid."""

        def read(path: Path) -> dict[str, Any]:
            text = read_regular_file(path, YAML_BYTES).decode(errors="replace")
            return parse_yaml(text, name=str(path))

        return self._read_once(RECIPE, read) or {}

    def settings(self) -> dict[str, str]:
        """Return the current recipe, including changes during the run, as {dotted key: value as text}."""
        settings = {key: _format_value(value) for key, value in _flatten(self.recipe())}
        for change in self.changes():
            settings[change["key"]] = change["new"]
        return settings

    def changes(self) -> list[dict[str, Any]]:
        """Return the settings that were changed after the run had started.

        Returns:
            One dictionary per change: "step" (number of completed steps), "key", and as text "old" and "new".
        """
        record = self.record()
        return [
            {"step": change.step, "key": change.key, "old": _format_value(change.old), "new": _format_value(change.new)}
            for change in (record.changes if record else ())
        ]

    def forecast(self) -> dict[str, float] | None:
        """Return the expected loss of the run's forecast with its interval; None if the run has no forecast.

        Raises:
            UserError: If forecast.json is damaged.
        """
        forecast = read_forecast(self.folder)
        if forecast is None:
            return None
        return {"loss": forecast.chosen.loss, "low": forecast.chosen.low, "high": forecast.chosen.high}

    def problems(self) -> list[TrainingProblem]:
        """Return the problems that the metrics show as of the last `metrics.refresh()`.

        Raises:
            UserError: If run.json or recipe.yaml is damaged.
        """
        version = (self.metrics.generation, len(self.metrics))
        if self._problems is not None and self._problems[0] == version:
            return self._problems[1]
        recipe, total_steps = self.recipe(), self.total_steps(self.record())
        training, task = (part if isinstance(part, Mapping) else {} for part in map(recipe.get, ("training", "task")))
        warmup_steps, best_by = training.get("warmup_steps"), task.get("best_by")
        problems = find_training_problems(
            TrainingFacts(
                points=self.metrics.points,
                warmup_steps=warmup_steps if isinstance(warmup_steps, int) else 0,
                total_steps=total_steps or 0,
                best_by=best_by if isinstance(best_by, str) else "loss",
            )
        )
        self._problems = (version, problems)
        return problems

    def samples(self) -> list[int]:
        """Return the steps at which sample texts were written, in ascending order."""
        names: list[str] = []
        with suppress(OSError):
            names = os.listdir(self.folder / "samples")
        return sorted(int(match[1]) for name in names if (match := SAMPLE.fullmatch(name)))

    def sample(self, step: int) -> str:
        """Return the sample texts of a step. Raises UserError if there are none, or the file is too large."""
        return read_regular_file(self.folder / "samples" / f"step-{step:06d}.txt", SAMPLE_BYTES).decode(
            errors="replace"
        )

    def _state(self, record: RunRecord | None) -> tuple[State, str]:
        if record is not None and record.finished:
            return "finished", ""
        owner = None
        with suppress(UserError, KeyError, TypeError, ValueError):
            content = read_json_file(self.folder / OWNER)
            owner = (str(content["host"])[:100], int(content["pid"]))
        if owner is None:
            return ("waiting", "") if record is None and len(self.metrics) == 0 else ("interrupted", "")
        host, pid = owner
        if host == socket.gethostname():
            return ("running", "") if is_alive(pid) else ("interrupted", f"process {pid} has ended")
        silence = self._silence()
        if silence is None or silence < SILENCE:
            return "running", f"on {host}"
        return "interrupted", f"nothing heard from {host} for {silence / 60:.0f} minutes"

    def _silence(self) -> float | None:
        """Return the seconds since the run last wrote a file, less twice its longest recent interval between logs.

        None if there are no files.
        """
        times: list[float] = []
        for name in (METRICS, RECORD, OWNER):
            with suppress(OSError):
                times.append((self.folder / name).stat().st_mtime)
        seconds = self.metrics.column("seconds")[-RECENT_STEPS:]
        step_seconds = float(np.nanmax(np.diff(seconds), initial=0.0)) if len(seconds) > 1 else 0.0
        return max(0.0, time.time() - max(times) - 2 * step_seconds) if times else None

    def _read_once(self, name: str, read: Any) -> Any:
        path = self.folder / name
        try:
            status = path.stat()
        except OSError:
            return None
        version = (status.st_mtime_ns, status.st_size)
        if name not in self._cache or self._cache[name][0] != version:
            self._cache[name] = (version, read(path))
        return self._cache[name][1]


def _seconds_left(steps: np.ndarray, seconds: np.ndarray, total: int) -> float | None:
    finite = np.flatnonzero(np.isfinite(seconds))[-RECENT_STEPS:]
    if len(finite) < 2:
        return None
    n_steps, duration = steps[finite[-1]] - steps[finite[0]], seconds[finite[-1]] - seconds[finite[0]]
    return float(duration / n_steps * max(0.0, total - steps[-1])) if n_steps > 0 and duration > 0 else None


def _flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _flatten(item, f"{path}.{key}" if path else str(key))
    else:
        yield path, value


def _format_value(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    text = ", ".join(map(_format_value, value)) if isinstance(value, list) else f"{value}"
    return text if len(text) <= RECIPE_CHARACTERS else f"{text[:RECIPE_CHARACTERS]} …"
