"""Several models in one table, the best first: a row a variant, the mean and the spread over its seeds.

A row is ranked among those of its kind, by the first measure that means the same for all of them; where there is none,
nothing is ranked, and a note says why. The spread is from the smallest to the largest.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tercet.evaluate.scores import MAX_UNKNOWN_SHARE, describe_unknown
from tercet.evaluate.tasks.evaluation import HeldOutScores, Kind
from tercet.notebook import Summary, Table, View

BEST = "*"
MANY_COLUMNS = 3  # columns of scores
RANGE, COSTS = "over seeds", ("parameters", "seconds", "tokens/s")  # headings


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """Over seeds: the mean, the smallest and the largest."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedSpread":
        low, high = min(values), max(values)
        # A mean of equal numbers is that number, to the last bit.
        return cls(mean=low if low == high else statistics.fmean(values), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Measure:
    heading: str
    digits: int = 4
    higher_is_better: bool = False
    percent: bool = False

    def write(self, value: float) -> str:
        return f"{value:.1%}" if self.percent else f"{value:,.{self.digits}f}"

    def write_range(self, spread: SeedSpread) -> str:
        return f"{self.write(spread.low)} .. {self.write(spread.high)}"


MEASURES = {
    "nats_per_token": Measure(heading="nats per token"),
    "bits_per_byte": Measure(heading="bits per byte"),
    "nats_per_masked_token": Measure(heading="nats per masked token"),
    "pseudo_bits_per_byte": Measure(heading="pseudo-bits per byte"),
    "nats_per_target_token": Measure(heading="nats per target token"),
    "nats_per_answer_token": Measure(heading="nats per answer token"),
    "nats_per_label": Measure(heading="nats per label"),
    "bleu": Measure(heading="BLEU", digits=2, higher_is_better=True),
    "chrf": Measure(heading="chrF", digits=2, higher_is_better=True),
    "accuracy": Measure(heading="right", percent=True, higher_is_better=True),
    "exact_match": Measure(heading="all right", percent=True, higher_is_better=True),
    "f1": Measure(heading="F1", percent=True, higher_is_better=True),
    "micro_f1": Measure(heading="micro F1", percent=True, higher_is_better=True),
    "rmse": Measure(heading="RMSE"),
    "mae": Measure(heading="MAE"),
    "r2": Measure(heading="R²", higher_is_better=True),
    "pearson": Measure(heading="Pearson", higher_is_better=True),
    "spearman": Measure(heading="Spearman", higher_is_better=True),
}
# By what a kind is ranked: on one text cut by one tokenizer, and on one text cut by several.
RANKING_MEASURES: dict[Kind, tuple[str, str | None]] = {
    "language model": ("nats_per_token", "bits_per_byte"),
    "masked language model": ("nats_per_masked_token", None),
    "translator": ("nats_per_target_token", "bleu"),
    "classifier": ("nats_per_label", "accuracy"),
    "multi-label classifier": ("nats_per_label", "f1"),
    "regression": ("rmse", "rmse"),  # in the labels' unit, whatever the tokenizer
    "chat model": ("nats_per_answer_token", None),
}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One training of a variant.

    Attributes:
        name: of the variant; runs of one name are its seeds.
        settings: what varies, and the variant's choice.
        seed: None where nobody chose one, as of a run that was there already.
        scores: None where the training diverged.
        seconds: of training, validation included, over all sessions; None where that was not noted, as are the others.
        tokens: read in training, repeats included.
    """

    name: str
    settings: dict[str, str] = field(default_factory=dict[str, str])
    seed: int | None = None
    folder: str = ""
    scores: HeldOutScores | None
    seconds: float | None = None
    tokens_per_second: float | None = None
    steps: int | None = None
    tokens: int | None = None
    precision: str | None = None


@dataclass(frozen=True, kw_only=True, repr=False)
class LeaderboardRow(Summary):
    """One variant.

    Attributes:
        rank: from 1 among its kind; None where nothing is ranked, or a seed diverged.
        scores, seconds, tokens_per_second: over the seeds that did not diverge.
        diverged: how many seeds did.
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
    """Attributes:
    rows: the best first in each kind; where nothing is ranked, in the order in which they were given.
    ranked_by: of each kind the measure, or None.
    notes: what a reader should know before trusting the order.
    """

    rows: tuple[LeaderboardRow, ...]
    ranked_by: dict[Kind, str | None]
    notes: tuple[str, ...]

    def __repr__(self) -> str:
        best = next((f", the best is {row.name}" for row in self.rows if row.best), "")
        return f"Leaderboard({len(self.rows)} variants{best})"

    @property
    def measures(self) -> list[str]:
        """The measures of all rows, in the order of `MEASURES`."""
        return [name for name in MEASURES if any(name in row.scores for row in self.rows)]

    def view(self) -> View:
        """Return one row per variant, the best of each kind with a star, then the notes."""
        columns = self._score_columns()
        space = "\n" if len(self.measures) > MANY_COLUMNS else " "  # many columns leave each as wide as its figures
        headings = [MEASURES[name].heading.replace(" ", space) if name else RANGE for name in columns]
        header = ("", "", *headings, *COSTS)
        table = Table(
            header=header,
            rows=[self._cells(row, columns) for row in self.rows],
            left=(0, 1),
            bold=[
                (number, column) for number, row in enumerate(self.rows) if row.best for column in range(len(header))
            ],
            folded={1: 16},
            unbroken=[number for number, name in enumerate(header) if name in (RANGE, *COSTS)],
        )
        best = [f"{BEST} the best"] if any(row.best for row in self.rows) else []
        return View((table, "", *best, *self.notes))

    def _score_columns(self) -> list[str]:
        """Return the measures, and "" for the range over seeds of the measure that ranks a row's kind.

        The range follows its measure; with several ranking measures, it is the last column.
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
            if not name:
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


def leaderboard(results: Sequence[RunResult]) -> Leaderboard:
    """The rows of these runs; those of one name are the seeds of one variant."""
    by_name: dict[str, list[RunResult]] = {}
    for result in results:
        by_name.setdefault(result.name, []).append(result)
    kinds: list[Kind] = list(dict.fromkeys(run.scores.kind for run in results if run.scores))
    notes, ranked_by, rows = list[str](), dict[Kind, str | None](), list[LeaderboardRow]()
    for kind in kinds:
        measure, why = _ranking_measure(kind, [run.scores for run in results if run.scores and run.scores.kind == kind])
        ranked_by[kind] = measure
        notes += why
        variants = [runs for runs in by_name.values() if _kind(runs) == kind]
        ordered = _rank([_row(runs, kind) for runs in variants], measure)
        notes += _overlaps(ordered, measure)
        rows += ordered
    rows += [_row(runs, None) for runs in by_name.values() if _kind(runs) is None]
    notes += _notes(results, rows, kinds)
    return Leaderboard(rows=tuple(rows), ranked_by=ranked_by, notes=tuple(notes))


def _kind(runs: Sequence[RunResult]) -> Kind | None:
    return next((run.scores.kind for run in runs if run.scores), None)


def _ranking_measure(kind: Kind, scores: Sequence[HeldOutScores]) -> tuple[str | None, list[str]]:
    """By what models of a kind are ranked, and what there is to say about it."""
    same_cut, across_tokenizers = RANKING_MEASURES[kind]
    heading = MEASURES[same_cut].heading
    unknown = max(result.unknown_share for result in scores)
    if unknown > MAX_UNKNOWN_SHARE and len({result.tokenizer for result in scores}) > 1:
        return None, [f"the {kind}s have different tokenizers, and {describe_unknown(unknown)}: none is ranked"]
    if len({result.text for result in scores}) > 1:
        return None, [f"the {kind}s were held out different validation data, so none is ranked above another"]
    one_cut = same_cut == across_tokenizers or len({(result.tokenizer, result.tokens) for result in scores}) == 1
    if one_cut and all(same_cut in result.scores for result in scores):
        return same_cut, []
    if kind == "masked language model" and len({result.tokenizer for result in scores}) == 1:
        return same_cut, ["the contexts differ, and with them which tokens are masked: small differences are chance"]
    if across_tokenizers is None:
        words = f"{heading} does not compare between tokenizers, so no {kind} is ranked above another"
        return None, [words]
    words = f"the {kind}s predict other tokens, between which {heading} does not compare"
    return across_tokenizers, [f"{words}: ranked by {MEASURES[across_tokenizers].heading}"]


def _row(runs: Sequence[RunResult], kind: Kind | None) -> LeaderboardRow:
    scores = [run.scores for run in runs if run.scores]
    names = [name for name in MEASURES if scores and all(name in result.scores for result in scores)]
    return LeaderboardRow(
        name=runs[0].name,
        kind=kind,
        settings=runs[0].settings,
        rank=None,
        scores={name: SeedSpread.of([result.scores[name] for result in scores]) for name in names},
        parameters=scores[0].parameters if scores else None,
        seconds=_spread([run.seconds for run in runs if run.scores]),
        tokens_per_second=_spread([run.tokens_per_second for run in runs if run.scores]),
        diverged=sum(run.scores is None for run in runs),
        runs=tuple(runs),
    )


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


def _overlaps(rows: Sequence[LeaderboardRow], measure: str | None) -> list[str]:
    """Whether the best one's seeds lie among others', so that more of them might tell otherwise."""
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
    return [f"the seeds of {best.name}, the best, and of {others} overlap: more seeds may order them otherwise"]


def _notes(results: Sequence[RunResult], rows: Sequence[LeaderboardRow], kinds: Sequence[Kind]) -> list[str]:
    notes = list[str]()
    if {"language model", "masked language model"} <= set(kinds):
        notes.append(
            "bits per byte are those of a text's likelihood; pseudo-bits are not, for each token is told by those on "
            "both sides of it: the two columns do not compare"
        )
    elif len(kinds) > 1:
        notes.append(f"{' and '.join(f'{kind}s' for kind in kinds)} are scored on different tasks: ranked apart")
    for kind in kinds:
        trained_model = [tokens for row in rows if row.kind == kind if (tokens := _tokens(row))]
        if trained_model and max(trained_model) > 1.01 * min(trained_model):
            fewest, largest = (f"{round(tokens):,}" for tokens in (min(trained_model), max(trained_model)))
            notes.append(f"the {kind}s did not train on equally many tokens: from {fewest} to {largest}")
    for row in rows:
        if unknown := max((run.scores.unknown_share for run in row.runs if run.scores), default=0):
            notes.append(f"{row.name}: {describe_unknown(unknown)}")
    precisions = sorted({run.precision for run in results if run.precision})
    if len(precisions) > 1:
        notes.append(f"they were not trained in one precision: {' and '.join(precisions)}")
    diverged_rows = [row for row in rows if row.diverged]
    for row in diverged_rows:
        notes.append(f"{row.name} diverged, {row.diverged} of {len(row.runs)}: it is ranked last")
    if all(len(row.runs) == 1 for row in rows):
        notes.append("one seed each, so no spread: how much is chance cannot be told (--seeds 1,2,3)")
    else:
        suffix = "" if len(kinds) < 2 else ", of the measure that ranks its kind"
        notes.append(f"means over seeds; over seeds: from the smallest to the largest{suffix}")
    notes.append("each run's best model, on all that its data held out; seconds are of training, with its validations")
    return notes


def _tokens(row: LeaderboardRow) -> float:
    """Of a seed, on average; 0 where they were not counted."""
    counts = [run.tokens for run in row.runs if run.tokens and run.scores]
    return statistics.fmean(counts) if counts else 0.0
