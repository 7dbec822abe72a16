"""Evaluation of a language model on the validation part of its text, with baselines."""

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from tercet.checkpoint import LanguageModel
from tercet.config import Plain
from tercet.data import Corpus, CustomDataset
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.data.summary.compression import compression_bits
from tercet.evaluate.baselines import bigram, unigram
from tercet.evaluate.bootstrap import RESAMPLES, WeightedScores
from tercet.evaluate.custom_metrics import Metrics, read_metrics
from tercet.evaluate.digest import digest
from tercet.evaluate.language import score, score_windows
from tercet.evaluate.scores import MAX_UNKNOWN_SHARE, LanguageScores
from tercet.evaluate.tasks.evaluation import HeldOutScores, TextEvaluation, decode_documents, set_losses
from tercet.evaluate.token_metrics import MIN_DOCUMENTS, PIECE_TOKENS, TokenScores, check_token_metrics


@dataclass(frozen=True)
class LanguageEvaluation(TextEvaluation):
    trained_model: LanguageModel

    def score(
        self,
        corpus: Corpus,
        *,
        stride: int | None = None,
        batch_tokens: int = BATCH_TOKENS,
        metrics: Metrics = (),
        resamples: int = RESAMPLES,
        progress: bool = False,
    ) -> LanguageScores:
        """Return the scores on the validation part of `corpus`; other settings as in `language.score`.

        Documents are read separately if they were read separately in training.

        Args:
            corpus: Corpus with a validation part.
            stride, batch_tokens, progress: As in `language.score`.
            metrics: Metrics of other packages, or their import paths, for which the model reads the text again.
            resamples: Number of resamples of the intervals of metrics; 0 for no intervals.

        Raises:
            UserError: If a metric cannot be imported or fails, or as in `language.score`.
        """
        own_metrics = read_metrics(metrics)
        check_token_metrics(own_metrics, corpus)
        scores = score(
            self.trained_model.model,
            corpus.validation,
            n_bytes=self._target_bytes(corpus),
            special_ids=self.trained_model.tokenizer.special_ids,
            document_starts=self._separate_starts(corpus),
            whole_documents=self.opens_documents,
            stride=stride,
            batch_tokens=batch_tokens,
            progress=progress,
        )
        scores = replace(scores, unknown_share=corpus.unknown_share)
        if not own_metrics:
            return scores
        losses = self.token_losses(corpus, stride=stride, batch_tokens=batch_tokens, progress=progress)
        return replace(scores, metrics=TokenScores.of(corpus, losses).measure(own_metrics, resamples=resamples))

    def token_losses(
        self, corpus: Corpus, *, stride: int | None = None, batch_tokens: int = BATCH_TOKENS, progress: bool = False
    ) -> Float[np.ndarray, " N"]:
        """Return -ln p of each of the N tokens of the validation part in float32, and NaN for those not scored.

        The arguments are those of `score`, whose loss is the mean of these losses.
        """
        ids, starts = corpus.validation, self._separate_starts(corpus)
        scored = score_windows(
            self.trained_model.model, ids, stride=stride, document_starts=starts, whole_documents=self.opens_documents,
            batch_tokens=batch_tokens, progress=progress,
        )  # fmt: skip
        losses = np.full(len(ids), np.nan, np.float32)
        is_target = np.ones(len(ids), bool)
        is_target[np.zeros(1, np.int64) if starts is None else starts] = False
        set_losses(losses, np.flatnonzero(is_target), torch.cat([logprobs for _, logprobs in scored]))
        return losses

    def _separate_starts(self, corpus: Corpus) -> np.ndarray | None:
        """Return the starts of the validation documents if they are read separately, else None."""
        return corpus.validation_documents if self.document_mask else None

    def baselines(self, corpus: Corpus) -> dict[str, LanguageScores | float]:
        """Return the scores of unigram and bigram counts, and the bits per byte of compressors, on the validation part.

        The counts are those of the training part. Unigram and bigram have the targets of the model, and, like the
        model, do not cross document boundaries if documents are read separately. Compressors read the concatenated
        documents. They are omitted if too many tokens are unknown for a comparison.
        """
        are_separate = self.document_mask
        starts = self._separate_starts(corpus)
        settings: Plain = {
            "vocab_size": corpus.tokenizer.vocab_size,
            "n_bytes": self._target_bytes(corpus),
            "special_ids": corpus.tokenizer.special_ids,
            "document_starts": starts,
        }
        train_starts = np.asarray(corpus.train_documents) if are_separate else None
        counts = {
            "unigram": unigram(corpus.train, corpus.validation, **settings),
            "bigram": bigram(corpus.train, corpus.validation, **settings, train_document_starts=train_starts),
        }
        unknown = corpus.unknown_share
        compressors = compression_bits(decode_documents(corpus)) if unknown <= MAX_UNKNOWN_SHARE else {}
        return {**{name: replace(scores, unknown_share=unknown) for name, scores in counts.items()}, **compressors}

    def weighted(self, data: Corpus) -> WeightedScores:
        """Return bits per byte over documents, or nats per token over pieces of the text if there are few documents.

        Bits per byte are comparable between tokenizers, pieces of tokens are not.
        """
        losses, ids, starts = self.token_losses(data).astype(np.float64), data.validation, data.validation_documents
        scored = np.flatnonzero(~np.isnan(losses))
        if len(starts) < MIN_DOCUMENTS:
            pieces = np.arange(len(scored)) // PIECE_TOKENS
            nats, counts = np.bincount(pieces, losses[scored]), np.bincount(pieces)
            name, key = "nats_per_token", (data.tokenizer.hash, str(len(scored)), str(len(ids)))
        else:
            texts = decode_documents(data)
            scored = scored[~np.isin(ids[scored], np.array(sorted(data.tokenizer.special_ids)))]
            documents = np.searchsorted(starts, scored, "right") - 1
            nats = np.bincount(documents, losses[scored] / math.log(2), len(starts))
            counts = np.array([len(text.encode()) for text in texts])
            name, key = "bits_per_byte", texts
        return WeightedScores(
            names=(name,),
            documents=len(nats),
            measure=lambda weights: [float(weights @ nats / (weights @ counts))],
            digest=digest(*key),
            size=2 * len(nats),
        )

    def weighted_metrics(self, data: Corpus, metrics: Metrics) -> WeightedScores:
        return TokenScores.of(data, self.token_losses(data)).weigh(read_metrics(metrics))

    def score_held_out(self, data: Corpus) -> HeldOutScores:
        scores = self.score(data)
        measures = {"nats_per_token": scores.loss_nats_per_token, "bits_per_byte": scores.bits_per_byte}
        return self.held_out_scores(data, "language model", measures, scores.tokens)

    def evaluate(self, data: str | Path | CustomDataset | None = None, **settings: Any) -> LanguageScores:
        return self.score(self.load(data), **settings)

    def _target_bytes(self, corpus: Corpus) -> int:
        """Return the UTF-8 bytes of the targets: all tokens but the first of the text, or of each separate document."""
        ids, tokenizer = corpus.validation, self.trained_model.tokenizer
        first = corpus.validation_documents if self.document_mask else np.zeros(1, np.int64)
        if tokenizer.adds_prefix:  # decoding all documents together removes the space only from the first one
            return corpus.validation_bytes - sum(tokenizer.count_bytes(ids[place : place + 1]) for place in first)
        return tokenizer.count_bytes(ids) - tokenizer.count_bytes(ids[first])
