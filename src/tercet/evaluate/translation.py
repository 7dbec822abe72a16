"""Translation scores: BLEU and chrF by sacrebleu, with their signatures.

    BLEU  Papineni et al. 2002     chrF  Popović 2015     intervals  95 %, by resampling sentences, Koehn 2004

A score is reported with the preparation of the text (`protocols`), the search settings and a hash of the references, so
that only comparable scores are compared (`comparison`).
"""

import hashlib
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tercet.config import UserError
from tercet.evaluate.protocols import Protocol, bleu_tokenizer, looks_tokenized, prepare_texts, signature_suffix
from tercet.evaluate.score_summary import PredictionScores
from tercet.notebook import Table, View

if TYPE_CHECKING:
    from sacrebleu.metrics.bleu import BLEU
    from sacrebleu.metrics.chrf import CHRF

RESAMPLES = 1000
LENGTHS = (0, 50, 100, 200)  # shortest source of each bucket, in characters
TOKENIZED_WARNING = (
    "the translations look tokenized (100 lines or more end with ' .'), so BLEU of detokenized text is wrong; "
    "detokenize the translations"
)


@dataclass(frozen=True, kw_only=True)
class LengthBucket:
    """Scores of the translations of sources with similar length.

    Attributes:
        shortest: Minimum number of characters of the sources.
        longest: Maximum number of characters; None in the last bucket.
        sentences: Number of sentences.
        bleu, chrf: Corpus scores of these sentences.
    """

    shortest: int
    longest: int | None
    sentences: int
    bleu: float
    chrf: float


