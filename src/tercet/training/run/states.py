"""The states of a run in progress, each of which holds what the stages after it need."""

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

if TYPE_CHECKING:
    from tercet.checkpoint import TrainedModel
    from tercet.models import AnyModel
    from tercet.training.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class OpenedRun:
    """What was asked for, in the processes that there are; nothing is written yet.

    Attributes:
        folder: The run's folder.
        recipe: The recipe, for as many devices as there are processes.
        from_run: The recipe is the one of the run in the folder as it is now, with changes.
        start: Where the run is to start.
        exists: The folder holds a run.
        primary: This is the only or the first of the run's processes, which writes for all.
        quiet: No progress on stderr.
        arithmetic: Precision and matmul of a run that begins, if they were chosen for several runs together.
        notes: Lines about the recipe, reported when the run begins.
        resources: What is held until the run ends, such as the folder's lock.
    """

    folder: Path
    recipe: Recipe
    from_run: bool
    start: Start
    exists: bool
    primary: bool
    quiet: bool
    arithmetic: Mapping[str, Any] | None
    notes: tuple[str, ...]
    resources: ExitStack


@dataclass(frozen=True, kw_only=True)
class LockedRun:
    """A run that no other process trains.

    Attributes:
        opened_run: The run as it was opened, its recipe the one by which it goes on.
        former: The recipe of the run so far; the same recipe if there is no run.
        record: What the run noted of itself; None if there is no run, or its record is lost.
        checkpoints: Its checkpoints.
        point: Where it starts.
        is_extended: It is at its end, and is made longer.
    """

    opened_run: OpenedRun
    former: Recipe
    record: RunRecord | None
    checkpoints: Checkpoints
    point: StartPoint
    is_extended: bool


@dataclass(frozen=True, kw_only=True)
class StartedRun:
    """A run with its task and model, whose folder says what `auto` came to.

    Attributes:
        locked_run: The run as it was locked.
        task: Data and objective, with the plan of all steps.
        model: The model as it begins.
        record: What the run notes of itself.
        changes: Those of the record that are not written down yet.
    """

    locked_run: LockedRun
    task: "Task"
    model: "AnyModel"
    record: RunRecord
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TrainedRun:
    """A run after its last step.

    Attributes:
        started_run: The run as it was started.
        record: What it notes of itself now.
        signal: The number of the signal that stopped it, or None.
    """

    started_run: StartedRun
    record: RunRecord
    signal: int | None


@dataclass(frozen=True)
class FinishedRun:
    """A run at its end, whose models and figures are those that were written."""

    folder: Path


@dataclass(frozen=True)
class BuiltModel:
    """Attributes:
    task, model: As of a started run.
    pretrained: The model that it goes on from.
    """

    task: "Task"
    model: "AnyModel"
    pretrained: "TrainedModel | None"
