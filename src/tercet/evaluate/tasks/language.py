"""A language model: on the validation part of its text, beside what counting and compressing reach."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tercet.checkpoint import LanguageModel
from tercet.config import Plain
from tercet.data import Corpus
from tercet.data.batching import BATCH_TOKENS
from tercet.evaluate.baselines import bigram, compression_bits, unigram
from tercet.evaluate.language import score
from tercet.evaluate.scores import LanguageScores
from tercet.evaluate.tasks.evaluation import HeldOutScores, TextEvaluation, decode_documents


@dataclass(frozen=True)
class LanguageEvaluation(TextEvaluation):
    trained: LanguageModel

    def score(
        self, corpus: Corpus, *, stride: int | None = None, batch_tokens: int = BATCH_TOKENS, progress: bool = False
    ) -> LanguageScores:
        """The scores on the validation part of `corpus`; documents stand alone where they did in training."""
        tokenizer, starts = self.trained.tokenizer, corpus.validation_documents
        n_bytes = tokenizer.count_bytes(corpus.validation[1:])
        if self.document_mask:  # a document's first token is not predicted from the one before it
            n_bytes -= tokenizer.count_bytes(corpus.validation[starts[1:]])
        return score(
            self.trained.model,
            corpus.validation,
            n_bytes=n_bytes,
            special_ids=tokenizer.special_ids,
            document_starts=starts if self.document_mask else None,
            stride=stride,
            batch_tokens=batch_tokens,
            progress=progress,
        )

    def score_held_out(self, data: Corpus) -> HeldOutScores:
        scores = self.score(data)
        measures = {"nats_per_token": scores.loss_nats_per_token, "bits_per_byte": scores.bits_per_byte}
        return self.held_out_scores(data, "language model", measures, scores.tokens)

    def evaluate(self, data: str | Path | None = None, **settings: Any) -> LanguageScores:
        return self.score(self.load(data), **settings)


def baselines_of(corpus: Corpus) -> dict[str, LanguageScores | float]:
    """What counting and compressing reach on the same text: the counts are the training part's."""
    tokenizer, ids = corpus.tokenizer, corpus.validation
    counted: Plain = {
        "vocab_size": tokenizer.vocab_size,
        "n_bytes": tokenizer.count_bytes(ids[1:]),
        "special_ids": tokenizer.special_ids,
    }
    return {
        "unigram": unigram(corpus.train, ids, **counted),
        "bigram": bigram(corpus.train, ids, **counted),
        **compression_bits(decode_documents(corpus)),
    }
