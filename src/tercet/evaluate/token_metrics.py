"""Metrics of other packages over the log-probabilities that a model of text assigns to the tokens of each document."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tercet.data import Corpus
from tercet.evaluate.bootstrap import WeightedScores
from tercet.evaluate.custom_metrics import CustomMetric, check_metrics, measure_metrics, weigh_metrics
from tercet.evaluate.digest import digest
from tercet.evaluate.score_summary import MetricScore

MIN_DOCUMENTS = 20  # documents below which pieces of the text are resampled
PIECE_TOKENS = 256  # long enough that neighboring pieces are nearly independent


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """Scored tokens of documents, or of pieces of the text if there are few documents.

    Documents without a scored token are left out.

    Attributes:
        logprobs: For each document, ln p of its scored tokens without special ones, (T,) float32.
        texts: Text of each document.
        digest: SHA-256 of the texts, and of other values that the scored tokens depend on.
    """

    logprobs: tuple[np.ndarray, ...]
    texts: tuple[str, ...]
    digest: str

    @classmethod
    def of(cls, corpus: Corpus, losses: Float[np.ndarray, " N"], *key: str) -> "TokenScores":
        """Divide the losses of the validation part of a corpus among its documents.

        Args:
            corpus: Corpus with N tokens in its validation part.
            losses: -ln p of each token, and NaN for tokens that are not scored.
            key: Values that the scored tokens depend on in addition to the texts; models with other values are not
                compared.
        """
        ids, starts = corpus.validation, document_starts(corpus)
        special = np.array(sorted(corpus.tokenizer.special_ids), dtype=ids.dtype)
        scored = np.flatnonzero(~np.isnan(losses) & ~np.isin(ids, special))
        first, last = np.searchsorted(scored, starts), np.searchsorted(scored, [*starts[1:], len(ids)])
        kept = np.flatnonzero(first < last)
        ends = [*starts[1:].tolist(), len(ids)]
        texts = tuple(corpus.tokenizer.decode(ids[starts[row] : ends[row]].tolist()) for row in kept)
        logprobs = tuple(-losses[scored[first[row] : last[row]]] for row in kept)
        are_pieces = len(starts) != len(corpus.validation_documents)
        return cls(
            logprobs=logprobs,
            texts=texts,
            digest=digest(*key, *([corpus.tokenizer.hash] if are_pieces else []), *texts),
        )

    def measure(self, metrics: Sequence[CustomMetric], *, resamples: int) -> dict[str, MetricScore]:
        """Return the scores of metrics; arguments and errors as in `measure_metrics`."""
        return measure_metrics(metrics, self.logprobs, self.texts, resamples=resamples)

    def weigh(self, metrics: Sequence[CustomMetric]) -> WeightedScores:
        """Return the scores of metrics as functions of the weights of the documents; errors as in `weigh_metrics`."""
        return weigh_metrics(metrics, self.logprobs, self.texts, digest=self.digest)


def document_starts(corpus: Corpus) -> np.ndarray:
    """Return the start of each validation document, or of each piece of the text if there are few documents."""
    starts = corpus.validation_documents
    return starts if len(starts) >= MIN_DOCUMENTS else np.arange(0, len(corpus.validation), PIECE_TOKENS)


def check_token_metrics(metrics: Sequence[CustomMetric], corpus: Corpus) -> None:
    """Call metrics with the same probability for all tokens, so that their errors are reported before a model runs.

    Raises:
        UserError: If a metric raises, or returns something else than numbers.
    """
    if metrics:
        scores = TokenScores.of(corpus, np.ones(len(corpus.validation), np.float32))
        check_metrics(metrics, scores.texts, scores.logprobs)
