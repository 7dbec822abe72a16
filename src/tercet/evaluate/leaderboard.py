"""A table of several models, best first: one row per variant, with the mean and range over its seeds.

Rows are ranked among those of their kind of model, by the first of its `RANKING_MEASURES` that is comparable for all of
them. If there is none, they are not ranked, and a note contains the reason. The range is from the smallest to the
largest value. After cross-validation, scores are comparable if they are within each fold, and the table shows the
interval of the mean instead of the range.
"""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from tercet.evaluate.bootstrap import Difference
from tercet.evaluate.fold_tables import difference_tables, fold_notes, fold_table
from tercet.evaluate.measures import MEASURES, RANKING_MEASURES
from tercet.evaluate.pooled import Predictions, pool_scores
from tercet.evaluate.scores import MAX_UNKNOWN_SHARE, describe_unknown
from tercet.evaluate.spreads import FoldSpread, SeedSpread, fold_difference
from tercet.evaluate.tasks.evaluation import HeldOutScores, Kind
from tercet.notebook import Summary, Table, View

BEST = "*"
MANY_COLUMNS = 3  # number of score columns above which headings are broken into lines
RANGE, INTERVAL, COSTS = "over seeds", "95 % interval", ("parameters", "seconds", "tokens/s")  # headings


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one training run of a variant.

    Attributes:
        name: Name of the variant; runs with the same name are its seeds and folds.
        settings: Settings that differ between variants, and their values.
        seed: Seed; None for an existing run.
        fold: Number of the fold of cross-validation that is the held-out data, from 1; None without folds.
        folder: Run folder.
        scores: Held-out scores; None if the training diverged.
        seconds: Training time in seconds of all sessions, including validation. This and the following are None if they
            were not recorded.
        tokens_per_second: Median training throughput.
        steps: Number of training steps.
        tokens: Number of training tokens, including repetitions.
        precision: Precision of the training: "fp32", "bf16" or "fp16".
    """

    name: str
    settings: dict[str, str] = field(default_factory=dict[str, str])
    seed: int | None = None
    fold: int | None = None
    folder: str = ""
    scores: HeldOutScores | None
    seconds: float | None = None
    tokens_per_second: float | None = None
    steps: int | None = None
    tokens: int | None = None
    precision: str | None = None

    @property
    def division(self) -> tuple[int | None, int] | None:
        """Key of the division into training and held-out data: a fold, and the seed that drew the folds."""
        return None if self.fold is None else (self.seed, self.fold)


@dataclass(frozen=True, kw_only=True, repr=False)
class LeaderboardRow(Summary):
    """One variant.

    Attributes:
        kind: Kind of model; None if all seeds diverged.
        rank: Rank from 1 within its kind; None if its kind is not ranked or has only one row, a seed diverged, or the
            score is NaN.
        scores, seconds, tokens_per_second: Values over the seeds that did not diverge. With folds, the scores are
            `FoldSpread`, with standard deviation and interval.
        parameters: Number of parameters; None if all seeds diverged.
        diverged: Number of diverged seeds.
    """

    name: str
    kind: Kind | None
    settings: dict[str, str]
    rank: int | None
    scores: dict[str, SeedSpread]
    parameters: int | None
    seconds: SeedSpread | None
    tokens_per_second: SeedSpread | None
    diverged: int
    runs: tuple[RunResult, ...]

    @property
    def best(self) -> bool:
        return self.rank == 1


@dataclass(frozen=True, kw_only=True, repr=False)
class Leaderboard(Summary):
    """A ranked table of models.

    Attributes:
        rows: Rows, best first within each kind, or in the given order if the kind is not ranked.
        ranked_by: Ranking measure of each kind, or None.
        notes: Remarks on the reliability of the ranking.
        folds: Number of folds of cross-validation; None without folds.
        differences: With folds, the difference of each row to the best row of its kind in the measure that ranks it,
            by the name of the row.
    """

    rows: tuple[LeaderboardRow, ...]
    ranked_by: dict[Kind, str | None]
    notes: tuple[str, ...]
    folds: int | None = None
    differences: dict[str, Difference] = field(default_factory=dict[str, Difference])

    def __repr__(self) -> str:
        best = next((f", the best is {row.name}" for row in self.rows if row.best), "")
        return f"Leaderboard({len(self.rows)} variants{best})"

    @property
    def measures(self) -> list[str]:
        """The measures of all rows, in the order of `MEASURES`."""
        return [name for name in MEASURES if any(name in row.scores for row in self.rows)]

    def view(self) -> View:
        """Return the table with one row per variant and a star at the best of each kind, then the notes.

        After cross-validation, the scores of each fold and the differences to the best variant follow the table.
        """
        columns = self._score_columns()
        space = "\n" if len(self.measures) > MANY_COLUMNS else " "  # narrow columns if there are many
        spread = RANGE if self.folds is None else INTERVAL
        headings = [MEASURES[name].heading.replace(" ", space) if name else spread for name in columns]
        header = ("", "", *headings, *COSTS)
        table = Table(
            header=header,
            rows=[self._cells(row, columns) for row in self.rows],
            left=(0, 1),
            bold=[
                (number, column) for number, row in enumerate(self.rows) if row.best for column in range(len(header))
            ],
            folded={1: 16},
            unbroken=[number for number, name in enumerate(header) if name in (RANGE, INTERVAL, *COSTS)],
        )
        best = [f"{BEST} the best"] if any(row.best for row in self.rows) else []
        return View((table, "", *best, *self._fold_tables(), *self.notes))

    def _fold_tables(self) -> list[Table | str]:
        """Return the scores of each fold of each row, and the differences to the best row of each kind."""
        if self.folds is None:
            return []
        parts = list[Table | str]()
        for row in self.rows:
            runs = [(run.seed, run.fold, None if run.scores is None else run.scores.scores) for run in row.runs]
            parts += [fold_table(row.name, row.scores, runs), ""]
        for kind, measure in self.ranked_by.items():
            rows = [row for row in self.rows if row.kind == kind]
            best = next((row.name for row in rows if row.best), "")
            differences = {row.name: self.differences[row.name] for row in rows if row.name in self.differences}
            parts += difference_tables(best, measure or "", differences)
        return parts

    def _score_columns(self) -> list[str]:
        """Return the measures, with "" for the column of the range over seeds, if a variant has several.

        The range, or the interval with folds, is that of the measure that ranks the row's kind. It follows this
        measure, or is the last column if there are several ranking measures.
        """
        columns = self.measures
        ranked = list(dict.fromkeys(measure for measure in self.ranked_by.values() if measure))
        if ranked and any(len(row.runs) > 1 for row in self.rows):
            last = ranked[0] if len(ranked) == 1 else columns[-1]
            columns.insert(columns.index(last) + 1, "")
        return columns

    def _cells(self, row: LeaderboardRow, columns: Sequence[str]) -> list[str]:
        ranking = (row.kind and self.ranked_by.get(row.kind)) or ""
        cells = [BEST if row.best else "", row.name]
        for name in columns:
            spread = row.scores.get(name or ranking)
            if not name and isinstance(spread, FoldSpread):
                cells.append(MEASURES[ranking].write_interval(spread.interval))
            elif not name:
                several = len(row.runs) - row.diverged > 1
                cells.append("" if spread is None or not several else MEASURES[ranking].write_range(spread))
            elif row.diverged and name == ranking:
                cells.append("diverged")
            else:
                cells.append("" if spread is None else MEASURES[name].write(spread.mean))
        cells.append(f"{row.parameters:,}" if row.parameters else "")
        cells.append(f"{row.seconds.mean:,.1f}" if row.seconds else "")
        cells.append(f"{row.tokens_per_second.mean:,.0f}" if row.tokens_per_second else "")
        return cells


def leaderboard(results: Sequence[RunResult], *, folds: int | None = None) -> Leaderboard:
    """Return the leaderboard of training runs; runs with equal names are the seeds and folds of one variant.

    Args:
        results: Results, all with a fold or all without one.
        folds: Number of folds of cross-validation; None without folds.
    """
    by_name: dict[str, list[RunResult]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    kinds: list[Kind] = list(dict.fromkeys(run.scores.kind for run in results if run.scores))
    notes, ranked_by, rows = list[str](), dict[Kind, str | None](), list[LeaderboardRow]()
    differences = dict[str, Difference]()
    for kind in kinds:
        measure, why = _comparable_measure(kind, results)
        ranked_by[kind] = measure
        notes += why
        variants = [runs for runs in by_name.values() if _kind(runs) == kind]
        ordered = _rank([_row(runs, kind, folds) for runs in variants], measure)
        if folds is None:
            notes += _overlaps(ordered, measure)
        else:
            differences |= _fold_differences(ordered, measure, folds)
        rows += ordered
    rows += [_row(runs, None, folds) for runs in by_name.values() if _kind(runs) is None]
    notes += _notes(results, rows, kinds)
    notes += _spread_notes(rows, kinds) if folds is None else _fold_notes(rows, folds)
    return Leaderboard(rows=tuple(rows), ranked_by=ranked_by, notes=tuple(notes), folds=folds, differences=differences)


def _kind(runs: Sequence[RunResult]) -> Kind | None:
    return next((run.scores.kind for run in runs if run.scores), None)


def _comparable_measure(kind: Kind, results: Iterable[RunResult]) -> tuple[str | None, list[str]]:
    """Return the ranking measure of a kind that is comparable within each fold, or None, and notes on the choice."""
    divisions: dict[object, list[HeldOutScores]] = {}
    for run in results:
        if run.scores and run.scores.kind == kind:
            divisions.setdefault(run.division, []).append(run.scores)
    choices = [_ranking_measure(kind, scores) for scores in divisions.values()]
    return min(choices, key=lambda choice: (choice[0] is not None, choice[0] == RANKING_MEASURES[kind][0]))


def _ranking_measure(kind: Kind, scores: Sequence[HeldOutScores]) -> tuple[str | None, list[str]]:
    """Return the ranking measure of a kind, or None, and notes on the choice."""
    same_cut, across_tokenizers = RANKING_MEASURES[kind]
    heading = MEASURES[same_cut].heading
    unknown = max(result.unknown_share for result in scores)
    if unknown > MAX_UNKNOWN_SHARE and len({result.tokenizer for result in scores}) > 1:
        return None, [f"{kind}s not ranked: they have different tokenizers, and {describe_unknown(unknown)}"]
    if len({result.text for result in scores}) > 1:
        return None, [f"{kind}s not ranked: their validation data differs"]
    one_cut = same_cut == across_tokenizers or len({(result.tokenizer, result.tokens) for result in scores}) == 1
    if one_cut and all(same_cut in result.scores for result in scores):
        return same_cut, []
    if kind == "masked language model" and len({result.tokenizer for result in scores}) == 1:
        return same_cut, ["the contexts and therefore the masked tokens differ: small differences are not significant"]
    if across_tokenizers is None:
        words = f"{kind}s not ranked: {heading} is not comparable between tokenizers"
        return None, [words]
    words = f"the {kind}s predict different tokens, for which {heading} is not comparable"
    return across_tokenizers, [f"{words}: ranked by {MEASURES[across_tokenizers].heading}"]


def _row(runs: Sequence[RunResult], kind: Kind | None, folds: int | None) -> LeaderboardRow:
    scores = [run.scores for run in runs if run.scores]
    names = [name for name in MEASURES if scores and all(name in result.scores for result in scores)]
    values = {name: [result.scores[name] for result in scores] for name in names}
    pooled = {} if folds is None else _pool(runs, folds)
    return LeaderboardRow(
        name=runs[0].name,
        kind=kind,
        settings=runs[0].settings,
        rank=None,
        scores={
            name: SeedSpread.of(values[name])
            if folds is None
            else FoldSpread.of_folds(values[name], folds, pooled=pooled.get(name))
            for name in names
        },
        parameters=scores[0].parameters if scores else None,
        seconds=_spread([run.seconds for run in runs if run.scores]),
        tokens_per_second=_spread([run.tokens_per_second for run in runs if run.scores]),
        diverged=sum(run.scores is None for run in runs),
        runs=tuple(runs),
    )


def _pool(runs: Sequence[RunResult], folds: int) -> dict[str, float]:
    """Return the mean over seeds of the scores of the predictions of all folds; empty if a fold has no predictions."""
    divisions: dict[int | None, list[Predictions | None]] = {}
    for run in runs:
        divisions.setdefault(run.seed, []).append(run.scores and run.scores.predictions)
    scores = [pool_scores(parts) if len(parts) == folds else {} for parts in divisions.values()]
    return {name: statistics.fmean(part[name] for part in scores) for name in scores[0] if all(scores)}


def _spread(values: Sequence[float | None]) -> SeedSpread | None:
    measured = [value for value in values if value is not None]
    return SeedSpread.of(measured) if measured and len(measured) == len(values) else None


def _rank(rows: Sequence[LeaderboardRow], measure: str | None) -> list[LeaderboardRow]:
    if measure is None or len(rows) < 2:
        return list(rows)
    sign = -1 if MEASURES[measure].higher_is_better else 1

    def position(row: LeaderboardRow) -> tuple[bool, float]:
        mean = row.scores[measure].mean
        return row.diverged > 0 or math.isnan(mean), sign * mean

    ordered = sorted(rows, key=position)
    return [
        row if position(row)[0] else replace(row, rank=1 + sum(position(other) < position(row) for other in ordered))
        for row in ordered
    ]


def _fold_differences(rows: Sequence[LeaderboardRow], measure: str | None, folds: int) -> dict[str, Difference]:
    """Return the difference of each ranked row to the best one, by name, paired by fold."""
    best = next((row for row in rows if row.best), None)
    if best is None or measure is None:
        return {}
    ranked = [row for row in rows if row.rank and math.isfinite(row.scores[measure].mean)]
    values = {
        row.name: [run.scores.scores[measure] for run in sorted(row.runs, key=_division) if run.scores]
        for row in ranked
    }
    return {
        row.name: fold_difference(values[row.name], values[best.name], folds)
        for row in ranked
        if row is not best and math.isfinite(best.scores[measure].mean)
    }


def _division(run: RunResult) -> tuple[int, int]:
    return run.seed or 0, run.fold or 0


def _overlaps(rows: Sequence[LeaderboardRow], measure: str | None) -> list[str]:
    """Return a note if the range over seeds of the best variant overlaps with that of others."""
    if measure is None or not any(len(row.runs) > 1 for row in rows):
        return []
    best = next((row for row in rows if row.best), None)
    if best is None:
        return []
    top = best.scores[measure]
    near = [
        row.name
        for row in rows
        if row is not best and row.rank and row.scores[measure].low <= top.high and top.low <= row.scores[measure].high
    ]
    if not near:
        return []
    others = f"{', '.join(near[:3])}{f' and {len(near) - 3} more' if len(near) > 3 else ''}"
    return [f"the seeds of {best.name}, the best, and of {others} overlap: more seeds may change their order"]


def _notes(results: Sequence[RunResult], rows: Sequence[LeaderboardRow], kinds: Sequence[Kind]) -> list[str]:
    notes = list[str]()
    if {"language model", "masked language model"} <= set(kinds):
        notes.append(
            "bits per byte and pseudo-bits per byte are not comparable: only the former are a likelihood, since "
            "pseudo-bits predict each token from both sides"
        )
    elif len(kinds) > 1:
        notes.append(f"{' and '.join(f'{kind}s' for kind in kinds)} have different tasks and are ranked separately")
    for kind in kinds:
        trained_model = [tokens for row in rows if row.kind == kind if (tokens := _tokens(row))]
        if trained_model and max(trained_model) > 1.01 * min(trained_model):
            fewest, largest = (f"{round(tokens):,}" for tokens in (min(trained_model), max(trained_model)))
            notes.append(f"the {kind}s were trained on different numbers of tokens: from {fewest} to {largest}")
    for row in rows:
        if unknown := max((run.scores.unknown_share for run in row.runs if run.scores), default=0):
            notes.append(f"{row.name}: {describe_unknown(unknown)}")
    precisions = sorted({run.precision for run in results if run.precision})
    if len(precisions) > 1:
        notes.append(f"the models were trained in different precisions: {' and '.join(precisions)}")
    diverged_rows = [row for row in rows if row.diverged]
    for row in diverged_rows:
        notes.append(f"{row.name} is ranked last: {row.diverged} of {len(row.runs)} runs diverged")
    return notes


def _fold_notes(rows: Sequence[LeaderboardRow], folds: int) -> list[str]:
    spreads = [spread for row in rows for spread in row.scores.values() if isinstance(spread, FoldSpread)]
    repeats = len({run.seed for row in rows for run in row.runs})
    return fold_notes(folds, repeats=repeats, pooled=any(spread.pooled is not None for spread in spreads))


def _spread_notes(rows: Sequence[LeaderboardRow], kinds: Sequence[Kind]) -> list[str]:
    if all(len(row.runs) == 1 for row in rows):
        spread = "no variance estimate with one seed per variant; use --seeds 1,2,3"
    else:
        suffix = "" if len(kinds) < 2 else ", of the measure that ranks its kind"
        spread = f"values are means over seeds; 'over seeds' is the smallest to the largest value{suffix}"
    return [spread, "scores are those of each run's best model on its held-out data; seconds include validation"]


def _tokens(row: LeaderboardRow) -> float:
    """Return the mean number of training tokens per seed; 0 if it was not recorded."""
    counts = [run.tokens for run in row.runs if run.tokens and run.scores]
    return statistics.fmean(counts) if counts else 0.0
