"""Compiled attention over whole sequences matches the formula in float32 and bfloat16, with every mask."""

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.kernel import api
from tercet.kernel.build import library, multiplies_bfloat16
from tercet.kernel.flash_attention import flash_attention, supports_flash_attention
from tercet.nn.attention import attend, attend_by_hand

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled kernels")
needs_bfloat16 = pytest.mark.skipif(not multiplies_bfloat16(), reason="this CPU does not multiply bfloat16")
in_both = pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)], ids=["float32", "bfloat16"]
)


def apart(found: Tensor, exact: Tensor) -> float:
    """Return the relative error of the whole tensor; bfloat16 has eight bits."""
    return float((found.detach().double() - exact).norm() / exact.norm().clamp(min=1e-3))


@pytest.mark.slow
@in_both
@settings(max_examples=40)
@given(
    b=st.integers(1, 3),
    groups=st.integers(1, 3),
    each=st.integers(1, 3),
    t=st.one_of(st.integers(1, 70), st.sampled_from([96, 130, 200])),
    s=st.one_of(st.integers(1, 70), st.sampled_from([96, 130, 200])),
    wide=st.sampled_from([16, 32, 48, 64, 80, 128]),
    sees=st.sampled_from(["all", "what came before", "a mask", "a mask by rows", "a mask by queries"]),
    size=st.sampled_from([0.1, 1.0, 4.0]),
    by_tokens=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_flash_attention_matches_the_formula_forward_and_backward(
    b: int, groups: int, each: int, t: int, s: int, wide: int, sees: str, size: float, by_tokens: bool, seed: int,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    causal = sees == "what came before"
    t = s if causal else t
    shape = {"a mask": (b, 1, t, s), "a mask by rows": (b, 1, 1, s), "a mask by queries": (1, 1, t, s)}.get(sees)
    mask = None if shape is None else torch.rand(shape) < 0.6

    def some(heads: int, tokens: int) -> Tensor:
        x = (torch.randn(b, tokens, heads, wide) * size).to(dtype).transpose(1, 2)
        return (x if by_tokens else x.contiguous()).requires_grad_()

    q, k, v = some(groups * each, t), some(groups, s), some(groups, s)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = attend_by_hand(*exact, mask=mask, causal=causal)
    found = flash_attention(q, k, v, mask=mask, causal=causal)
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    near = 0.02 if dtype == torch.bfloat16 else 2e-5
    assert apart(found, expected.detach()) < near / 2
    slopes = torch.randn(found.shape).to(dtype)
    for one, other in zip(
        torch.autograd.grad(found, (q, k, v), slopes),
        torch.autograd.grad(expected, exact, slopes.double()),
        strict=True,
    ):
        assert (one.dtype, one.shape) == (dtype, other.shape)
        # Gradients of scores are differences. If weights are near one they vanish and only rounding remains.
        most = near * (float(other.norm()) + math.sqrt(other.numel()) * size)
        assert float((one.double() - other).norm()) < most


@in_both
def test_fully_masked_queries_get_zeros(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 20, 16).to(dtype).requires_grad_() for _ in range(3))
    mask = torch.ones(1, 1, 20, 20, dtype=torch.bool)
    mask[:, :, 7] = False
    found = flash_attention(q, k, v, mask=mask, causal=False)
    gradients = torch.autograd.grad(found, (q, k, v), torch.ones_like(found))
    assert not found[:, :, 7].any()
    assert not gradients[0][:, :, 7].any()
    assert all(one.isfinite().all() for one in (found, *gradients))


@in_both
@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_non_finite_inputs_reach_only_queries_that_see_them(broken: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 40, 16).to(dtype) for _ in range(3))
    k[0, 0, 30] = broken
    found = flash_attention(q, k, v, mask=None, causal=True)
    assert found[0, 0, :30].isfinite().all()
    assert found[0, 0, 30:].isnan().any()


@in_both
def test_threads_do_not_change_results(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 4, 100, 32).to(dtype).requires_grad_() for _ in range(3))
    found: list[tuple[Tensor, ...]] = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = flash_attention(q, k, v, mask=None, causal=True)
        found.append((y, *torch.autograd.grad(y, (q, k, v), torch.ones_like(y))))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@needs_bfloat16
def test_attend_uses_it_where_supported(use_from: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.kernel.flash_attention.MIN_WORK", 1)
    use_from()
    taken: list[bool] = []

    def spy(*tensors: Tensor, causal: bool) -> bool:
        taken.append(supports_flash_attention(*tensors, causal=causal))
        return taken[-1]

    monkeypatch.setattr(api, "supports_flash_attention", spy)
    threads = torch.get_num_threads()
    narrow = [torch.randn(threads, 2, 20, 16).bfloat16() for _ in range(3)]
    wide = [x.float() for x in narrow]
    by_hand = attend_by_hand(*(x.double() for x in narrow), causal=True)
    assert apart(attend(*narrow, causal=True), by_hand) < 0.01
    assert taken == [True]
    assert attend(*wide, causal=True).dtype == torch.float32
    assert taken == [True, False]
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(*wide, causal=True).dtype == torch.bfloat16
    assert taken == [True, False, True]
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(*(x.double() for x in narrow), causal=True).dtype == torch.float64
    assert taken.pop() is False
    attend(*narrow, causal=True, dropout=0.5)  # unsupported arguments are not passed to the kernel
    attend(*narrow, bias=torch.zeros(1, 2, 20, 20).bfloat16())
    assert len(taken) == 3
    attend(*(torch.randn(threads, 2, 20, 24).bfloat16() for _ in range(3)), causal=True)
    assert taken[3:] == [False]
    with pytest.raises(ValueError, match="include causality in the mask"):
        attend(*narrow, mask=torch.ones(1, 1, 20, 20, dtype=torch.bool), causal=True)


def test_attend_uses_it_in_float32_for_enough_work(
    use_from: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tercet.kernel.flash_attention.MIN_WORK", 1)
    q, k, v = (torch.randn(torch.get_num_threads(), 2, 20, 16).requires_grad_() for _ in range(3))
    expected = attend_by_hand(*(x.detach().double() for x in (q, k, v)), causal=True)
    for least, takes in ((q.shape[0] * 2 * 20 * 20, True), (q.shape[0] * 2 * 20 * 20 + 1, False)):
        use_from(flash_attention=least)
        found = attend(q, k, v, causal=True)
        assert ("tercet.flash" in type(found.grad_fn).__name__) == takes
        assert apart(found, expected) < 1e-6


@pytest.mark.slow
def test_compiled_module_has_it_in_one_graph(use_from: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.kernel.flash_attention.MIN_WORK", 1)
    use_from(flash_attention=0)
    met: list[str] = []

    def look(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        met.append(graph.print_readable(print_output=False))
        return graph

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention(q, k, v, mask=None, causal=True) if supports_flash_attention(q, k, v) else q

    q, k, v = (torch.randn(torch.get_num_threads(), 2, 20, 16).requires_grad_() for _ in range(3))
    torch.compiler.reset()
    found = torch.compile(attention, fullgraph=True, backend=look)(q, k, v)
    expected = attention(q, k, v)
    assert torch.equal(found, expected)
    slopes = torch.randn(found.shape)
    gradients = (torch.autograd.grad(y, (q, k, v), slopes) for y in (found, expected))
    assert all(torch.equal(one, other) for one, other in zip(*gradients, strict=True))
    assert met[0].count("tercet.flash_attention.default") == 1
