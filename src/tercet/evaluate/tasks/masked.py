"""Evaluation of a masked language model on the validation part of its text."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Int

from tercet.checkpoint import Encoder
from tercet.data import Corpus, CustomDataset
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.evaluate.bootstrap import RESAMPLES, WeightedScores
from tercet.evaluate.custom_metrics import Metrics, read_metrics
from tercet.evaluate.digest import digest
from tercet.evaluate.masked import MaskedScores, predict_masked, pseudo_perplexity, score_masked
from tercet.evaluate.tasks.evaluation import HeldOutScores, TextEvaluation, decode_documents, set_losses
from tercet.evaluate.token_metrics import TokenScores, check_token_metrics


@dataclass(frozen=True)
class MaskedEvaluation(TextEvaluation):
    trained_model: Encoder

    def score(
        self, corpus: Corpus, *, metrics: Metrics = (), resamples: int = RESAMPLES, **settings: Any
    ) -> MaskedScores:
        """Return the scores on the validation part of `corpus`.

        Args:
            corpus: Corpus with a validation part.
            metrics: Metrics of other packages, or their import paths, for which the model predicts the masked tokens
                again.
            resamples: Number of resamples of the intervals of metrics; 0 for no intervals.
            settings: Other arguments of `score_masked`.

        Raises:
            UserError: If a metric cannot be imported or fails, or as in `score_masked`.
        """
        own_metrics = read_metrics(metrics)
        check_token_metrics(own_metrics, corpus)
        model, tokenizer = self.trained_model.model, self.trained_model.tokenizer
        scores = score_masked(model, tokenizer, corpus, document_mask=self.document_mask, **settings)
        if not own_metrics:
            return scores
        losses, _ = self.token_losses(corpus, **settings)
        return replace(scores, metrics=TokenScores.of(corpus, losses).measure(own_metrics, resamples=resamples))

    def token_losses(
        self, corpus: Corpus, *, batch_tokens: int = BATCH_TOKENS, **settings: Any
    ) -> tuple[Float[np.ndarray, " N"], Int[np.ndarray, " N"]]:
        """Return -ln p and the most likely token at each of the N tokens of the validation part.

        The masks are those of `score` by default. Tokens that are not masked have NaN and -1. Settings are the other
        arguments of `predict_masked`.
        """
        model = self.trained_model.model
        losses, predicted = np.full(len(corpus.validation), np.nan, np.float32), np.full(len(corpus.validation), -1)
        for numbers, batch, logprobs, likeliest in predict_masked(
            model, self.trained_model.tokenizer, corpus, batch_tokens=batch_tokens, document_mask=self.document_mask,
            **settings,
        ):  # fmt: skip
            rows, columns = np.divmod(batch.positions.numpy(), model.max_len)
            positions = numbers[rows] * model.max_len + columns
            set_losses(losses, positions, logprobs)
            predicted[positions] = likeliest.numpy()
        return losses, predicted

    def weighted(self, data: Corpus) -> WeightedScores:
        """Return the scores over windows of the text, for models with the same tokenizer and context."""
        max_len = self.trained_model.model.max_len
        losses, predicted = self.token_losses(data)
        masked = np.flatnonzero(~np.isnan(losses))
        _, windows = np.unique(masked // max_len, return_inverse=True)
        hits = predicted[masked] == data.validation[masked]
        values = (losses[masked].astype(np.float64), hits, np.ones(len(masked)))
        sums = np.stack([np.bincount(windows, value) for value in values], 1)  # (W, 3)
        return WeightedScores(
            names=("masked_loss", "masked_accuracy"),
            documents=len(sums),
            measure=lambda weights: (weights @ sums[:, :2] / (weights @ sums[:, 2])).tolist(),
            digest=digest(self.trained_model.tokenizer.hash, str(max_len), *decode_documents(data)),
            size=sums.size,
        )

    def weighted_metrics(self, data: Corpus, metrics: Metrics) -> WeightedScores:
        losses, _ = self.token_losses(data)
        key = (self.trained_model.tokenizer.hash, str(self.trained_model.model.max_len))  # on which the masks depend
        return TokenScores.of(data, losses, *key).weigh(read_metrics(metrics))

    def score_held_out(self, data: Corpus) -> HeldOutScores:
        scores = self.score(data)
        measures = {"nats_per_masked_token": scores.masked_loss, "accuracy": scores.masked_accuracy}
        return self.held_out_scores(data, "masked language model", measures, scores.tokens)

    def evaluate(self, data: str | Path | CustomDataset | None = None, **settings: Any) -> MaskedScores:
        return self.score(self.load(data), **settings)

    def pseudo_perplexity(self, corpus: Corpus, texts: int, *, within_word: bool = False) -> float:
        """Return the pseudo-perplexity of the first `texts` documents of the validation part.

        Documents are truncated to the maximum length of the model.

        Args:
            corpus: Corpus with the validation part.
            texts: Maximum number of documents.
            within_word: If True, also mask the tokens to the right in the same word.

        Raises:
            UserError: If the documents have no tokens.
        """
        model, tokenizer, ids = self.trained_model.model, self.trained_model.tokenizer, corpus.validation
        starts = corpus.validation_documents[:texts]
        ends = [*corpus.validation_documents[1:], len(ids)]
        # Decode only the part of a long document that is read.
        spans = [ids[start : min(end, start + model.max_len)] for start, end in zip(starts, ends, strict=False)]
        read = [tokenizer.decode(span.tolist()) for span in spans]
        return pseudo_perplexity(model, tokenizer, read, within_word=within_word)
