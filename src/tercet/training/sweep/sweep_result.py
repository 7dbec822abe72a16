"""The result of a search of settings: its trials, the confirmation of the best, and a verdict in words."""

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tercet.config import Plain
from tercet.evaluate.bootstrap import difference_table
from tercet.evaluate.measures import MEASURES
from tercet.messages import counted
from tercet.notebook import Summary, Table, View
from tercet.settings_yaml import parse_value
from tercet.training.sweep.confirmation import Confirmation
from tercet.training.sweep.search import Trial

SHOWN = 10  # trials in the table
RESULT = "sweep.json"


@dataclass(frozen=True, kw_only=True, repr=False)
class SweepResult(Summary):
    """The result of a search of settings.

    Attributes:
        recipe: Name of the recipe.
        folder: Folder of the search.
        seed: Seed of the search.
        trials: All trials, in order.
        settings: Settings of each trial by short key, in the same order.
        best: The best trial.
        changes: Changes to the recipe in the best trial, as nested mappings.
        confirmation: The best trial compared with the recipe's own settings, with new seeds; None if it has these
            settings.
    """

    recipe: str
    folder: Path
    seed: int
    trials: tuple[Trial, ...]
    settings: tuple[dict[str, str], ...]
    best: Trial
    changes: Plain
    confirmation: Confirmation | None

    def __repr__(self) -> str:
        return f"SweepResult({len(self.trials)} trials in {self.folder}: {self.verdict})"

    @property
    def is_better(self) -> bool:
        """True if the best settings were better than the recipe's own in the confirmation."""
        return self.confirmation is not None and self.confirmation.is_better

    @property
    def verdict(self) -> str:
        """The outcome of the confirmation in one sentence."""
        number, trials = self.best.number, counted(len(self.trials), "trial", "trials")
        if self.confirmation is None:
            return f"Trial {number}, the best of {trials}, has the recipe's own settings."
        difference, seeds = self.confirmation.difference, counted(len(self.confirmation.seeds), "new seed", "new seeds")
        subject = f"trial {number}, the best of {trials},"
        if difference is None:
            return f"A run of the confirmation has no score, so it is not known whether {subject} is better."
        low, high = (f"{end:+.4f}" for end in difference.interval)
        heading = MEASURES[self.confirmation.measure].heading
        facts = f"{difference.difference:+.4f} {heading} on {seeds} (95 % interval {low} to {high}, p = "
        facts += f"{difference.p_value:.3f})"
        if self.confirmation.is_better:
            return f"Better: {subject} differs from the recipe's own settings by {facts}."
        if self.confirmation.is_worse:
            return f"Worse: {subject} differs from the recipe's own settings by {facts}."
        return f"No difference was shown between {subject} and the recipe's own settings: {facts}."

    @property
    def command(self) -> str:
        """The command that trains the best settings."""
        sets = [f"--set {shlex.quote(f'{key}={_as_yaml(value)}')}" for key, value in _leaves(self.changes)]
        return " ".join(["tercet train", shlex.quote(self.recipe), *sets])

    def view(self) -> View:
        """Return the table of the best trials, the confirmation and the verdict; print it with `rich.print`."""
        parts: list[Table | str] = [self._trial_table(), *self._trial_notes(), ""]
        if self.confirmation is not None:
            parts += [*self.confirmation.runs.view().parts, ""]
            if self.confirmation.difference is not None:
                measure, difference = self.confirmation.measure, self.confirmation.difference
                differences = {f"{measure}, validation": difference}
                if (sealed := self.confirmation.sealed) is not None:
                    differences[f"{sealed.measure}, sealed test part"] = sealed.difference
                parts += [difference_table(differences, other="recipe"), ""]
                parts += [] if sealed is None else [sealed.describe(), ""]
        return View((*parts, self.verdict))

    def _trial_table(self) -> Table:
        names = list(dict.fromkeys(key for settings in self.settings for key in settings))
        rows = [
            (
                str(trial.number),
                *(self.settings[trial.number - 1].get(name, "") for name in names),
                f"{trial.losses[-1]:.4f}" if trial.losses else "failed",
                f"{trial.steps[-1]:,}" if trial.steps else "",
            )
            for trial in self._ranked()[:SHOWN]
        ]
        return Table(header=("trial", *names, "validation loss", "steps"), rows=rows, left=())

    def _trial_notes(self) -> list[str]:
        notes = [
            f"Validation losses with seed {self.seed}, the lowest up to the last step of each trial; that of the best "
            f"of {counted(len(self.trials), 'trial', 'trials')} is too good, because it was selected."
        ]
        if len(self.trials) > SHOWN:
            notes.append(f"{len(self.trials) - SHOWN} more trials are in {self.folder / RESULT}.")
        return notes + [
            f"Trial {trial.number} failed: {trial.failure}" for trial in self.trials if trial.failure is not None
        ]

    def _ranked(self) -> list[Trial]:
        """Return the trials, best first: those that reached a later rung precede the others."""
        return sorted(self.trials, key=lambda trial: (-len(trial.losses), trial.losses[-1:], trial.number))

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of `sweep.json`."""
        confirmation = self.confirmation
        return {
            "recipe": self.recipe,
            "folder": str(self.folder),
            "seed": self.seed,
            "trials": [
                {
                    "number": trial.number,
                    "settings": settings,
                    "steps": list(trial.steps),
                    "losses": list(trial.losses),
                    "failure": trial.failure,
                }
                for trial, settings in zip(self.trials, self.settings, strict=True)
            ],
            "best": self.best.number,
            "confirmation": None if confirmation is None else _confirmation_dict(confirmation),
            "better": self.is_better,
            "verdict": self.verdict,
            "command": self.command,
        }


def _confirmation_dict(confirmation: Confirmation) -> dict[str, Any]:
    difference = confirmation.difference
    return {
        "seeds": list(confirmation.seeds),
        "measure": confirmation.measure,
        "difference": None if difference is None else difference.to_dict(),
        "sealed": None
        if confirmation.sealed is None
        else {**asdict(confirmation.sealed), "difference": confirmation.sealed.difference.to_dict()},
        "comparison": confirmation.runs.to_dict(),
    }


def _leaves(changes: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in changes.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def _as_yaml(value: Any) -> str:
    """Return a value as `--set` reads it."""
    if isinstance(value, str) and parse_value(value, name="value") == value:
        return value
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(r"^(-?\d+)e", r"\1.0e", text)  # YAML reads 1e-05 as text
