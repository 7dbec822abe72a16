"""A leaderboard for people, as JSON for programs, and as CSV for spreadsheets."""

import csv
import io
import math
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tercet.evaluate.leaderboard import MEASURES, Leaderboard, LeaderboardRow, RunResult, SeedSpread

BEST = "*"
MANY = 3  # columns of scores


def leaderboard_table(board: Leaderboard) -> Group:
    """A row a variant, the best of each kind with a star, and the notes below."""
    names = _measures(board)
    ranked = list(dict.fromkeys(measure for measure in board.ranked_by.values() if measure))
    several = ranked and any(len(row.runs) > 1 for row in board.rows)
    # The range stands beside what it is of; where kinds are ranked by different measures, once at the end.
    ranges_after = ranked[0] if len(ranked) == 1 else names[-1] if names else ""
    table = Table(box=None)
    table.add_column("")
    table.add_column("", overflow="fold", min_width=16)
    for name in names:
        heading = MEASURES[name].heading
        # Many columns leave each as wide as its figures.
        table.add_column(heading.replace(" ", "\n") if len(names) > MANY else heading, justify="right")
        if several and name == ranges_after:
            table.add_column("over seeds", justify="right", no_wrap=True)
    for heading in ("parameters", "seconds", "tokens/s"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in board.rows:
        measure = (row.kind and board.ranked_by.get(row.kind)) or ""
        cells = list[str]()
        for name in names:
            cells.append("diverged" if row.diverged and name == measure else _mean(name, row.scores.get(name)))
            if several and name == ranges_after:
                cells.append(_range(measure, row.scores.get(measure)) if len(row.runs) - row.diverged > 1 else "")
        costs = [f"{row.parameters:,}" if row.parameters else ""]
        costs += [f"{row.seconds.mean:,.1f}" if row.seconds else ""]
        costs += [f"{row.tokens_per_second.mean:,.0f}" if row.tokens_per_second else ""]
        table.add_row(BEST if row.best else "", Text(row.name), *cells, *costs, style="bold" if row.best else None)
    best = [f"{BEST} the best"] if any(row.best for row in board.rows) else []
    notes = [Text(note) for note in (*best, *board.notes)]
    return Group(table, Text(""), *notes)


def leaderboard_csv(board: Leaderboard) -> str:
    """A line a variant; of every score and cost the mean, the smallest and the largest."""
    names = _measures(board)
    keys = list(dict.fromkeys(key for row in board.rows for key in row.settings))
    spreads = [*names, "seconds", "tokens_per_second"]
    numbers = [f"{name}{end}" for name in spreads for end in ("", "_min", "_max")]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(["name", *keys, "kind", "rank", "seeds", "diverged", "parameters", *numbers])
    for row in board.rows:
        cells = [cell for name in spreads for cell in _three(_spread(row, name))]
        facts = [row.kind or "", row.rank or "", len(row.runs), row.diverged, row.parameters or ""]
        writer.writerow([row.name, *(row.settings.get(key, "") for key in keys), *facts, *cells])
    return file.getvalue()


def _measures(board: Leaderboard) -> list[str]:
    return [name for name in MEASURES if any(name in row.scores for row in board.rows)]


def _spread(row: LeaderboardRow, name: str) -> SeedSpread | None:
    costs = {"seconds": row.seconds, "tokens_per_second": row.tokens_per_second}
    return costs[name] if name in costs else row.scores.get(name)


def _three(spread: SeedSpread | None) -> list[float | str]:
    return ["", "", ""] if spread is None else [spread.mean, spread.low, spread.high]


def _mean(name: str, spread: SeedSpread | None) -> str:
    return "" if spread is None else MEASURES[name].write(spread.mean)


def _range(name: str, spread: SeedSpread | None) -> str:
    return "" if spread is None else f"{MEASURES[name].write(spread.low)} .. {MEASURES[name].write(spread.high)}"


def leaderboard_dict(board: Leaderboard) -> dict[str, Any]:
    """For JSON, which has no word for NaN and infinity: they become None."""
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
    }


def _spread_dict(spread: SeedSpread | None) -> dict[str, float | None] | None:
    if spread is None:
        return None
    return {"mean": _finite(spread.mean), "min": _finite(spread.low), "max": _finite(spread.high)}


def _run_dict(run: RunResult) -> dict[str, Any]:
    scores = {} if run.scores is None else {name: _finite(value) for name, value in run.scores.scores.items()}
    return {
        "folder": run.folder,
        "seed": run.seed,
        "diverged": run.scores is None,
        **scores,
        "seconds": run.seconds,
        "tokens_per_second": run.tokens_per_second,
        "steps": run.steps,
        "tokens": run.tokens,
        "precision": run.precision,
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
