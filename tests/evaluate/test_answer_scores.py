"""Scores of a conversation's answers match the formula token by token."""

import numpy as np
import pytest
import torch

from tercet.data import Conversations
from tercet.evaluate.conversations import score_conversations
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec

MAX_LEN = 7
ANSWERS = [  # for each token of a conversation, whether it belongs to an answer
    [False, True, True, False, False, True],
    [False, False, False, True, True, True, True, True],  # just fits: its last token is predicted but not read
    [False, True, False, False, False, False, False, False, True],  # one token too long
    [False, False, False, False, False, False, False, False, True],  # its answer starts after the context
]


@pytest.mark.parametrize("batch_tokens", [1, 1000])
def test_answer_scores_are_sums_over_tokens_in_any_batch(batch_tokens: int) -> None:
    stack = StackSpec(d_model=24, n_layers=1, n_heads=3)
    model = DecoderOnly(DecoderOnlySpec(vocab_size=13, max_len=MAX_LEN, stack=stack)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 6  # far from uniform
    starts = np.cumsum([0, *map(len, ANSWERS)])
    ids = np.random.default_rng(0).integers(0, 13, starts[-1]).astype(np.uint16)
    first_answers = np.array([row.index(True) for row in ANSWERS])
    data = Conversations(ids=ids, answers=np.concatenate(ANSWERS), starts=starts, first_answers=first_answers)
    scores = score_conversations(model, data, batch_tokens=batch_tokens)
    nats = list[float]()
    for row, start in zip(ANSWERS[:3], starts[:3].tolist(), strict=True):
        tokens = torch.from_numpy(ids[start : start + len(row)].astype(np.int64))
        with torch.no_grad():
            logprobs = model(tokens[None, :MAX_LEN])[0].double().log_softmax(-1)
        nats += [-float(logprobs[at - 1, tokens[at]]) for at in range(1, MAX_LEN + 1) if at < len(row) and row[at]]
    assert scores.nats_per_answer_token == pytest.approx(sum(nats) / len(nats), rel=1e-5)
    assert scores.perplexity == pytest.approx(np.exp(sum(nats) / len(nats)), rel=1e-4)
    assert (scores.tokens, scores.conversations) == (len(nats), 3)
    assert (scores.truncated, scores.left_out, scores.context) == (1, 1, MAX_LEN)
