"""Evaluation of a chat model: likelihood of the answers in the validation part of its conversations."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float

from tercet.checkpoint import LanguageModel
from tercet.checkpoint.training_data import open_training_data, other_data_hint
from tercet.config import UserError, parse
from tercet.data import ConversationCorpus, Conversations, ConversationsSpec, prepare_conversations
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.data.sources.custom_dataset import CustomDataset, plain_source
from tercet.evaluate.bootstrap import WeightedScores
from tercet.evaluate.conversations import AnswerScores, score_answers, score_conversations
from tercet.evaluate.digest import digest
from tercet.evaluate.tasks.evaluation import Evaluation, HeldOutScores, set_losses


@dataclass(frozen=True)
class ChatEvaluation(Evaluation[Conversations]):
    trained_model: LanguageModel

    def load(self, data: str | Path | CustomDataset | None = None, *, encoding: str | None = None) -> Conversations:
        """Return the conversations of the validation part, or of the file `data`, encoded with the model's template.

        Args:
            data: A file of conversations.
            encoding: Encoding of `data`; UTF-8 by default.

        Raises:
            UserError: If the data is missing, or has changed since the training.
        """
        trained_model = self.trained_model
        trained_on = trained_model.trained_on(ConversationsSpec)
        if data is not None:
            fields = trained_on.fields if trained_on else {}
            settings = {"source": plain_source(data), "encoding": encoding or "utf-8", **fields}
            held_out = {"validation": {"kind": "held_out", "source": settings["source"]}}
            spec = parse(ConversationsSpec, {**settings, **held_out})
            return prepare_conversations(
                spec, tokenizer=trained_model.tokenizer, template=trained_model.chat_template
            ).validation
        corpus = open_training_data(trained_model, download=True)
        if corpus is None:
            raise UserError(
                f"{trained_model.folder} does not contain its training data settings; {other_data_hint(trained_model)}"
            )
        assert isinstance(corpus, ConversationCorpus)
        return corpus.validation

    def load_held_out(self) -> Conversations:
        return self.load()

    def score(self, conversations: Conversations, **settings: Any) -> AnswerScores:
        """Return the likelihood of the answers; settings as in `score_conversations`."""
        return score_conversations(self.trained_model.model, conversations, **settings)

    def token_losses(
        self, conversations: Conversations, *, batch_tokens: int = BATCH_TOKENS
    ) -> Float[np.ndarray, " N"]:
        """Return -ln p of each of the N tokens of the conversations in float32, and NaN for those not scored."""
        model = self.trained_model.model
        losses = np.full(len(conversations.ids), np.nan, np.float32)
        rows = conversations.learnable(model.max_len)
        for positions, logprobs in score_answers(model, conversations, rows, batch_tokens):
            set_losses(losses, positions, logprobs)
        return losses

    def weighted(self, data: Conversations) -> WeightedScores:
        """Return the nats per answer token over conversations, for models with the same tokenizer and template."""
        losses = self.token_losses(data).astype(np.float64)
        scored = np.flatnonzero(~np.isnan(losses))
        rows, documents = np.unique(np.searchsorted(data.starts, scored, "right"), return_inverse=True)
        nats, counts = np.bincount(documents, losses[scored]), np.bincount(documents)
        return WeightedScores(
            names=("nats_per_answer_token",),
            documents=len(rows),
            measure=lambda weights: [float(weights @ nats / (weights @ counts))],
            digest=digest(self.trained_model.tokenizer.hash, *map(str, (*rows.tolist(), *counts.tolist()))),
            size=2 * len(rows),
        )

    def score_held_out(self, data: Conversations) -> HeldOutScores:
        scores, card = self.score(data), self.trained_model.card
        return HeldOutScores(
            kind="chat model",
            scores={"nats_per_answer_token": scores.nats_per_answer_token},
            parameters=self.trained_model.n_parameters,
            text=digest(card.data_hash, str(scores.tokens)),
            tokenizer=self.trained_model.tokenizer.hash,
            tokens=scores.tokens,
        )

    def evaluate(self, data: str | Path | CustomDataset | None = None, **settings: Any) -> AnswerScores:
        return self.score(self.load(data), **settings)
