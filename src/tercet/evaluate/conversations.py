"""How likely a model finds the answers of conversations, each token seen with all that stands before it.

    nats per answer token = -(sum of ln p(token)) / tokens of answers          perplexity = e^(nats per answer token)

What is asked is read and not scored. Sums are taken in float64.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch

from tercet.config import UserError
from tercet.data import Conversations, conversation_rows
from tercet.data.rows.batching import BATCH_TOKENS, batch_by_length
from tercet.evaluate.language import read_logprobs
from tercet.evaluate.score_summary import ScoreSummary
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.models import DecoderOnly
from tercet.notebook import Table, View
from tercet.objectives import collate_windows


@dataclass(frozen=True, kw_only=True, repr=False)
class AnswerScores(ScoreSummary):
    """Attributes:
    tokens: of the answers, those that end them included.
    conversations: that were scored.
    truncated: conversations longer than the model takes, of which the rest was not scored.
    left_out: those whose answers begin beyond what the model takes.
    context: the most tokens that a prediction could look at.
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
            f"{self.tokens:,} tokens of answers in {self.conversations:,} conversations",
            f"context {self.context:,}",
            *([f"{self.truncated:,} conversations cut"] if self.truncated else []),
            *([f"{self.left_out:,} too long for an answer"] if self.left_out else []),
        ]
        header = "", "nats per answer token", "perplexity"
        row = "model", f"{self.nats_per_answer_token:.4f}", f"{self.perplexity:,.2f}"
        return View((Table(header=header, rows=[row], caption="; ".join(facts)),))


def score_conversations(
    model: DecoderOnly, conversations: Conversations, *, batch_tokens: int = BATCH_TOKENS
) -> AnswerScores:
    """The scores of the answers in `conversations`.

    Args:
        batch_tokens: tokens read at once, padding included; a longer conversation stands alone.

    The model stays on its device and gets its own train or eval mode back.

    Raises:
        UserError: where there is no answer that the model has room for, or its outputs are not numbers.
    """
    rows = conversations.learnable(model.max_len)
    if not len(rows):
        raise UserError(f"no conversation has an answer within the {model.max_len} tokens that the model takes")
    lengths = conversations.lengths[rows] - 1
    total, tokens = torch.zeros((), dtype=torch.float64), 0
    # What fills a row up stands to the right, where a causal model does not look.
    batches = (
        collate_windows(conversation_rows(conversations, rows[numbers], max_len=model.max_len, pad=0))
        for numbers in batch_by_length(np.minimum(lengths, model.max_len), batch_tokens)
    )
    for _, logprobs in read_logprobs(model, batches):
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
