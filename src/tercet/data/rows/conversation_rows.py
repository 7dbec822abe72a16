"""Batches of conversations."""

import numpy as np

from tercet.data.corpora.conversation_corpus import Conversations
from tercet.data.rows.padding import pad_rows
from tercet.data.rows.token_rows import TokenRows


def conversation_rows(conversations: Conversations, numbers: np.ndarray, *, max_len: int, pad: int) -> TokenRows:
    """Return the conversations `numbers` (B,) as a batch, padded on the right and cut to `max_len` + 1 tokens.

    The last token of a row is only a target. The mask is True at the tokens of learned answers, which are the targets.
    """
    ids, answers, starts = conversations.ids, conversations.answers, conversations.starts
    tokens, _ = pad_rows(ids, starts, numbers, pad, max_len + 1)  # (B, T + 1)
    mask, _ = pad_rows(answers, starts, numbers, 0, max_len + 1)
    return TokenRows(tokens=tokens, mask=mask.astype(bool))
