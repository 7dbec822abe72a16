"""Pooling gives one vector per text, which does not depend on padding."""

import pytest
import torch

from tercet.nn import Pooler, Transform, pool

KINDS = ("mean", "first", "max")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_does_not_change_vectors(kind, side: str) -> None:
    separate = torch.randn(1, 5, 7)
    padding = torch.full((1, 6, 7), float("nan"))  # values at padding must not be read
    token_mask = torch.tensor([[True] * 5 + [False] * 6])
    hidden = torch.cat((separate, padding), 1)
    if side == "left":
        hidden, token_mask = hidden.roll(6, 1), token_mask.roll(6, 1)
    torch.testing.assert_close(pool(hidden, token_mask, kind), pool(separate, None, kind))


def test_each_pooling_matches_its_definition() -> None:
    hidden = torch.randn(3, 5, 7)
    torch.testing.assert_close(pool(hidden, None, "mean"), hidden.sum(1) / 5)
    assert torch.equal(pool(hidden, None, "first"), hidden[:, 0])
    assert torch.equal(pool(hidden, None, "max")[0, 1], max(hidden[0, :, 1]))


@pytest.mark.parametrize("kind", KINDS)
def test_row_without_tokens_has_finite_output_and_gradients(kind) -> None:
    hidden = torch.randn(2, 5, 7, requires_grad=True)
    pooled = pool(hidden, torch.tensor([[False] * 5, [True] * 5]), kind)
    assert pooled.isfinite().all()
    pooled.sum().backward()
    assert hidden.grad is not None
    assert hidden.grad.isfinite().all()


def test_unknown_kind_is_rejected() -> None:
    with pytest.raises((ValueError, TypeError), match="sum"):
        pool(torch.randn(2, 5, 7), None, "sum")  # pyright: ignore[reportArgumentType]


def test_heads_match_their_formulas() -> None:
    x = torch.randn(3, 7)
    transform = Transform(7, norm=lambda: torch.nn.LayerNorm(7), activation="relu")
    torch.testing.assert_close(transform(x), torch.layer_norm(transform.dense(x).relu(), (7,)))
    pooler = Pooler(7)
    torch.testing.assert_close(pooler(x), (x @ pooler.dense.weight.T + pooler.dense.bias).tanh())
