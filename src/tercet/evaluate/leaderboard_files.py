"""Export of a leaderboard as JSON and CSV."""

import csv
import io
from typing import Any

from tercet.evaluate.leaderboard import Leaderboard, LeaderboardRow, RunResult
from tercet.evaluate.score_summary import finite
from tercet.evaluate.spreads import FoldSpread, SeedSpread


def leaderboard_csv(board: Leaderboard) -> str:
    """Return a CSV with one line per variant, with mean, minimum and maximum over seeds of each score and cost.

    After cross-validation, the column `runs` replaces `seeds`, and each score also has its standard deviation over
    folds and the interval of its mean.
    """
    names = board.measures
    keys = list(dict.fromkeys(key for row in board.rows for key in row.settings))
    spreads = [*names, "seconds", "tokens_per_second"]
    numbers = [f"{name}{end}" for name in spreads for end in ("", "_min", "_max")]
    fold_ends = () if board.folds is None else ("_std", "_interval_low", "_interval_high")
    numbers += [f"{name}{end}" for name in names for end in fold_ends]
    runs = "seeds" if board.folds is None else "runs"
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["name", *keys, "kind", "rank", runs, "diverged", "parameters", *numbers])
    for row in board.rows:
        cells = [cell for name in spreads for cell in _three(_spread(row, name))]
        cells += [cell for name in names if fold_ends for cell in _fold_cells(row.scores.get(name))]
        facts = [row.kind or "", row.rank or "", len(row.runs), row.diverged, row.parameters or ""]
        writer.writerow([row.name, *(row.settings.get(key, "") for key in keys), *facts, *cells])
    return file.getvalue()


def _spread(row: LeaderboardRow, name: str) -> SeedSpread | None:
    costs = {"seconds": row.seconds, "tokens_per_second": row.tokens_per_second}
    return costs[name] if name in costs else row.scores.get(name)


def _three(spread: SeedSpread | None) -> list[float | str]:
    return ["", "", ""] if spread is None else [spread.mean, spread.low, spread.high]


def _fold_cells(spread: SeedSpread | None) -> list[float | str]:
    if not isinstance(spread, FoldSpread) or spread.interval is None:
        return ["", "", ""]
    return [spread.std, *spread.interval]


def leaderboard_dict(board: Leaderboard) -> dict[str, Any]:
    """Return the leaderboard as a dictionary for JSON; scores that are NaN or infinite become None."""
    return {
        "ranked_by": dict(board.ranked_by),
        "rows": [
            {
                "name": row.name,
                "settings": row.settings,
                "kind": row.kind,
                "rank": row.rank,
                "best": row.best,
                "diverged": row.diverged,
                "parameters": row.parameters,
                **{name: _spread_dict(spread) for name, spread in row.scores.items()},
                "seconds": _spread_dict(row.seconds),
                "tokens_per_second": _spread_dict(row.tokens_per_second),
                "runs": [_run_dict(run) for run in row.runs],
            }
            for row in board.rows
        ],
        "notes": list(board.notes),
        **({} if board.folds is None else {"folds": board.folds, "differences": _difference_dicts(board)}),
    }


def _difference_dicts(board: Leaderboard) -> dict[str, dict[str, Any]]:
    return {name: difference.to_dict() for name, difference in board.differences.items()}


def _spread_dict(spread: SeedSpread | None) -> dict[str, Any] | None:
    if spread is None:
        return None
    limits = {"mean": finite(spread.mean), "min": finite(spread.low), "max": finite(spread.high)}
    if not isinstance(spread, FoldSpread):
        return limits
    pooled = {} if spread.pooled is None else {"pooled": finite(spread.pooled)}
    return {**limits, "std": finite(spread.std), "interval": spread.interval and list(spread.interval), **pooled}


def _run_dict(run: RunResult) -> dict[str, Any]:
    scores = {} if run.scores is None else {name: finite(value) for name, value in run.scores.scores.items()}
    return {
        "folder": run.folder,
        "seed": run.seed,
        **({} if run.fold is None else {"fold": run.fold}),
        "diverged": run.scores is None,
        **scores,
        "seconds": run.seconds,
        "tokens_per_second": run.tokens_per_second,
        "steps": run.steps,
        "tokens": run.tokens,
        "precision": run.precision,
    }
