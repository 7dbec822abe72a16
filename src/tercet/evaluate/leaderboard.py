"""A table of several models, best first: one row per variant, with the mean and range over its seeds.

Rows are ranked among those of their kind of model, by the first of its `RANKING_MEASURES` that is comparable for all of
them. If there is none, they are not ranked, and a note contains the reason. The range is from the smallest to the
largest value.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tercet.evaluate.scores import MAX_UNKNOWN_SHARE, describe_unknown
from tercet.evaluate.tasks.evaluation import HeldOutScores, Kind
from tercet.notebook import Summary, Table, View

BEST = "*"
MANY_COLUMNS = 3  # number of score columns above which headings are broken into lines
RANGE, COSTS = "over seeds", ("parameters", "seconds", "tokens/s")  # headings


@dataclass(frozen=True, kw_only=True)
class SeedSpread:
    """Mean, minimum and maximum over seeds."""

    mean: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "SeedSpread":
        low, high = min(values), max(values)
        # The mean of equal numbers is exactly that number.
        return cls(mean=low if low == high else statistics.fmean(values), low=low, high=high)


@dataclass(frozen=True, kw_only=True)
class Measure:
    """Display of a score, and whether higher values are better."""

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
    "accuracy": Measure(heading="accuracy", percent=True, higher_is_better=True),
    "exact_match": Measure(heading="exact match", percent=True, higher_is_better=True),
    "f1": Measure(heading="F1", percent=True, higher_is_better=True),
    "micro_f1": Measure(heading="micro F1", percent=True, higher_is_better=True),
    "rmse": Measure(heading="RMSE"),
    "mae": Measure(heading="MAE"),
    "r2": Measure(heading="R²", higher_is_better=True),
    "pearson": Measure(heading="Pearson", higher_is_better=True),
    "spearman": Measure(heading="Spearman", higher_is_better=True),
    "ndcg_at_10": Measure(heading="nDCG@10", higher_is_better=True),
    "mrr": Measure(heading="MRR", higher_is_better=True),
    "recall_at_1": Measure(heading="recall@1", percent=True, higher_is_better=True),
    "recall_at_10": Measure(heading="recall@10", percent=True, higher_is_better=True),
}
# Ranking measures of each kind, for one text: for the same tokens, and for different tokens (None: not comparable).
RANKING_MEASURES: dict[Kind, tuple[str, str | None]] = {
    "language model": ("nats_per_token", "bits_per_byte"),
    "masked language model": ("nats_per_masked_token", None),
    "translator": ("nats_per_target_token", "bleu"),
    "classifier": ("nats_per_label", "accuracy"),
    "multi-label classifier": ("nats_per_label", "f1"),
    "regression": ("rmse", "rmse"),  # in the unit of the labels, for any tokenizer
    "chat model": ("nats_per_answer_token", None),
    "encoder of texts": ("ndcg_at_10", "ndcg_at_10"),
    "reranker": ("ndcg_at_10", "ndcg_at_10"),
}


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result of one training run of a variant.

    Attributes:
        name: Name of the variant; runs with the same name are its seeds.
        settings: Settings that differ between variants, and their values.
        seed: Seed; None for an existing run.
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
        kind: Kind of model; None if all seeds diverged.
        rank: Rank from 1 within its kind; None if its kind is not ranked or has only one row, a seed diverged, or the
            score is NaN.
        scores, seconds, tokens_per_second: Values over the seeds that did not diverge.
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
        """Return the table with one row per variant and a star at the best of each kind, then the notes."""
        columns = self._score_columns()
        space = "\n" if len(self.measures) > MANY_COLUMNS else " "  # narrow columns if there are many
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
        """Return the measures, with "" for the column of the range over seeds, if a variant has several.

        The range is that of the measure that ranks the row's kind. It follows this measure, or is the last column if
        there are several ranking measures.
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
    """Return the leaderboard of training runs; runs with equal names are the seeds of one variant."""
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
    if all(len(row.runs) == 1 for row in rows):
        notes.append("no variance estimate with one seed per variant; use --seeds 1,2,3")
    else:
        suffix = "" if len(kinds) < 2 else ", of the measure that ranks its kind"
        notes.append(f"values are means over seeds; 'over seeds' is the smallest to the largest value{suffix}")
    notes.append("scores are those of each run's best model on its held-out data; seconds include validation")
    return notes


def _tokens(row: LeaderboardRow) -> float:
    """Return the mean number of training tokens per seed; 0 if it was not recorded."""
    counts = [run.tokens for run in row.runs if run.tokens and run.scores]
    return statistics.fmean(counts) if counts else 0.0
