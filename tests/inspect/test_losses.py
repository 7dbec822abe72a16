"""The loss of each token is -ln p of its target, and None without a target."""

import math

import pytest
import torch

from tercet.inspect import Recording, Side, mean_loss, token_losses
from tercet.tokens import Characters, Tokenizer

TOKENIZER = Tokenizer.train(Characters(alphabet="abcdefgh", pad=True, bos=True, eos=True, mask=True), [])
V = TOKENIZER.vocab_size


def recording(ids: list[int], *, causal: bool) -> tuple[Recording, torch.Tensor]:
    logits = torch.randn(len(ids), V)
    side = Side(tokenizer=TOKENIZER, ids=tuple(ids))
    return Recording(sides={"stack": side}, activations={}, logits=logits, causal=causal, truncated=False), logits


def nats(logits: torch.Tensor, token: int) -> float:
    return math.log(sum(math.exp(logit) for logit in logits.tolist())) - float(logits[token])


@pytest.mark.parametrize("length", [1, 5, 67])
def test_a_causal_row_predicts_the_next_token(length: int) -> None:
    ids = torch.randint(V, (length,)).tolist()
    read, logits = recording(ids, causal=True)
    losses = token_losses(read, logits)
    assert losses[-1] is None
    assert losses[:-1] == pytest.approx([nats(logits[t], ids[t + 1]) for t in range(length - 1)], abs=1e-5)
    known_losses = losses[:-1]
    assert mean_loss(losses) == (pytest.approx(sum(known_losses) / len(known_losses)) if known_losses else None)


def test_a_masked_row_predicts_its_original() -> None:
    mask = TOKENIZER.mask_id
    assert mask is not None
    originals = [5, 6, 7, 5, 6]
    read, logits = recording([5, mask, 7, mask, 6], causal=False)
    losses = token_losses(read, logits, original_ids=originals)
    assert [row for row, loss in enumerate(losses) if loss is not None] == [1, 3]
    assert [losses[1], losses[3]] == pytest.approx([nats(logits[1], 6), nats(logits[3], 5)], abs=1e-5)
    assert token_losses(read, logits) == [None] * 5  # the originals are unknown
    assert mean_loss(token_losses(read, logits)) is None


def test_other_logits_may_be_scored() -> None:
    read, logits = recording([5, 6, 7], causal=True)
    assert token_losses(read, logits + torch.tensor([[1.0], [2.0], [3.0]])) == pytest.approx(
        token_losses(read, logits), abs=1e-5
    )  # a softmax is invariant to a constant added to all logits
    assert token_losses(read, -logits) != pytest.approx(token_losses(read, logits), abs=1e-2)
