"""Attention over few keys matches the formula bit for bit, and is used when it is faster than PyTorch's kernel."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tercet.kernel import attention
from tercet.kernel.short_attention import short_attention, supports_short_attention
from tercet.nn import attend_by_hand, attend_fused

K = 3


@given(
    groups=st.sampled_from([1, 2, 6]),
    t=st.integers(1, 7),
    s=st.integers(1, 7),
    mask_kind=st.sampled_from(["all", "what came before", "a mask"]),
    with_bias=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    seed=st.integers(0, 2**32),
)
def test_short_attention_is_bitwise_identical_to_the_formula(
    groups: int, t: int, s: int, mask_kind: str, with_bias: bool, dtype: torch.dtype, seed: int
) -> None:
    torch.manual_seed(seed)
    causal = mask_kind == "what came before"
    t = s if causal else t
    q, k, v = (torch.randn(2, n, count, K, dtype=dtype) for n, count in ((6, t), (groups, s), (groups, s)))
    mask = torch.rand(2, 1, t, s) < 0.6 if mask_kind == "a mask" else None
    bias = torch.randn(1, 6, t, s) if with_bias else None
    qkv = [x.requires_grad_() for x in (q, k, v)]
    ours = short_attention(*qkv, mask=mask, bias=bias, causal=causal, dropout=0.0)
    expected = attend_by_hand(*qkv, mask=mask, bias=bias, causal=causal)
    assert torch.equal(ours, expected)
    grad_output = torch.randn_like(ours)
    for gradient, reference in zip(*(torch.autograd.grad(y, qkv, grad_output) for y in (ours, expected)), strict=True):
        assert torch.equal(gradient, reference)


@pytest.mark.parametrize(
    ("rows", "queries", "keys", "is_short"),
    [(2, 7, 7, True), (2, 129, 129, False), (1, 1, 129, True), (1, 128, 128, True), (1, 2, 129, False)],
)
def test_short_attention_is_used_for_few_keys(rows: int, queries: int, keys: int, is_short: bool) -> None:
    q, k = torch.randn(rows, 2, queries, K), torch.randn(rows, 1, keys, K)
    mask = torch.ones(1, 1, queries, keys, dtype=torch.bool)
    mask[..., -1] = False
    assert supports_short_attention(q, k) is is_short
    out = attention(q, k, k, mask=mask)
    assert (out is not None) is is_short
    if out is not None:
        torch.testing.assert_close(out, attend_fused(q, k, k, mask=mask), atol=1e-6, rtol=1e-5)


def test_onednn_raises_the_limit_of_keys() -> None:
    q = torch.randn(1, 1, 129, K)
    before = torch.get_float32_matmul_precision()
    assert not supports_short_attention(q, q)
    assert supports_short_attention(q.bfloat16(), q.bfloat16())
    try:
        torch.set_float32_matmul_precision("medium")
        out = attention(q, q, q, causal=True)
    finally:
        torch.set_float32_matmul_precision(before)
    # On CPUs with AMX, "medium" allows oneDNN to round the factors to bfloat16.
    tolerance = {"atol": 3e-2, "rtol": 0.0} if _has_amx() else {"atol": 1e-5, "rtol": 1e-4}
    assert isinstance(out, Tensor)
    torch.testing.assert_close(out, attend_fused(q, q, q, causal=True), **tolerance)


def test_dropout_keeps_the_mean() -> None:
    q, k, v = (torch.randn(2, 6, 5, K) for _ in range(3))
    options = {"mask": None, "bias": None, "causal": False}
    outputs = short_attention(*(x.repeat(2000, 1, 1, 1) for x in (q, k, v)), **options, dropout=0.3)
    mean = outputs.unflatten(0, (2000, 2)).mean(0)
    torch.testing.assert_close(mean, attend_by_hand(q, k, v), atol=0.12, rtol=0)


def _has_amx() -> bool:
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_tile" in cpuinfo.read_text()
