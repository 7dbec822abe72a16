"""A block matches PyTorch's layers, and its cross-attention gives the same result with and without a cache."""

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from tercet.nn import Attention, Block, FeedForward
from tercet.nn.cache import StackCache

B, T, M, D = 2, 5, 7, 24


def block(placement, *, cross: bool, bias: bool = True, **attention) -> Block:
    return Block(
        attention=partial(Attention, D, 4, bias=bias, **attention),
        feedforward=partial(FeedForward, D, 31, activation="relu", bias=bias),
        norm=partial(nn.LayerNorm, D),
        placement=placement,
        cross=cross,
    ).eval()


def copy_attention(ours: Attention, theirs: nn.MultiheadAttention) -> None:
    for part, weight, bias in zip(
        (ours.query, ours.key, ours.value), theirs.in_proj_weight.chunk(3), theirs.in_proj_bias.chunk(3), strict=True
    ):
        part.weight.copy_(weight)
        part.bias.copy_(bias)
    ours.out.load_state_dict(theirs.out_proj.state_dict())


@torch.no_grad()
def pair(placement, *, cross: bool) -> tuple[Block, nn.Module]:
    """Return a block and PyTorch's layer with the same random weights."""
    kind = nn.TransformerDecoderLayer if cross else nn.TransformerEncoderLayer
    theirs = kind(D, 4, 31, dropout=0.0, batch_first=True, norm_first=placement == "pre").eval()
    for parameter in theirs.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    ours = block(placement, cross=cross)
    copy_attention(ours.self_attention, theirs.self_attn)
    ours.feedforward.up.load_state_dict(theirs.linear1.state_dict())
    ours.feedforward.down.load_state_dict(theirs.linear2.state_dict())
    residuals = [ours.self_residual, ours.feedforward_residual]
    if cross:
        assert ours.cross_attention is not None
        assert ours.cross_residual is not None
        copy_attention(ours.cross_attention, theirs.multihead_attn)
        residuals.insert(1, ours.cross_residual)
    for i, residual in enumerate(residuals, start=1):
        norm = residual.before if placement == "pre" else residual.after
        norm.load_state_dict(getattr(theirs, f"norm{i}").state_dict())
    return ours, theirs


def last_padded(length: int) -> Tensor:
    real = torch.ones(B, length, dtype=torch.bool)
    real[1, -2:] = False
    return real


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_block_matches_pytorchs_encoder_layer(placement) -> None:
    ours, theirs = pair(placement, cross=False)
    x, real = torch.randn(B, T, D), last_padded(T)
    expected = theirs(x, src_key_padding_mask=~real)
    found = ours(x, mask=real[:, None, None].expand(B, 1, T, T))
    torch.testing.assert_close(found[real], expected[real], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("placement", ["pre", "post"])
def test_block_with_cross_attention_matches_pytorchs_decoder_layer(placement) -> None:
    ours, theirs = pair(placement, cross=True)
    x, memory, real = torch.randn(B, T, D), torch.randn(B, M, D), last_padded(M)
    future = torch.ones(T, T, dtype=torch.bool).triu(1)
    expected = theirs(x, memory, tgt_mask=future, memory_key_padding_mask=~real)
    found = ours(x, causal=True, memory=memory, memory_mask=real[:, None, None])
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize("placement", ["pre", "post", "sandwich", "branch"])
@pytest.mark.parametrize("groups", [4, 2, 1])
@torch.no_grad()
def test_cached_steps_with_cross_attention_match_the_full_pass(placement, groups: int) -> None:
    layer = block(placement, cross=True, n_kv_heads=groups, bias=False)
    x, memory, memory_mask = torch.randn(B, T, D), torch.randn(B, M, D), last_padded(M)[:, None, None]
    expected = layer(x, causal=True, memory=memory, memory_mask=memory_mask)
    cache = StackCache(n_layers=1, n_kv_heads=groups, d_head=6, batch=B, capacity=T)
    steps: list[Tensor] = []
    for t in range(T):
        mask = cache.mask(cache.positions(1))
        source = memory if t == 0 else torch.full_like(memory, torch.nan)  # projected once and never read again
        steps.append(layer(x[:, t : t + 1], mask=mask, memory=source, memory_mask=memory_mask, cache=cache.layers[0]))
        cache.advance(1)
    torch.testing.assert_close(torch.cat(steps, dim=1), expected, atol=1e-5, rtol=1e-5)


@torch.no_grad()
def test_reorder_also_moves_the_cross_attention_cache() -> None:
    layer = block("pre", cross=True)
    x, memory = torch.randn(B, 2, D), torch.randn(B, M, D)
    cache = StackCache(n_layers=1, n_kv_heads=4, d_head=6, batch=B, capacity=3)
    layer(x[:, :1], mask=cache.mask(cache.positions(1)), memory=memory, cache=cache.layers[0])
    cache.advance(1)
    rows = torch.tensor([1, 0, 1])
    cache.reorder(rows)
    output = layer(x[rows, 1:], mask=cache.mask(cache.positions(1)), memory=memory[rows], cache=cache.layers[0])
    torch.testing.assert_close(output, layer(x, causal=True, memory=memory)[rows, 1:], atol=1e-5, rtol=1e-5)


def test_cross_attention_without_memory_is_rejected() -> None:
    layer, x = block("pre", cross=True), torch.randn(B, T, D)
    with pytest.raises(ValueError, match="cross-attention requires `memory`, or a cache that already contains it"):
        layer(x, causal=True)
    cache = StackCache(n_layers=1, n_kv_heads=4, d_head=6, batch=B, capacity=T)
    with pytest.raises(ValueError, match="cross-attention requires `memory`"):
        layer(x[:, :1], mask=cache.mask(cache.positions(1)), cache=cache.layers[0])


def test_no_two_blocks_share_weights() -> None:
    layer = block("sandwich", cross=True)
    parameters = list(layer.parameters())
    assert len({p.data_ptr() for p in parameters}) == len(parameters)
    assert not torch.equal(layer.self_attention.query.weight, layer.cross_attention.query.weight)