@dataclass(frozen=True, kw_only=True, repr=False)
class TranslationScores(PredictionScores):
    """Scores of translations.

    Attributes:
        bleu, chrf: Corpus scores, 0 to 100.
        signature, chrf_signature: Signatures of sacrebleu; scores with different signatures are not comparable.
        exact: Fraction of sentences equal to the reference, apart from outer white space, under the protocol.
        bleu_interval, chrf_interval: 95 % bootstrap intervals.
        nll_nats_per_token, perplexity: Mean negative log-likelihood of the tokens of the references, including the end
            of each sentence and without label smoothing, and its exponential; None without a model.
        tokens: Number of these tokens.
        references: SHA-256 of the references.
        search: Description of the search settings, as in `Beam.name`.
        by_length: BLEU and chrF by the length of the source; empty if the sources are not known.
        source_chrf: chrF of the sources as translations; None if the sources are not known.
        notes: Remarks on the reliability of the scores.
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
    by_length: tuple[LengthBucket, ...] = ()
    source_chrf: float | None = None
    notes: tuple[str, ...] = ()

    def view(self) -> View:
        """Return each score with its interval, then the signatures."""
        protocol_note = "" if self.protocol == "detokenized" else f" ({self.protocol})"
        rows = [
            (name + protocol_note, f"{score:.2f}", f"{low:.2f} to {high:.2f}")
            for name, score, (low, high) in (
                ("BLEU", self.bleu, self.bleu_interval),
                ("chrF", self.chrf, self.chrf_interval),
            )
        ]
        rows.append(("exact matches", f"{self.exact:.1%}", ""))
        facts = [f"{self.sentences:,} sentences", *([self.search] if self.search else [])]
        if self.nll_nats_per_token is not None and self.perplexity is not None:
            rows.append(("nats per token", f"{self.nll_nats_per_token:.4f}", ""))
            rows.append(("perplexity", f"{self.perplexity:,.2f}", ""))
            facts.insert(1, f"{self.tokens:,} tokens of the references, no label smoothing")
        signatures = f"BLEU|{self.signature}\nchrF|{self.chrf_signature}"
        scores = Table(header=("", "score", "95 % interval"), rows=rows)
        lengths = [self._length_table(), ""] if len(self.by_length) > 1 else []
        return View((scores, *self.metrics_table(), "", *lengths, "; ".join(facts), signatures))

    def _length_table(self) -> Table:
        rows = [
            (
                f"{row.shortest} or more" if row.longest is None else f"{row.shortest} to {row.longest}",
                f"{row.sentences:,}",
                f"{row.bleu:.2f}",
                f"{row.chrf:.2f}",
            )
            for row in self.by_length
        ]
        return Table(header=("characters of the source", "sentences", "BLEU", "chrF"), rows=rows)


def bleu(translations: Sequence[str], references: Sequence[str], *, language: str | None = None) -> float:
    """Return corpus BLEU of cased, detokenized text, 0 to 100.

    Args:
        translations: The translations.
        references: The references.
        language: Language of both, such as "de"; see `bleu_tokenizer`.

    Raises:
        UserError: If the tokenizer requires MeCab and it is not installed.
    """
    metric, _ = metrics("detokenized", bleu_tokenizer("detokenized", language, references))
    return float(metric.corpus_score(list(translations), [list(references)]).score)


def metrics(protocol: Protocol, tokenizer: str) -> "tuple[BLEU, CHRF]":
    """Return the metrics of sacrebleu for texts from `prepare_texts`.

    Args:
        protocol: The protocol.
        tokenizer: Tokenizer of BLEU, as from `bleu_tokenizer`.
    """
    from sacrebleu.metrics.bleu import BLEU  # imported here, as it takes a tenth of a second
    from sacrebleu.metrics.chrf import CHRF, CHRFScore

    class FloatCHRF(CHRF):
        """chrF with float scores: sacrebleu mixes float32 and float in resamples, whose mean then fails."""

        def _compute_score_from_stats(self, stats: Any) -> CHRFScore:
            score = super()._compute_score_from_stats(stats)
            score.score = float(score.score)
            return score

    lowercase = protocol == "lc-tok"
    # `force` suppresses sacrebleu's warning about tokenized text, which `TOKENIZED_WARNING` replaces.
    return BLEU(lowercase=lowercase, tokenize=tokenizer, force=True), FloatCHRF(lowercase=lowercase)


def score_translations(
    translations: Sequence[str],
    references: Sequence[str],
    *,
    sources: Sequence[str] | None = None,
    protocol: Protocol = "detokenized",
    language: str | None = None,
) -> TranslationScores:
    """Return BLEU and chrF of translations, each compared with the reference at the same index.

    A translation may be an empty string.

    Args:
        translations: The translations.
        references: The references.
        sources: Sources, for the scores by their length and the chrF of copying them.
        protocol: Preparation of the texts.
        language: Language of both, such as "de"; required by the protocol lc-tok, and selects the tokenizer of BLEU
            (`bleu_tokenizer`).

    Raises:
        UserError: If there are no translations, or the protocol requires a language or a package that is missing.
        ValueError: If the numbers of translations, references and sources differ.
    """
    for name, texts in (("references", references), ("sources", sources)):
        if texts is not None and len(translations) != len(texts):
            raise ValueError(f"expected {len(translations)} {name}, one per translation, got {len(texts)}")
    if not translations:
        raise UserError("no sentences to score; pass at least one pair")
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
        by_length=()
        if sources is None
        else _score_lengths(words, characters, sources, hypotheses, prepared_references),
        source_chrf=None
        if sources is None
        else float(
            characters.corpus_score(prepare_texts(sources, protocol, language), [list(prepared_references)]).score
        ),
        notes=(TOKENIZED_WARNING,) if protocol == "detokenized" and looks_tokenized(translations) else (),
    )


def sentence_chrf(translations: Sequence[str], references: Sequence[str]) -> list[float]:
    """Return the chrF of each translation, 0 to 100, compared with the reference at the same index."""
    _, characters = metrics("detokenized", "none")
    return [
        float(characters.sentence_score(translation, [reference]).score)
        for translation, reference in zip(translations, references, strict=True)
    ]


def _score_lengths(
    words: "BLEU", characters: "CHRF", sources: Sequence[str], translations: Sequence[str], references: Sequence[str]
) -> tuple[LengthBucket, ...]:
    """Return the scores of each bucket of source lengths that has sentences."""
    buckets = list[LengthBucket]()
    for shortest, end in zip(LENGTHS, (*LENGTHS[1:], None), strict=True):
        longest = None if end is None else end - 1
        rows = [
            row for row, source in enumerate(sources) if shortest <= len(source) and (end is None or len(source) < end)
        ]
        texts = [translations[row] for row in rows], [[references[row] for row in rows]]
        if rows:
            bleu_score, chrf_score = (float(metric.corpus_score(*texts).score) for metric in (words, characters))
            buckets.append(
                LengthBucket(shortest=shortest, longest=longest, sentences=len(rows), bleu=bleu_score, chrf=chrf_score)
            )
    return tuple(buckets)


def perplexity(nats_per_token: float) -> float:
    return math.inf if nats_per_token > 700 else math.exp(nats_per_token)


def _bootstrap(
    metric: Any, translations: Sequence[str], references: Sequence[str]
) -> tuple[float, tuple[float, float], str]:
    """Return the score, its 95 % interval as in `sacrebleu --confidence`, and the signature."""
    score = metric.corpus_score(list(translations), [list(references)], n_bootstrap=RESAMPLES)
    signature = str(metric.get_signature())
    result = json.loads(score.format(width=6, is_json=True, signature=signature))
    mean, spread = result.get("confidence_mean", 0.0), result.get("confidence_var", 0.0)  # absent if all are zero
    return float(score.score), (mean - spread, mean + spread), signature
