"""`compare`: train variants that are not trained yet, score all equally, and write a table and a plot.

It writes into the folder of the comparison:

comparison.json   the table with all metrics of all runs       comparison.csv   one line per variant
comparison.png    validation loss against steps and time       settings.json    the requested settings
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tercet.checkpoint.find_run import find_run_folder
from tercet.checkpoint.metrics import read_metrics, training_time
from tercet.checkpoint.run_record import METRICS, read_record
from tercet.config import Plain, UserError, merge, nest
from tercet.custom_code import allow_code as allow_packages
from tercet.evaluate.held_out import score_held_out
from tercet.evaluate.leaderboard import Leaderboard, LeaderboardRow, RunResult, leaderboard
from tercet.evaluate.leaderboard_files import leaderboard_csv, leaderboard_dict
from tercet.evaluate.tasks.evaluation import HeldOutScores
from tercet.notebook import Summary, View
from tercet.storage import write_atomically
from tercet.training.sweep.grid import VariedKey, check_seeds
from tercet.training.sweep.sweep import (
    Sweep,
    SweepRun,
    check_sweep,
    default_comparison_folder,
    plan_sweep,
    train_sweep,
)

if TYPE_CHECKING:
    import torch
    from matplotlib.figure import Figure

PICTURE = "comparison.png"


@dataclass(frozen=True, kw_only=True, repr=False)
class ComparedRuns(Summary):
    """The result of a comparison.

    Attributes:
        leaderboard: Rows of the table with one variant each, ranking metric and notes.
        folder: Folder of the comparison, with its runs, the table and the plot.
    """

    leaderboard: Leaderboard
    folder: Path

    def __repr__(self) -> str:
        return f"ComparedRuns({self.leaderboard!r} in {self.folder})"

    def view(self) -> View:
        """Return the table and the notes; print it with `rich.print`."""
        return self.leaderboard.view()

    @property
    def rows(self) -> tuple[LeaderboardRow, ...]:
        """Rows of the table with one variant each, best first."""
        return self.leaderboard.rows

    @property
    def notes(self) -> tuple[str, ...]:
        return self.leaderboard.notes

    def to_dict(self) -> dict[str, Any]:
        """Return the contents of `comparison.json`."""
        return {**leaderboard_dict(self.leaderboard), "picture": str(self.folder / PICTURE)}

    def plot(self) -> "Figure":
        """Plot validation loss against steps and time, one line per variant.

        Raises:
            NothingToDraw: If no run recorded a validation loss.
        """
        from tercet.plots.variants import VariantCurves, plot_variants

        curves = [
            VariantCurves(
                name=row.name,
                settings=row.settings,
                panel=_panel(row) or _panel(self.rows[0]),  # for a variant whose runs all diverged: that of the best
                runs=tuple(read_metrics(path) for run in row.runs if (path := _metrics(Path(run.folder))).exists()),
            )
            for row in self.rows
        ]
        repeated = "seed" if self.leaderboard.folds is None else "fold"
        return plot_variants(curves, title=self.folder.resolve().name, repeated=repeated)

    def save(self) -> None:
        """Write the table and the plot into the folder.

        Raises:
            UserError: If the folder cannot be created or written.
        """
        from tercet.plots import NothingToDraw, save

        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot create the folder {self.folder}: {error.strerror}; pass another --out") from None
        comparison = self.to_dict()
        try:
            save(self.plot(), self.folder / PICTURE)
        except NothingToDraw:  # models without metrics
            comparison["picture"] = None
        text = json.dumps(comparison, indent=2, ensure_ascii=False) + "\n"
        write_atomically(self.folder / "comparison.json", text.encode())
        write_atomically(self.folder / "comparison.csv", leaderboard_csv(self.leaderboard).encode())


def compare_runs(
    names: Sequence[str],
    *,
    varied_keys: Sequence[VariedKey] = (),
    seeds: Sequence[int] | None = None,
    folds: int | None = None,
    changes: Mapping[str, Any] | None = None,
    out: Path,
    device: "str | torch.device" = "cpu",
    quiet: bool = False,
) -> ComparedRuns:
    """Train and compare variants. The same call resumes an interrupted comparison.

    Args:
        names: Recipes, and folders of finished runs, which are not trained again.
        varied_keys: Keys of the recipes to vary, in all combinations of their values.
        seeds: Seeds with which each variant is trained; None for the seed of `changes` or else of the first recipe.
        folds: Number of folds of cross-validation, as in `compare`; None for the validation part of the recipes.
        changes: Changes to all recipes, as nested mappings.
        out: Folder of the comparison.
        device: PyTorch device on which all runs are scored.
        quiet: If True, do not show progress on stderr.

    Raises:
        UserError: If a recipe or setting is invalid. Everything is checked before training starts.
        Interrupted: If a signal stopped training, after the run was saved.
    """
    sweep = plan_sweep(names, varied_keys=varied_keys, seeds=seeds, folds=folds, changes=changes, out=out)
    return compare_sweep(sweep, device=device, quiet=quiet)


def compare_sweep(sweep: Sweep, *, device: "str | torch.device" = "cpu", quiet: bool = False) -> ComparedRuns:
    """Train and compare the runs of a planned sweep.

    The other arguments, the result and the errors are those of `compare_runs`.
    """
    check_sweep(sweep, quiet=quiet)
    trained_runs = list(train_sweep(sweep, quiet=quiet))
    scores = _score([run for run, error in trained_runs if error is None], device)
    results = [_result(run, scores.get(run.folder)) for run, _ in trained_runs]
    comparison = ComparedRuns(leaderboard=leaderboard(results, folds=sweep.folds), folder=sweep.out)
    comparison.save()
    return comparison


def _score(runs: Sequence[SweepRun], device: "str | torch.device") -> dict[Path, HeldOutScores]:
    """Return the scores of the runs by folder.

    The runs of each fold are scored together, because a fold is training data of the runs of other folds.
    """
    divisions: dict[object, list[Path]] = {}
    for run in runs:
        divisions.setdefault(None if run.fold is None else (run.seed, run.fold), []).append(run.folder)
    scores = dict[Path, HeldOutScores]()
    for folders in divisions.values():
        scores |= zip(folders, score_held_out(folders, device=device), strict=True)
    return scores


def compare(
    names: str | Path | Sequence[str | Path],
    *,
    vary: Mapping[str, Sequence[Any]] | None = None,
    seeds: int | Sequence[int] | None = None,
    folds: int | None = None,
    data: str | Path | None = None,
    changes: Mapping[str, Any] | None = None,
    out: str | Path | None = None,
    device: "str | torch.device" = "cpu",
    quiet: bool = False,
    allow_code: str | Iterable[str] = (),
) -> ComparedRuns:
    """Train variants on the same data with the same seeds, and compare them, as `tercet compare` does.

    With `folds`, each variant is cross-validated: it is trained once per fold, on all data except the fold, and scored
    on the fold. The folds are the same for all variants.

    Args:
        names: Packaged recipes, paths of YAML files, and folders of finished runs, which are not trained again.
        vary: Keys to vary, such as {"model.stack.placement": ["pre", "post"]}; all combinations are trained.
        seeds: List of seeds, or a number n for the seeds from 1 to n; None for the seed of `changes` or else of the
            first recipe.
        folds: Number of folds, at least 2; None for the validation part of the recipes. Each seed draws another
            division. Texts of a group (`data.group_field`) are in the same fold.
        data: File, folder or named dataset to use instead of the data of the recipes.
        changes: Changed keys of all recipes, such as {"training.max_steps": 500}.
        out: Folder of runs, table and plot; by default `compared/` and the names. Runs in it are resumed, or reused if
            they are finished.
        device: PyTorch device on which all runs are scored.
        quiet: If True, do not show progress on stderr.
        allow_code: Packages that this process may import for custom parts of recipes and runs, such as "my_package".

    Raises:
        UserError: If a recipe or setting is invalid. Everything is checked before training starts.
        Interrupted: If a signal stopped training, after the run was saved.
    """
    allow_packages(allow_code)
    name_list = [str(name) for name in ([names] if isinstance(names, str | Path) else names)]
    nested_changes: Plain = {} if data is None else nest("data.source", str(data))
    for path, value in (changes or {}).items():
        nested_changes = merge(nested_changes, nest(path, value))
    return compare_runs(
        name_list,
        varied_keys=[VariedKey.of(key, values) for key, values in (vary or {}).items()],
        seeds=None if seeds is None else check_seeds(seeds),
        folds=folds,
        changes=nested_changes,
        out=default_comparison_folder(name_list) if out is None else Path(out),
        device=device,
        quiet=quiet,
    )


def _result(run: SweepRun, scores: HeldOutScores | None) -> RunResult:
    metrics, record = _metrics(run.folder), read_record(find_run_folder(run.folder))
    time = training_time(read_metrics(metrics)) if metrics.exists() else None
    return RunResult(
        name=run.variant,
        settings=run.settings,
        seed=run.seed,
        fold=run.fold,
        folder=str(run.folder),
        scores=scores,
        seconds=time and time.seconds,
        tokens_per_second=time and time.tokens_per_second,
        steps=time and time.steps,
        tokens=time and time.tokens,
        precision=None if record is None else record.precision,
    )


def _metrics(folder: Path) -> Path:
    return find_run_folder(folder) / METRICS


def _panel(row: LeaderboardRow) -> str:
    """Return a key for the panel in which a row is plotted; empty if no run of the row was scored.

    Losses share a panel only if task, text and tokenizer are the same.
    """
    scores = next((run.scores for run in row.runs if run.scores), None)
    return "" if scores is None else f"{scores.kind}|{scores.text}|{scores.tokenizer}"
