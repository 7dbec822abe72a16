"""Scores of a leaderboard: their headings and formats, and the score that ranks each kind of model."""

from dataclasses import dataclass

from tercet.evaluate.bootstrap import Interval
from tercet.evaluate.spreads import SeedSpread
from tercet.evaluate.tasks.evaluation import Kind


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

    def write_interval(self, interval: Interval | None) -> str:
        return "" if interval is None else f"{self.write(interval[0])} to {self.write(interval[1])}"


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
