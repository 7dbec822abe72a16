"""Log-likelihood of the answers in conversations, each token given all tokens before it.

    nats per answer token = -(sum of ln p(token)) / tokens of answers          perplexity = e^(nats per answer token)

The other turns are read but not scored. Sums are in float64.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tercet.config import UserError
from tercet.data import Conversations, conversation_rows
from tercet.data.rows.batching import BATCH_TOKENS, batch_by_length
from tercet.evaluate.language import read_logprobs
from tercet.evaluate.score_summary import ScoreSummary
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.messages import counted
from tercet.models import DecoderOnly
from tercet.notebook import Table, View
from tercet.objectives import IGNORE_INDEX, collate_windows


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerScores(ScoreSummary):
    """Scores of a chat model.

    Attributes:
        nats_per_answer_token: Mean negative log-likelihood of the answer tokens.
        perplexity: Exponential of this mean.
        tokens: Number of answer tokens, including those that end an answer.
        conversations: Number of scored conversations.
        truncated: Number of scored conversations that are longer than the context, so that their end was not scored.
        left_out: Number of conversations without an answer that begins within the context; they are not scored.
        context: Maximum number of tokens that a prediction depends on.
    """

    nats_per_answer_token: float
    perplexity: float
    tokens: int
    conversations: int
    truncated: int
    left_out: int
    context: int

    def view(self) -> View:
        facts = [
            f"{self.tokens:,} tokens of answers in {counted(self.conversations, 'conversation', 'conversations')}",
            f"context {self.context:,}",
            *([f"{counted(self.truncated, 'conversation', 'conversations')} cut"] if self.truncated else []),
            *([f"{self.left_out:,} left out as too long"] if self.left_out else []),
        ]
        header = "", "nats per answer token", "perplexity"
        row = "model", f"{self.nats_per_answer_token:.4f}", f"{self.perplexity:,.2f}"
        return View((Table(header=header, rows=[row], caption="; ".join(facts)),))


def score_conversations(
    model: DecoderOnly, conversations: Conversations, *, batch_tokens: int = BATCH_TOKENS
) -> AnswerScores:
    """Return the scores of the answers in `conversations`.

    The model stays on its device, and its mode (train or eval) is restored.

    Args:
        model: The model.
        conversations: Encoded conversations.
        batch_tokens: Maximum number of tokens per batch, including padding; a longer conversation is a separate batch.

    Raises:
        UserError: If no answer begins within the context, or the outputs of the model are not finite.
    """
    rows = conversations.learnable(model.max_len)
    if not len(rows):
        raise UserError(f"no answer begins within the context of {model.max_len} tokens; use shorter conversations")
    lengths = conversations.lengths[rows] - 1
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    for _, logprobs in score_answers(model, conversations, rows, batch_tokens):
        total, tokens = total + logprobs.sum(), tokens + len(logprobs)
    if not bool(total.isfinite()):
        raise UserError(DIVERGENCE_MESSAGE)
    nats = -total.item() / tokens
    return AnswerScores(
        nats_per_answer_token=nats,
        perplexity=math.inf if nats > 700 else math.exp(nats),
        tokens=tokens,
        conversations=len(rows),
        truncated=int((lengths > model.max_len).sum()),
        left_out=len(conversations) - len(rows),
        context=model.max_len,
    )


def score_answers(
    model: DecoderOnly, conversations: Conversations, rows: np.ndarray, batch_tokens: int
) -> Iterator[tuple[np.ndarray, Tensor]]:
    """Yield batches of scored tokens: their positions in `conversations.ids` (N,), and ln p of each (N,).

    Args:
        model: The model.
        conversations: Encoded conversations.
        rows: Numbers of the conversations to score, as from `Conversations.learnable`.
        batch_tokens: Maximum number of tokens per batch, as in `score_conversations`.
    """
    lengths = np.minimum(conversations.lengths[rows] - 1, model.max_len)
    numbers = batch_by_length(lengths, batch_tokens)
    # Padding on the right does not affect a causal model.
    batches = (
        collate_windows(conversation_rows(conversations, rows[batch], max_len=model.max_len, pad=0))
        for batch in numbers
    )
    for batch, (inputs, logprobs) in zip(numbers, read_logprobs(model, batches), strict=True):
        row, column = (inputs.targets != IGNORE_INDEX).nonzero(as_tuple=True)
        yield conversations.starts[rows[batch]][row.numpy()] + column.numpy() + 1, logprobs
