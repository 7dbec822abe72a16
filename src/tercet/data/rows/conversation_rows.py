"""Batches of conversations."""

import numpy as np

from tercet.data.corpora.conversation_corpus import Conversations
from tercet.data.rows.token_rows import TokenRows


def conversation_rows(conversations: Conversations, numbers: np.ndarray, *, max_len: int, pad: int) -> TokenRows:
    """The conversations `numbers` (B,) as a batch, padded on the right; each is cut to `max_len` inputs.

    The mask is True at the answers' tokens, as that of `Windows` is at those to score.
    """
    first = np.asarray(conversations.starts[numbers])[:, None]
    lengths = np.minimum(np.asarray(conversations.starts[numbers + 1])[:, None] - first, max_len + 1)  # (B, 1)
    positions = np.arange(lengths.max(initial=0))
    inside = positions < lengths  # (B, T + 1)
    in_ids = (first + positions)[inside]
    tokens = np.full(inside.shape, pad, dtype=np.int64)
    tokens[inside] = conversations.ids[in_ids]
    mask = np.zeros(inside.shape, dtype=bool)
    mask[inside] = conversations.answers[in_ids]
    return TokenRows(tokens=tokens, mask=mask)
