"""A search of settings: trials that are proposed, trained to the rungs of successive halving, and recorded.

Each trial is an ordinary run, which pauses at a rung and is resumed exactly if it is promoted. All trials share the
seed of the recipe. Before a trial is trained, its settings are written to `trials.json`, and after each rung its loss,
so that a search that was killed continues from there. The folder of a search contains:

    settings.json      the requested settings          trials.json     the trials and their losses
    trial-001/ ...     the runs                        confirmation/   the comparison of the best trial, with new seeds
"""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tercet.checkpoint.metrics import read_metrics
from tercet.checkpoint.run_record import METRICS, read_record
from tercet.config import UserError
from tercet.messages import print_note
from tercet.storage import read_sealed_json, write_sealed_json
from tercet.training.recipe.recipe import Recipe, load_recipe
from tercet.training.sweep.grid import GridPoint
from tercet.training.sweep.halving import advance_best, planned_steps, rung_shares, rung_step, rung_trials
from tercet.training.sweep.plan_search import Search
from tercet.training.sweep.proposals import propose
from tercet.training.sweep.space import Coordinates
from tercet.training.sweep.sweep import SweepRun, check_sweep, train_variant

TRIALS = "trials.json"
RESERVE = 0.1  # of the hours, for differences in speed and for scoring


@dataclass(kw_only=True)
class Trial:
    """A trial of a search.

    Attributes:
        number: Number of the trial, from 1.
        coordinates: Point of the search space.
        steps: Steps of the rungs that the trial reached.
        losses: Lowest validation loss up to each of these rungs.
        failure: Reason for which the trial ended, such as a loss that is not finite; None if it did not fail.
        seconds: Seconds of the training to the first rung.
    """

    number: int
    coordinates: Coordinates
    steps: list[int] = field(default_factory=list[int])
    losses: list[float] = field(default_factory=list[float])
    failure: str | None = None
    seconds: float = 0.0


