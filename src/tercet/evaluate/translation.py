"""How near translations come to references: BLEU and chrF by sacrebleu, always with the signature that says which ones.

    BLEU  Papineni et al. 2002     chrF  Popović 2015     intervals  95 %, by resampling sentences, Koehn 2004

A score stands beside what was done to the text (`protocols`), how the translations were searched for, and a hash of the
references, so that two scores are set beside each other only where that says something (`comparison`).
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tercet.config import UserError
from tercet.evaluate.protocols import Protocol, bleu_tokenizer, looks_tokenized, prepare_texts, signature_suffix
from tercet.evaluate.score_summary import ScoreSummary
from tercet.notebook import Table, View

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

RESAMPLES = 1000
TOKENIZED_WARNING = (
    "the translations look tokenised (100 lines or more end with ' .'), which makes BLEU of detokenised text wrong; "
    "put their words together as people write them"
)


@dataclass(frozen=True, kw_only=True, repr=False)
class TranslationScores(ScoreSummary):
    """Attributes:
    bleu, chrf: of the whole set, 0 to 100.
    signature, chrf_signature: which BLEU and which chrF; scores with others do not compare.
    exact: the share of sentences that are the reference to the letter, outer white space aside, under the protocol.
    bleu_interval, chrf_interval: where 95 of 100 sets of such sentences would fall.
    nll_nats_per_token, perplexity: of the references' tokens as the model sees them, each sentence's end included and
        without smoothing; None where no model was asked.
    tokens: those tokens.
    references: sha256 of the reference text.
    search: how the translations were found.
    notes: what to know before believing the numbers.
    """

    bleu: float
    bleu_interval: tuple[float, float]
    signature: str
    chrf: float
    chrf_interval: tuple[float, float]
    chrf_signature: str
    exact: float
    sentences: int
    protocol: Protocol
    references: str
    nll_nats_per_token: float | None = None
    perplexity: float | None = None
    tokens: int | None = None
    search: str | None = None
    notes: tuple[str, ...] = ()

    def view(self) -> View:
        """Return each score with its interval, then the signatures."""
        protocol_note = "" if self.protocol == "detokenised" else f" ({self.protocol})"
        rows = [
            (name + protocol_note, f"{score:.2f}", f"{low:.2f} to {high:.2f}")
            for name, score, (low, high) in (
                ("BLEU", self.bleu, self.bleu_interval),
                ("chrF", self.chrf, self.chrf_interval),
            )
        ]
        rows.append(("word for word right", f"{self.exact:.1%}", ""))
        facts = [f"{self.sentences:,} sentences", *([self.search] if self.search else [])]
        if self.nll_nats_per_token is not None and self.perplexity is not None:
            rows.append(("nats per token", f"{self.nll_nats_per_token:.4f}", ""))
            rows.append(("perplexity", f"{self.perplexity:,.2f}", ""))
            facts.insert(1, f"{self.tokens:,} tokens of the references, no smoothing")
        signatures = f"BLEU|{self.signature}\nchrF|{self.chrf_signature}"
        return View((Table(header=("", "score", "95 % of such sets"), rows=rows), "", "; ".join(facts), signatures))


def bleu(translations: Sequence[str], references: Sequence[str], *, language: str | None = None) -> float:
    """Corpus BLEU of cased, detokenised text, 0 to 100.

    Args:
        language: of both, such as "de"; see `bleu_tokenizer`.

    Raises:
        UserError: as `bleu_tokenizer`.
    """
    metric, _ = metrics("detokenised", bleu_tokenizer("detokenised", language, references))
    return float(metric.corpus_score(list(translations), [list(references)]).score)


def metrics(protocol: Protocol, tokenizer: str) -> "tuple[BLEU, CHRF]":
    """sacrebleu's, for texts that are put through `prepare_texts`.

    Args:
        tokenizer: of BLEU, as `bleu_tokenizer` names it.
    """
    from sacrebleu.metrics.bleu import BLEU  # here: a tenth of a second that most commands need not wait
    from sacrebleu.metrics.chrf import CHRF, CHRFScore

    class FloatCHRF(CHRF):
        """Its scores of resamples are float32, but for those of 0, and their mean is not worked out of both."""

        def _compute_score_from_stats(self, stats: Any) -> CHRFScore:
            score = super()._compute_score_from_stats(stats)
            score.score = float(score.score)
            return score

    lowercase = protocol == "lc-tok"
    # What looks tokenised is told in words of our own, so `force` keeps sacrebleu from its.
    return BLEU(lowercase=lowercase, tokenize=tokenizer, force=True), FloatCHRF(lowercase=lowercase)


def score_translations(
    translations: Sequence[str],
    references: Sequence[str],
    *,
    protocol: Protocol = "detokenised",
    language: str | None = None,
) -> TranslationScores:
    """BLEU and chrF of `translations`, an empty one included, each against the reference in its place.

    Args:
        language: of both, such as "de"; the protocol lc-tok requires it, and it selects the tokenizer of BLEU
            (`bleu_tokenizer`).

    Raises:
        UserError: where there is nothing to score, or the protocol lacks what it needs.
        ValueError: for more or fewer references than translations.
    """
    if len(translations) != len(references):
        raise ValueError(f"{len(translations)} translations need as many references, got {len(references)}")
    if not translations:
        raise UserError("no sentence to score; give at least one pair")
    hypotheses, prepared_references = (prepare_texts(texts, protocol, language) for texts in (translations, references))
    words, characters = metrics(protocol, bleu_tokenizer(protocol, language, references))
    bleu_score, bleu_interval, signature = _bootstrap(words, hypotheses, prepared_references)
    chrf_score, chrf_interval, chrf_signature = _bootstrap(characters, hypotheses, prepared_references)
    return TranslationScores(
        bleu=bleu_score,
        bleu_interval=bleu_interval,
        signature=signature + signature_suffix(protocol, language),
        chrf=chrf_score,
        chrf_interval=chrf_interval,
        chrf_signature=chrf_signature + signature_suffix(protocol, language),
        exact=sum(
            text.strip() == reference.strip() for text, reference in zip(hypotheses, prepared_references, strict=True)
        )
        / len(hypotheses),
        sentences=len(hypotheses),
        protocol=protocol,
        references=hashlib.sha256(json.dumps(list(references)).encode()).hexdigest(),
        notes=(TOKENIZED_WARNING,) if protocol == "detokenised" and looks_tokenized(translations) else (),
    )


def perplexity(nats_per_token: float) -> float:
    return math.inf if nats_per_token > 700 else math.exp(nats_per_token)


def _bootstrap(
    metric: Any, translations: Sequence[str], references: Sequence[str]
) -> tuple[float, tuple[float, float], str]:
    """The score, its interval as `sacrebleu --confidence` gives it, and the signature."""
    score = metric.corpus_score(list(translations), [list(references)], n_bootstrap=RESAMPLES)
    signature = str(metric.get_signature())
    result = json.loads(score.format(width=6, is_json=True, signature=signature))
    mean, spread = result.get("confidence_mean", 0.0), result.get("confidence_var", 0.0)  # left out where all are zero
    return float(score.score), (mean - spread, mean + spread), signature
