"""Evaluation of a language model on the validation part of its text, with baselines."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from tercet.checkpoint import LanguageModel
from tercet.config import Plain
from tercet.data import Corpus
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.evaluate.baselines import bigram, compression_bits, unigram
from tercet.evaluate.language import score
from tercet.evaluate.scores import MAX_UNKNOWN_SHARE, LanguageScores
from tercet.evaluate.tasks.evaluation import HeldOutScores, TextEvaluation, decode_documents


@dataclass(frozen=True)
class LanguageEvaluation(TextEvaluation):
    trained_model: LanguageModel

    def score(
        self, corpus: Corpus, *, stride: int | None = None, batch_tokens: int = BATCH_TOKENS, progress: bool = False
    ) -> LanguageScores:
        """Return the scores on the validation part of `corpus`; settings as in `language.score`.

        Documents are read separately if they were read separately in training.
        """
        scores = score(
            self.trained_model.model,
            corpus.validation,
            n_bytes=self._target_bytes(corpus),
            special_ids=self.trained_model.tokenizer.special_ids,
            document_starts=corpus.validation_documents if self.document_mask else None,
            whole_documents=self.opens_documents,
            stride=stride,
            batch_tokens=batch_tokens,
            progress=progress,
        )
        return replace(scores, unknown_share=corpus.unknown_share)

    def baselines(self, corpus: Corpus) -> dict[str, LanguageScores | float]:
        """Return the scores of unigram and bigram counts, and the bits per byte of compressors, on the validation part.

        The counts are those of the training part. Unigram and bigram have the targets of the model, and, like the
        model, do not cross document boundaries if documents are read separately. Compressors read the concatenated
        documents. They are omitted if too many tokens are unknown for a comparison.
        """
        are_separate = self.document_mask
        starts = corpus.validation_documents if are_separate else None
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

    def score_held_out(self, data: Corpus) -> HeldOutScores:
        scores = self.score(data)
        measures = {"nats_per_token": scores.loss_nats_per_token, "bits_per_byte": scores.bits_per_byte}
        return self.held_out_scores(data, "language model", measures, scores.tokens)

    def evaluate(self, data: str | Path | None = None, **settings: Any) -> LanguageScores:
        return self.score(self.load(data), **settings)

    def _target_bytes(self, corpus: Corpus) -> int:
        """Return the UTF-8 bytes of the targets: all tokens but the first of the text, or of each separate document."""
        ids, tokenizer = corpus.validation, self.trained_model.tokenizer
        first = corpus.validation_documents if self.document_mask else np.zeros(1, np.int64)
        if tokenizer.adds_prefix:  # decoding all documents together removes the space only from the first one
            return corpus.validation_bytes - sum(tokenizer.count_bytes(ids[place : place + 1]) for place in first)
        return tokenizer.count_bytes(ids) - tokenizer.count_bytes(ids[first])
