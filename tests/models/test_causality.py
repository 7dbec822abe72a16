"""The future does not leak: changing a token changes no earlier logits."""

import pytest
import torch
from grid import GRID
from small import MAX_LEN, V, model


@pytest.mark.parametrize("point", GRID)
@torch.no_grad()
def test_token_does_not_change_earlier_logits(point) -> None:
    decoder, tokens = model(**point), torch.randint(V, (2, MAX_LEN))
    for token_mask in (None, torch.ones_like(tokens, dtype=torch.bool)):
        before = decoder(tokens, token_mask=token_mask)
        for index in (1, 6, MAX_LEN - 1):
            changed_tokens = tokens.clone()
            changed_tokens[:, index] = (changed_tokens[:, index] + 1) % V
            after = decoder(changed_tokens, token_mask=token_mask)
            assert torch.equal(after[:, :index], before[:, :index])
            assert (after[:, index:] != before[:, index:]).any(-1).all()


@pytest.mark.parametrize(
    "part",
    [
        {"norm": "rms", "norm_bias": False, "gated": True, "activation": "silu", "bias": False},
        {"qk_norm": True, "activation": "relu_squared"},
        {"d_head": 10},
    ],
    ids=str,
)
@torch.no_grad()
def test_token_does_not_change_earlier_logits_with_other_parts(part) -> None:
    spec = {"embedding_norm": True, "scale_embedding": True, "logit_softcap": 15.0, "tie_embeddings": False}
    decoder, tokens = model(spec=spec, **part), torch.randint(V, (2, MAX_LEN))
    before = decoder(tokens)
    tokens[:, 6] = (tokens[:, 6] + 1) % V
    after = decoder(tokens)
    assert torch.equal(after[:, :6], before[:, :6])
    assert not torch.equal(after[:, 6:], before[:, 6:])
