"""Answers to the queries of the dashboard: downsampled curves of metrics.csv, states, samples and settings."""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tercet.checkpoint.metrics import X_AXES
from tercet.checkpoint.run_folder import RunFolder
from tercet.config import UserError
from tercet.dashboard.downsample import downsample
from tercet.dashboard.queries import QUERIES, CurvesQuery, RunSampleQuery, parse_query

NO_CURVES = ("epoch", *X_AXES)  # columns that are not plotted
FRESH_SECONDS = 0.4  # minimum time in seconds between two reads of the folders
MIN_SECONDS = 1e-3  # smallest start of a logarithmic axis, if the query has none


class RunAnswers:
    """Answer queries about several runs, one query at a time.

    Args:
        folders: Run folders.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self.runs = [RunFolder(folder) for folder in folders]
        self.names = _distinct_names(folders)
        self._lock = threading.Lock()
        self._refresh_time = float("-inf")
        self._errors: list[str | None] = [None] * len(self.runs)

    def answer(self, name: str, body: Any) -> dict[str, Any]:
        """Return the answer to a query of the page, as an object for JSON.

        Args:
            name: Name of the query, one of QUERIES.
            body: Parsed JSON body of the query.

        Raises:
            UserError: If the query is invalid, or there is no such run or sample.
        """
        if name not in QUERIES:
            raise UserError(f"no such query: {name!r:.60}; available queries: {', '.join(QUERIES)}")
        query = parse_query(QUERIES[name], body)
        with self._lock:
            self._refresh()
            if isinstance(query, CurvesQuery):
                return self.curves(query)
            if isinstance(query, RunSampleQuery):
                return self.sample(query)
            return self.settings() if name == "settings" else self.overview()

    def read_ahead(self) -> None:
        """Read the runs in a thread, so that the first query is answered without delay."""

        def read() -> None:
            with self._lock:
                self._refresh()

        threading.Thread(target=read, daemon=True).start()

    def overview(self) -> dict[str, Any]:
        """Return the state and the last metrics of each run."""
        return {"runs": [self._describe(number) for number in range(len(self.runs))]}

    def curves(self, query: CurvesQuery) -> dict[str, Any]:
        """Return the downsampled curves of all metrics of all runs in a range of the axis.

        The answer also contains the range (`start`, `end`), and the range of all values (`whole`).
        """
        axes = [run.metrics.axis(query.x) for run in self.runs]
        values = np.concatenate(axes) if axes else np.empty(0)
        values = values[np.isfinite(values) & ((values > 0) | (not query.log))]
        whole = [float(values.min()), float(values.max())] if len(values) else [0.0, 1.0]
        if query.log:
            whole[0] = max(whole[0], MIN_SECONDS)
        start = whole[0] if query.start is None else query.start
        end = whole[1] if query.end is None else query.end
        if not end > start:
            end = start + 1.0
        curves = list[dict[str, Any]]()
        for number, (run, axis) in enumerate(zip(self.runs, axes, strict=True)):
            for metric in self._metrics(run):
                points = downsample(
                    axis, run.metrics.column(metric), start=start, end=end, buckets=query.buckets, log=query.log
                )
                curves.append({"run": number, "metric": metric, **points.to_plain()})
        return {"whole": whole, "start": start, "end": end, "curves": curves}

    def sample(self, query: RunSampleQuery) -> dict[str, Any]:
        """Return the samples that a run wrote at a step.

        Raises:
            UserError: If there is no such run, or it has no samples of this step.
        """
        if query.run >= len(self.runs):
            raise UserError(f"no such run: {query.run}; number of runs: {len(self.runs)}")
        return {"run": query.run, "step": query.step, "text": self.runs[query.run].sample(query.step)}

    def settings(self) -> dict[str, Any]:
        """Return the recipes key by key, and the changes to the recipe of each run after it had started.

        A row has one value per run, which is None if the recipe of the run does not contain the key.
        """
        recipes = [self._if_readable(number, run.settings, {}) for number, run in enumerate(self.runs)]
        keys = list(dict.fromkeys(key for settings in recipes for key in settings))
        rows = [{"key": key, "values": [settings.get(key) for settings in recipes]} for key in keys]
        for row in rows:
            row["differs"] = len(set(row["values"])) > 1
        changes = [self._if_readable(number, run.changes, []) for number, run in enumerate(self.runs)]
        return {"rows": rows, "changes": changes}

    def _describe(self, number: int) -> dict[str, Any]:
        run = self.runs[number]
        status = self._if_readable(number, run.status, None)
        forecast = self._if_readable(number, run.forecast, None)
        last = {name: _last(run.metrics.column(name)) for name in self._metrics(run)}
        validation, steps = run.metrics.column("val/loss"), run.metrics.column("step")
        best = None
        if np.isfinite(validation).any():
            best_row = int(np.nanargmin(np.where(np.isfinite(validation), validation, np.nan)))
            best = {"loss": _digits(validation[best_row]), "step": int(steps[best_row])}
        return {
            "name": self.names[number],
            "folder": str(run.folder),
            "error": self._errors[number],
            "state": "unreadable" if status is None else status.state,
            "detail": "" if status is None else status.detail,
            "step": 0 if status is None else status.step,
            "total": None if status is None else status.total,
            "seconds": None if status is None else status.seconds,
            "left": None if status is None else status.left,
            "updated": None if status is None else status.updated,
            "rows": len(run.metrics),
            "generation": run.metrics.generation,
            "unreadable": run.metrics.unreadable,
            "problems": [problem.text for problem in self._if_readable(number, run.problems, [])],
            "last": last,
            "best": best,
            "forecast": forecast,
            "samples": run.samples(),
        }

    def _refresh(self) -> None:
        if time.monotonic() - self._refresh_time < FRESH_SECONDS:
            return
        for number, run in enumerate(self.runs):
            self._errors[number] = None
            self._if_readable(number, run.metrics.refresh, None)
        self._refresh_time = time.monotonic()

    def _if_readable(self, number: int, read: Any, otherwise: Any) -> Any:
        """Return the result of `read`; if the files of the run are damaged, store the error and return `otherwise`."""
        try:
            return read()
        except UserError as error:
            self._errors[number] = str(error)
            return otherwise

    @staticmethod
    def _metrics(run: RunFolder) -> list[str]:
        names = [name for name in run.metrics.names if name not in NO_CURVES]
        return [name for name in names if np.isfinite(run.metrics.column(name)).any()]


def _last(column: np.ndarray) -> float | None:
    finite = column[np.isfinite(column)]
    return _digits(finite[-1]) if len(finite) else None


def _digits(value: Any) -> float:
    return float(f"{float(value):.7g}")


def _distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the name of each folder, preceded by as many of its parent folders as make all names distinct."""
    parts = [folder.resolve().parts for folder in folders]
    for depth in range(1, max((len(path) for path in parts), default=1) + 1):
        names = ["/".join(path[-depth:]) for path in parts]
        if len(set(names)) == len(names):
            return names
    return [str(folder) for folder in folders]
