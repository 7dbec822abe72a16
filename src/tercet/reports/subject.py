"""The subject of a report: a run folder with its model, or a model without a run."""

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.checkpoint import TrainedModel, load_model
from tercet.checkpoint.card import remove_folders
from tercet.checkpoint.find_run import find_run_folder, is_run
from tercet.checkpoint.metrics import Columns
from tercet.checkpoint.run_folder import RunFolder, RunStatus
from tercet.checkpoint.run_record import METRICS, RunRecord
from tercet.checkpoint.training_problems import TrainingProblem
from tercet.config import UserError
from tercet.inspect.idle_heads import find_head_problems
from tercet.messages import counted, one_line


@dataclass(frozen=True, kw_only=True)
class ReportSubject:
    """The subject of a report.

    Attributes:
        folder: Folder of the run, or of the model if there is no run.
        run: View of the run folder; None without a run.
        status, record: Progress and record of the run; None without a run, or if their files are damaged. `record` is
            also None if the run has none.
        trained_model: Model; None if none is saved yet, or it is damaged.
        recipe: Recipe of the model's card, else of the run, without folders of this machine; empty if there is none.
            The card's recipe includes the settings that were changed during the run.
        columns: Columns of the run's metrics.csv, without invalid lines and numbers that are not finite.
        warnings: Damaged files, problems of the training, and other notes for the top of the report.
    """

    folder: Path
    run: RunFolder | None
    status: RunStatus | None
    record: RunRecord | None
    trained_model: TrainedModel | None
    recipe: Mapping[str, Any]
    columns: Columns
    warnings: tuple[str, ...]

    @property
    def name(self) -> str:
        """The folder's name, or the name in the card of a model without a run; no path, because reports are shared."""
        card_name = "" if self.trained_model is None or self.run is not None else self.trained_model.card.name
        return one_line(card_name or self.folder.resolve().name) or "a model"

    @property
    def task(self) -> str:
        """The kind of task, as in the model or `task.kind` of the recipe; "" if it is not known."""
        if self.trained_model is not None:
            return self.trained_model.task
        task = self.recipe.get("task")
        return str(task.get("kind", "")) if isinstance(task, Mapping) else ""

    def latest(self, name: str) -> tuple[int, float] | None:
        """Return the step and the value of the last number in a column; None if the column is empty."""
        return self.columns[name][-1] if self.columns[name] else None


def open_subject(path: Path, trained_model: TrainedModel | None = None) -> ReportSubject:
    """Open the run or model at `path`.

    Args:
        path: Run folder, or a model.
        trained_model: Model at `path` if it has already been loaded.

    Raises:
        UserError: If there is neither a run nor a model, or a model without a run is damaged.
    """
    folder = find_run_folder(path)
    if not is_run(path):
        trained_model = load_model(path) if trained_model is None else trained_model
        return ReportSubject(
            folder=trained_model.folder, run=None, status=None, record=None, trained_model=trained_model,
            recipe=remove_folders(trained_model.card.recipe), columns=defaultdict(list), warnings=(),
        )  # fmt: skip
    warnings = list[str]()
    run = RunFolder(folder)

    def read(reader: Any, *arguments: Any) -> Any:
        """Return the result of a reader; if a file is damaged, add a warning and return None."""
        try:
            return reader(*arguments)
        except UserError as error:
            warnings.append(strip_folder(str(error), folder))
            return None

    read(run.metrics.refresh)
    status, record = read(run.status), read(run.record)
    if record is not None and (folder / METRICS).is_file():
        read(record.check_file, folder, METRICS)
    if trained_model is None and any((place / "config.json").is_file() for place in _model_places(path, folder)):
        trained_model = read(load_model, path)
    recipe = {} if trained_model is None else trained_model.card.recipe
    recipe = recipe or read(run.recipe) or {}
    if run.metrics.unreadable:
        warnings.append(f"{METRICS} has {counted(run.metrics.unreadable, 'invalid line', 'invalid lines')}, not shown")
    problems = list[TrainingProblem](read(run.problems) or [])
    if trained_model is not None:
        problems += find_head_problems(trained_model.model, step=trained_model.card.step)
    warnings += [f"Step {problem.step:,}: {problem.text}" for problem in problems]
    return ReportSubject(
        folder=folder,
        run=run,
        status=status,
        record=record,
        trained_model=trained_model,
        recipe=remove_folders(recipe),
        columns=_finite(run.metrics.columns()),
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _model_places(path: Path, folder: Path) -> tuple[Path, ...]:
    return (path, folder / "best", folder / "last")


def strip_folder(text: str, folder: Path) -> str:
    """Return a message in which paths are relative to the run folder, because reports are shared."""
    return text.replace(f"{folder}/", "").replace(str(folder), folder.resolve().name)


def _finite(columns: Columns) -> Columns:
    finite = {name: [point for point in points if math.isfinite(point[1])] for name, points in columns.items()}
    return defaultdict(list, finite)