@dataclass
class TrialRuns:
    """The trials of a search and their runs, of which those of an interrupted search are continued.

    Args:
        search: Planned search.
        arithmetic: `precision` and `matmul` of runs whose precision is `auto`.
        quiet: If True, report nothing on stderr.

    Attributes:
        trials: Trials so far, in order.
        shares: Lengths of the rungs, as shares of a run.
        complete: If True, no further trials are proposed.
    """

    search: Search
    arithmetic: dict[str, Any]
    quiet: bool = False
    trials: list[Trial] = field(default_factory=list[Trial])
    complete: bool = False
    _spent: float = 0.0  # seconds of earlier processes

    def __post_init__(self) -> None:
        self._started = time.perf_counter()
        path = self.search.out / TRIALS
        if path.exists():
            plain = read_sealed_json(path)
            try:
                self.trials = [_parse_trial(trial) for trial in plain["trials"]]
                self.complete, self._spent = plain["complete"], plain["seconds"]
            except (TypeError, KeyError):
                raise UserError(f"{path} was written by another version of Tercet; pass another --out") from None
        base = load_recipe(self.search.recipe, self.search.space.fixed_changes)
        self.steps = _length(base, self.folder(0), quiet=self.quiet)
        self.shares = rung_shares(self.steps, base.training.validate_every)

    @property
    def seconds(self) -> float:
        """Seconds that the search has taken, in all its processes."""
        return self._spent + time.perf_counter() - self._started

    def run(self) -> Trial:
        """Propose and train the trials, continue the best of them, and return the best of the last rung.

        Raises:
            UserError: If a run cannot be resumed, the hours are too few, or all trials failed.
            Interrupted: If a signal stopped training, after the run was saved.
        """
        self._note(self._describe())
        for trial in self.trials:  # the last one may have been interrupted
            self._advance(trial, 0)
        while not self.complete and (trial := self._propose()) is not None:
            self.trials.append(trial)
            self._save()
            self._advance(trial, 0)
        self.complete = True
        self._save()
        losses = {trial.number: trial.losses[0] for trial in self.trials if trial.losses}
        for rung in range(1, len(self.shares)):
            losses = advance_best(losses, lambda number, rung=rung: self._advance(self.trials[number - 1], rung))
        if not losses:
            reason = self.trials[-1].failure if self.trials else ""
            raise UserError(
                f"no trial reached the last step ({reason}); narrow the ranges, such as that of the learning rate"
            )
        return self.trials[min(losses, key=lambda number: (losses[number], number)) - 1]

    def point(self, trial: Trial) -> GridPoint:
        """Return the settings of a trial."""
        return self.search.space.point(trial.coordinates)

    def folder(self, number: int) -> Path:
        """Return the run folder of a trial."""
        return self.search.out / f"trial-{number:03d}"

    @property
    def rungs(self) -> tuple[int, ...]:
        """Steps of the rungs of a run of the recipe."""
        return tuple(round(share * self.steps) for share in self.shares)

    def _describe(self) -> str:
        seeds = len(self.search.seeds)
        confirmation = f"then 2 x {seeds} runs with new seeds"
        if len(self.rungs) == 1:
            reason = "no trial stops early, because there is no earlier validation: lower training.validate_every"
            return f"all trials to step {self.steps:,} ({reason}), {confirmation}"
        if self.search.trials is None:
            steps = ", ".join(f"{step:,}" for step in self.rungs)
            return f"trials to step {steps} (the best third of each continues), {confirmation}"
        counts = rung_trials(self.search.trials, len(self.rungs))
        reached = (f"{count} to step {step:,}" for count, step in zip(counts, self.rungs, strict=True))
        return f"trials: {', '.join(reached)}; {confirmation}"

    def _propose(self) -> Trial | None:
        """Return the next trial; None if there are enough."""
        search, number = self.search, len(self.trials) + 1
        if (search.trials is not None and number > search.trials) or not self._has_time(number):
            return None
        results = [(trial.coordinates, trial.losses[0] if trial.losses else None) for trial in self.trials]
        coordinates = propose(search.space, results, sampler=search.sampler, seed=search.seed)
        return None if coordinates is None else Trial(number=number, coordinates=coordinates)

    def _has_time(self, trials: int) -> bool:
        """Return whether the hours suffice for a number of trials, the rungs after the first, and the confirmation."""
        if self.search.hours is None or not self.trials:
            return True
        measured = [trial for trial in self.trials if trial.losses]
        # The first trial also reads the data.
        step_seconds = max((trial.seconds / trial.steps[0] for trial in measured[1:] or measured), default=0.0)
        confirmation = 2 * len(self.search.seeds) * self.steps
        steps = planned_steps(trials, self.rungs) - len(self.trials) * self.rungs[0] + confirmation
        if self.seconds + steps * step_seconds <= (1 - RESERVE) * 3600 * self.search.hours:
            return True
        if len(self.trials) == 1:
            raise UserError(
                f"--hours {self.search.hours:g}: two trials and the confirmation would take about "
                f"{(self.seconds + steps * step_seconds) / (1 - RESERVE) / 3600:.2g} hours; pass more hours, fewer "
                "--seeds or fewer training.max_steps"
            )
        return False

    def _advance(self, trial: Trial, rung: int) -> float | None:
        """Train a trial to a rung, unless it was trained before, and return its loss; None if it failed.

        Args:
            trial: Trial, which has reached the rung before.
            rung: Number of the rung, from 0.
        """
        if len(trial.losses) > rung:
            return trial.losses[rung]
        if trial.failure is not None:
            return None
        started = time.perf_counter()
        try:
            run = self._run(trial)
        except UserError as error:  # values that do not fit together
            trial.failure = str(error)
            self._note(f"trial {trial.number}: {self.point(trial).label}: {error}")
        else:
            self._train(trial, run, rung)
        if rung == 0:
            trial.seconds = time.perf_counter() - started
        self._save()
        return None if trial.failure is not None else trial.losses[rung]

    def _run(self, trial: Trial) -> SweepRun:
        """Return the run of a trial, whose settings are checked before it starts.

        Raises:
            UserError: If the settings do not fit together.
        """
        point, folder = self.point(trial), self.folder(trial.number)
        recipe = load_recipe(self.search.recipe, point.changes)
        run = SweepRun(
            variant=point.label, folder=folder, settings=point.settings, recipe=recipe, seed=self.search.seed
        )
        if not folder.exists():
            check_sweep(replace(self.search.corners, runs=(run,), notes=()), quiet=self.quiet)
        return run

    def _train(self, trial: Trial, run: SweepRun, rung: int) -> None:
        from tercet.training.loop.out_of_memory import OutOfMemory

        recipe = run.recipe
        assert recipe is not None
        steps = _length(recipe, run.folder, quiet=self.quiet)
        step = rung_step(self.shares[rung], steps, recipe.training.validate_every)
        heading = f"trial {trial.number}, to step {step:,} of {steps:,}: {run.variant}"
        pause_at = None if step == steps else step
        try:
            error = train_variant(run, heading, self.arithmetic, quiet=self.quiet, pause_at=pause_at)
        except OutOfMemory as out_of_memory:
            error = out_of_memory
        loss = None if error is not None else _lowest_loss(run.folder, step)
        if loss is None:
            trial.failure = str(error or "the validation loss is not finite")
            return
        trial.steps.append(step)
        trial.losses.append(loss)
        self._note(f"trial {trial.number}: validation loss {loss:.4f} at step {step:,}")

    def _note(self, text: str) -> None:
        if not self.quiet:
            print_note(text)

    def _save(self) -> None:
        trials = [asdict(trial) for trial in self.trials]
        plain = {"complete": self.complete, "seconds": self.seconds, "trials": trials}
        write_sealed_json(self.search.out / TRIALS, plain)


def _parse_trial(plain: dict[str, Any]) -> Trial:
    """Return a trial from JSON. Raises TypeError if it is not valid."""
    trial = Trial(**plain)
    trial.coordinates = tuple(trial.coordinates)
    return trial


def _length(recipe: Recipe, folder: Path, *, quiet: bool) -> int:
    """Return the length of a run in steps; a length in epochs depends on the data."""
    if recipe.training.max_steps is not None:
        return recipe.training.max_steps
    if (record := read_record(folder)) is not None:
        return record.total_steps
    from tercet.checkpoint import load_model
    from tercet.training.tasks.open_task import task_of

    pretrained = None if recipe.pretrained is None else load_model(recipe.pretrained)
    return task_of(recipe, pretrained=pretrained, progress=not quiet).plan.steps


def _lowest_loss(folder: Path, step: int) -> float | None:
    """Return the lowest validation loss of a run up to a step; None if none is finite.

    Raises:
        UserError: If the run has no validation.
    """
    losses: Sequence[tuple[int, float]] = read_metrics(folder / METRICS)["val/loss"]
    if not losses:
        raise UserError(f"{folder} has no validation loss, by which trials are compared; set data.validation")
    return min((loss for at, loss in losses if at <= step and math.isfinite(loss)), default=None)
