"""Verdicts: models that are not better than a baseline that does not read the text, in one sentence with both scores.

A trained model should be better than token counts, a compressor, the most frequent label, the mean, copying, BM25, or
itself before fine-tuning. If it is not, its training or its data has a fault, which the scores alone do not show.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from tercet.evaluate.labels import LabelScores
from tercet.evaluate.masked import MaskedScores
from tercet.evaluate.multi_label import MultiLabelScores
from tercet.evaluate.regression import RegressionScores
from tercet.evaluate.retrieval import RetrievalScores
from tercet.evaluate.score_summary import finite
from tercet.evaluate.scores import LanguageScores
from tercet.evaluate.translation import TranslationScores

MORE_TRAINING = (
    "train longer, change training.optimizer.lr by a factor of 3, and look at the data with `tercet data look`"
)
LABELS_ADVICE = (
    "train longer, change training.optimizer.lr by a factor of 3, and check the labels with `tercet data look`"
)
SEARCH_ADVICE = "train on more pairs or with hard negatives, or search with BM25"
BEFORE_ADVICE = "reduce training.optimizer.lr, train an adapter, or use the model before fine-tuning"
COUNTS = {  # baselines of language models, the weakest first; xz is stronger than some useful small models
    "unigram": "counting tokens (unigram)",
    "gzip -9": "gzip -9",
    "bigram": "counting pairs of tokens (bigram)",
}


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A baseline that a model is not better than.

    Attributes:
        text: One sentence with both scores and what to try.
        measure: Name of the score.
        model: Score of the model; None if it is not finite.
        baseline: Score of the baseline; likewise.
        baseline_name: Name of the baseline.
    """

    text: str
    measure: str
    model: float | None
    baseline: float | None
    baseline_name: str

    def to_dict(self) -> dict[str, Any]:
        """Return the fields as a dictionary for JSON."""
        return asdict(self)


def judge(
    model: float,
    baseline: float,
    *,
    measure: str,
    name: str,
    advice: str,
    higher_is_better: bool = False,
    style: str = ".4f",
    strict: bool = False,
) -> list[Verdict]:
    """Return a verdict if the model is not better than the baseline, in a list of at most one.

    Args:
        model, baseline: Scores of both. A NaN of the model counts as worse.
        measure: Name of the score, with its unit.
        name: Name of the baseline, as in "worse than {name}".
        advice: What to try.
        higher_is_better: If True, higher scores are better.
        style: Format of the scores.
        strict: If True, an equal score is not a fault.
    """
    is_better = model > baseline if higher_is_better else model < baseline
    if is_better or (strict and model == baseline):
        return []
    relation = "no better" if model == baseline else "worse"
    text = f"the model is {relation} than {name}: {measure} {model:{style}} against {baseline:{style}}; {advice}"
    return [Verdict(text=text, measure=measure, model=finite(model), baseline=finite(baseline), baseline_name=name)]


def judge_language(scores: LanguageScores, baselines: Mapping[str, LanguageScores | float]) -> list[Verdict]:
    """Return the verdict on a language model: the weakest of `COUNTS` that is at least as good."""
    for key, name in COUNTS.items():
        match baselines.get(key):
            case LanguageScores(loss_nats_per_token=nats):
                verdict = judge(
                    scores.loss_nats_per_token, nats, measure="nats per token", name=name, advice=MORE_TRAINING
                )
            case float(bits):
                verdict = judge(scores.bits_per_byte, bits, measure="bits per byte", name=name, advice=MORE_TRAINING)
            case _:
                continue
        if verdict:
            return verdict
    return []


def judge_masked(scores: MaskedScores) -> list[Verdict]:
    """Return the verdict on a masked language model."""
    return judge(
        scores.masked_loss, scores.unigram_entropy, measure="nats per masked token", name=COUNTS["unigram"],
        advice=MORE_TRAINING,
    )  # fmt: skip


def judge_labels(scores: LabelScores | MultiLabelScores | RegressionScores) -> list[Verdict]:
    """Return the verdict on a classifier or a regression."""
    match scores:
        case LabelScores():
            return judge_accuracy(scores.accuracy, scores.majority)
        case MultiLabelScores():
            return judge(
                scores.micro_f1, scores.constant_micro_f1, measure="micro F1",
                name="always predicting the labels of most texts", advice=LABELS_ADVICE, higher_is_better=True,
                style=".1%",
            )  # fmt: skip
        case RegressionScores():
            return judge_rmse(scores.rmse, scores.constant_rmse)


def judge_accuracy(accuracy: float, majority: float) -> list[Verdict]:
    """Return the verdict on a classifier with one label per text or word, by the share of the most frequent label."""
    if majority == 1:  # nothing to distinguish
        return []
    return judge(
        accuracy, majority, measure="accuracy", name="always predicting the most frequent label",
        advice=LABELS_ADVICE, higher_is_better=True, style=".1%",
    )  # fmt: skip


def judge_rmse(rmse: float, constant: float) -> list[Verdict]:
    """Return the verdict on a regression, by the RMSE of the mean."""
    return judge(
        rmse, constant, measure="RMSE", name="always predicting the mean", advice=LABELS_ADVICE, style=".5g",
        strict=constant == 0,
    )  # fmt: skip


def judge_translation(scores: TranslationScores) -> list[Verdict]:
    """Return the verdict on a translator, if the sources are known. Right copies are no fault."""
    if scores.source_chrf is None or scores.chrf == scores.source_chrf == 100:
        return []
    return judge(
        scores.chrf, scores.source_chrf, measure="chrF", name="copying the sources", advice=MORE_TRAINING,
        higher_is_better=True, style=".2f",
    )  # fmt: skip


def judge_search(scores: RetrievalScores) -> list[Verdict]:
    """Return the verdict on text vectors or a reranker, if BM25 is better by more than chance."""
    if scores.bm25 is None or scores.difference_intervals is None or scores.difference_intervals["ndcg_at_10"][1] >= 0:
        return []
    return judge(
        scores.ndcg_at_10, scores.bm25["ndcg_at_10"], measure="nDCG@10", name="BM25", advice=SEARCH_ADVICE,
        higher_is_better=True, style=".3f",
    )  # fmt: skip


def judge_before(loss: float, before: float, *, unit: str) -> list[Verdict]:
    """Return the verdict on a fine-tuned model that predicts its held-out data no better than before.

    Args:
        loss, before: Loss after and before fine-tuning.
        unit: Unit of the losses.
    """
    return judge(loss, before, measure=unit, name="itself before fine-tuning", advice=BEFORE_ADVICE)
