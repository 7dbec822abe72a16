"""The compiled decode attention matches the formula and does not read masked keys."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from tercet.kernel.build import library
from tercet.kernel.decode_attention import decode_attention, supports_decode_attention
from tercet.nn.attention import attend, attend_by_hand

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")


def masks(b: int, t: int, s: int) -> list[Tensor | None]:
    return [None, *(torch.rand(shape) < 0.5 for shape in ((b, 1, t, s), (1, 1, t, s), (b, 1, 1, s), (1, 1, 1, s)))]


@given(
    b=st.integers(1, 3),
    groups=st.integers(1, 3),
    queries_per_head=st.integers(1, 3),
    t=st.integers(1, 8),
    s=st.integers(1, 41),
    width=st.sampled_from([8, 16, 24, 32, 40, 72]),
    mask=st.integers(0, 4),
    size=st.sampled_from([0.1, 1.0, 30.0]),
    seed=st.integers(0, 2**32),
)
def test_decode_attention_matches_the_formula(
    b: int, groups: int, queries_per_head: int, t: int, s: int, width: int, mask: int, size: float, seed: int
) -> None:
    torch.manual_seed(seed)
    q = size * torch.randn(b, t, groups * queries_per_head, width).transpose(1, 2)
    k, v = torch.randn(b, groups, s, width), torch.randn(b, s, groups, width).transpose(1, 2)
    visible = masks(b, t, s)[mask]
    assert supports_decode_attention(q, k, v)
    expected = attend_by_hand(q.double(), k.double(), v.double(), mask=visible)
    # Large queries give large scores, and a relative error in a score is an absolute error in the exponent.
    torch.testing.assert_close(
        decode_attention(q, k, v, visible).double(), expected, atol=2e-5 * max(1.0, size), rtol=1e-5
    )


def test_masked_keys_are_not_read_and_fully_masked_queries_get_zeros() -> None:
    q, k, v = torch.randn(2, 4, 1, 16), torch.randn(2, 2, 9, 16), torch.randn(2, 2, 9, 16)
    k[:, :, 5:], v[:, :, 5:] = math.nan, math.inf
    mask = torch.arange(9).expand(2, 1, 1, 9) < torch.tensor([5, 0])[:, None, None, None]
    output = decode_attention(q, k, v, mask)
    torch.testing.assert_close(output[0], attend_by_hand(q[:1], k[:1, :, :5], v[:1, :, :5])[0], atol=1e-6, rtol=1e-5)
    assert torch.equal(output[1], torch.zeros(4, 1, 16))


def test_non_finite_inputs_are_not_hidden() -> None:
    q, k, v = torch.randn(1, 2, 1, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    k[0, 1, 3, 2] = math.nan
    assert decode_attention(q, k, v, None).isnan().flatten(1).tolist() == [[False] * 8 + [True] * 8]


def test_row_does_not_depend_on_other_rows_or_threads() -> None:
    q, k, v = torch.randn(5, 4, 2, 32), torch.randn(5, 4, 301, 32), torch.randn(5, 4, 301, 32)
    batched, threads = decode_attention(q, k, v, None), torch.get_num_threads()
    assert torch.equal(decode_attention(q[3:4], k[3:4], v[3:4], None), batched[3:4])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            assert torch.equal(decode_attention(q, k, v, None), batched)
    finally:
        torch.set_num_threads(threads)


def test_kernel_supports_few_queries_without_gradients() -> None:
    q, k = torch.randn(1, 2, 8, 16), torch.randn(1, 2, 9, 16)
    assert supports_decode_attention(q, k, k)
    assert not supports_decode_attention(torch.randn(1, 2, 9, 16), k, k)
    assert not supports_decode_attention(q.double(), k, k)
    assert not supports_decode_attention(q[..., :12], k[..., :12], k[..., :12])
    assert not supports_decode_attention(nn.Parameter(q), k, k)
    assert not supports_decode_attention(q, k.mT.contiguous().mT, k)


def test_attend_uses_the_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    monkeypatch.setattr(
        "tercet.kernel.api.decode_attention",
        lambda q, k, v, mask: calls.append(1) or decode_attention(q, k, v, mask),
    )
    q, k, bias = torch.randn(1, 2, 3, 16), torch.randn(1, 2, 9, 16), torch.randn(1, 2, 3, 9)
    torch.testing.assert_close(attend(q, k, k), attend_by_hand(q, k, k), atol=1e-6, rtol=1e-5)
    assert calls == [1]
    attend(q, k, k, bias=bias)
    attend(q, k[:, :, :3], k[:, :, :3], causal=True)
    attend(q, k, k, dropout=0.5)
    assert calls == [1]
