"""The states of a run, one per stage. Each contains the values that later stages need."""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoint.run_record import Change, RunRecord
from tercet.training.recipe.recipe import Recipe
from tercet.training.run_folder.checkpoints import Checkpoints
from tercet.training.run_folder.choices import Start
from tercet.training.run_folder.folder import StartPoint
from tercet.training.run_folder.restart import FormerRun

if TYPE_CHECKING:
    from tercet.checkpoint import TrainedModel
    from tercet.models import AnyModel
    from tercet.training.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """A requested run and its processes; nothing is written yet.

    Attributes:
        folder: Run folder.
        recipe: Recipe, adapted to the number of processes.
        from_run: If True, the recipe is the current one of the run in the folder, with changes. Otherwise it is
            compared with the recipe with which the run was started.
        start: Requested start point.
        exists: If True, the folder contains a run.
        primary: If True, this is rank 0 or the only process, which writes files for all.
        quiet: If True, do not show progress on stderr.
        arithmetic: `precision` and `matmul` of a new run, if they were chosen for several runs together; else None.
        pause_at: Number of steps after which the run is saved and pauses; None for no pause.
        notes: Lines about the recipe, reported when a new run starts.
        resources: Resources that are released when the run ends, such as the lock of the folder.
    """

    folder: Path
    recipe: Recipe
    from_run: bool
    start: Start
    exists: bool
    primary: bool
    quiet: bool
    arithmetic: Mapping[str, Any] | None
    pause_at: int | None
    notes: tuple[str, ...]
    resources: ExitStack


@dataclass(frozen=True, kw_only=True)
class LockedRun:
    """A run whose start point is known. If the folder contains a run, rank 0 has locked it.

    Attributes:
        opened_run: Opened run, with the recipe of the remaining steps.
        former: Recipe of the steps so far; the same recipe if there is no run yet.
        record: Record of the run, or None if there is no run or its record is lost.
        checkpoints: Checkpoints of the run.
        point: Start point.
        is_extended: If True, the run had finished, and resumes with another length or more patience.
        replaced_run: The run that a restart replaces, until the new run has a record; else None.
    """

    opened_run: OpenedRun
    former: Recipe
    record: RunRecord | None
    checkpoints: Checkpoints
    point: StartPoint
    is_extended: bool
    replaced_run: FormerRun | None


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """A run with its task, its model and a complete record.

    Attributes:
        locked_run: Locked run.
        task: Data and objective, with the plan of all steps.
        model: Model with its initial weights.
        record: Record of the run.
        changes: Changes in `record` that are not yet written to `run.json`.
    """

    locked_run: LockedRun
    task: "Task"
    model: "AnyModel"
    record: RunRecord
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run whose training has ended, or was stopped by a signal.

    Attributes:
        started_run: Started run.
        record: Current record of the run.
        signal: Number of the signal that stopped the run; None if it has ended.
    """

    started_run: StartedRun
    record: RunRecord
    signal: int | None

    @property
    def is_paused(self) -> bool:
        """Whether the training stopped at a pause that was requested, before its last step."""
        step = self.started_run.locked_run.opened_run.pause_at
        return step is not None and self.record.saved == step < self.started_run.task.plan.steps


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, whose models and metrics were verified."""

    folder: Path


@dataclass(frozen=True)
class BuiltModel:
    """The task and the model of a run, before its record is read or created.

    Attributes:
        task, model: As in `StartedRun`.
        pretrained: Model that the run starts from, or None.
    """

    task: "Task"
    model: "AnyModel"
    pretrained: "TrainedModel | None"
