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
both_dtypes = pytest.mark.parametrize(
    "dtype", [torch.float32, pytest.param(torch.bfloat16, marks=needs_bfloat16)], ids=["float32", "bfloat16"]
)


def relative_error(actual: Tensor, exact: Tensor) -> float:
    """Return the relative error of the whole tensor; bfloat16 has eight bits."""
    return float((actual.detach().double() - exact).norm() / exact.norm().clamp(min=1e-3))


@pytest.mark.slow
@both_dtypes
@settings(max_examples=40)
@given(
    b=st.integers(1, 3),
    groups=st.integers(1, 3),
    queries_per_head=st.integers(1, 3),
    t=st.one_of(st.integers(1, 70), st.sampled_from([96, 130, 200])),
    s=st.one_of(st.integers(1, 70), st.sampled_from([96, 130, 200])),
    width=st.sampled_from([16, 32, 48, 64, 80, 128]),
    mask_kind=st.sampled_from(["all", "what came before", "a mask", "a mask by rows", "a mask by queries"]),
    size=st.sampled_from([0.1, 1.0, 4.0]),
    tokens_first=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_flash_attention_matches_the_formula_forward_and_backward(
    b: int, groups: int, queries_per_head: int, t: int, s: int, width: int, mask_kind: str, size: float,
    tokens_first: bool, seed: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    torch.manual_seed(seed)
    causal = mask_kind == "what came before"
    t = s if causal else t
    shape = {"a mask": (b, 1, t, s), "a mask by rows": (b, 1, 1, s), "a mask by queries": (1, 1, t, s)}.get(mask_kind)
    mask = None if shape is None else torch.rand(shape) < 0.6

    def random_heads(heads: int, tokens: int) -> Tensor:
        x = (torch.randn(b, tokens, heads, width) * size).to(dtype).transpose(1, 2)
        return (x if tokens_first else x.contiguous()).requires_grad_()

    q, k, v = random_heads(groups * queries_per_head, t), random_heads(groups, s), random_heads(groups, s)
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    expected = attend_by_hand(*exact, mask=mask, causal=causal)
    found = flash_attention(q, k, v, mask=mask, causal=causal)
    assert (found.dtype, found.shape) == (dtype, expected.shape)
    near = 0.02 if dtype == torch.bfloat16 else 2e-5
    assert relative_error(found, expected.detach()) < near / 2
    grad_output = torch.randn(found.shape).to(dtype)
    for gradient, reference in zip(
        torch.autograd.grad(found, (q, k, v), grad_output),
        torch.autograd.grad(expected, exact, grad_output.double()),
        strict=True,
    ):
        assert (gradient.dtype, gradient.shape) == (dtype, reference.shape)
        # Gradients of scores are differences. If weights are near one they vanish and only rounding remains.
        tolerance = near * (float(reference.norm()) + math.sqrt(reference.numel()) * size)
        assert float((gradient.double() - reference).norm()) < tolerance


@both_dtypes
def test_fully_masked_queries_get_zeros(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 2, 20, 16).to(dtype).requires_grad_() for _ in range(3))
    mask = torch.ones(1, 1, 20, 20, dtype=torch.bool)
    mask[:, :, 7] = False
    output = flash_attention(q, k, v, mask=mask, causal=False)
    gradients = torch.autograd.grad(output, (q, k, v), torch.ones_like(output))
    assert not output[:, :, 7].any()
    assert not gradients[0][:, :, 7].any()
    assert all(tensor.isfinite().all() for tensor in (output, *gradients))


@both_dtypes
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_non_finite_inputs_reach_only_queries_that_see_them(value: float, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 40, 16).to(dtype) for _ in range(3))
    k[0, 0, 30] = value
    output = flash_attention(q, k, v, mask=None, causal=True)
    assert output[0, 0, :30].isfinite().all()
    assert output[0, 0, 30:].isnan().any()


@both_dtypes
def test_threads_do_not_change_results(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 4, 100, 32).to(dtype).requires_grad_() for _ in range(3))
    results: list[tuple[Tensor, ...]] = []
    before = torch.get_num_threads()
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        y = flash_attention(q, k, v, mask=None, causal=True)
        results.append((y, *torch.autograd.grad(y, (q, k, v), torch.ones_like(y))))
    torch.set_num_threads(before)
    assert all(torch.equal(a, b) for result in results[1:] for a, b in zip(results[0], result, strict=True))


@needs_bfloat16
def test_attend_uses_it_where_supported(use_from: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.kernel.flash_attention.MIN_WORK", 1)
    use_from()
    decisions: list[bool] = []

    def spy(*tensors: Tensor, causal: bool) -> bool:
        decisions.append(supports_flash_attention(*tensors, causal=causal))
        return decisions[-1]

    monkeypatch.setattr(api, "supports_flash_attention", spy)
    threads = torch.get_num_threads()
    narrow = [torch.randn(threads, 2, 20, 16).bfloat16() for _ in range(3)]
    float_tensors = [x.float() for x in narrow]
    by_hand = attend_by_hand(*(x.double() for x in narrow), causal=True)
    assert relative_error(attend(*narrow, causal=True), by_hand) < 0.01
    assert decisions == [True]
    assert attend(*float_tensors, causal=True).dtype == torch.float32
    assert decisions == [True, False]
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(*float_tensors, causal=True).dtype == torch.bfloat16
    assert decisions == [True, False, True]
    with torch.autocast("cpu", torch.bfloat16):
        assert attend(*(x.double() for x in narrow), causal=True).dtype == torch.float64
    assert decisions.pop() is False
    attend(*narrow, causal=True, dropout=0.5)  # unsupported arguments are not passed to the kernel
    attend(*narrow, bias=torch.zeros(1, 2, 20, 20).bfloat16())
    assert len(decisions) == 3
    attend(*(torch.randn(threads, 2, 20, 24).bfloat16() for _ in range(3)), causal=True)
    assert decisions[3:] == [False]
    with pytest.raises(ValueError, match="include causality in the mask"):
        attend(*narrow, mask=torch.ones(1, 1, 20, 20, dtype=torch.bool), causal=True)


def test_attend_uses_it_in_float32_for_enough_work(
    use_from: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tercet.kernel.flash_attention.MIN_WORK", 1)
    q, k, v = (torch.randn(torch.get_num_threads(), 2, 20, 16).requires_grad_() for _ in range(3))
    expected = attend_by_hand(*(x.detach().double() for x in (q, k, v)), causal=True)
    for min_work, uses_kernel in ((q.shape[0] * 2 * 20 * 20, True), (q.shape[0] * 2 * 20 * 20 + 1, False)):
        use_from(flash_attention=min_work)
        found = attend(q, k, v, causal=True)
        assert ("tercet.flash" in type(found.grad_fn).__name__) == uses_kernel
        assert relative_error(found, expected) < 1e-6


@pytest.mark.slow
def test_compiled_module_has_it_in_one_graph(use_from: Callable[..., None], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.kernel.flash_attention.MIN_WORK", 1)
    use_from(flash_attention=0)
    graphs: list[str] = []

    def record_graph(graph: torch.fx.GraphModule, _: object) -> torch.fx.GraphModule:
        graphs.append(graph.print_readable(print_output=False))
        return graph

    def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return flash_attention(q, k, v, mask=None, causal=True) if supports_flash_attention(q, k, v) else q

    q, k, v = (torch.randn(torch.get_num_threads(), 2, 20, 16).requires_grad_() for _ in range(3))
    torch.compiler.reset()
    found = torch.compile(attention, fullgraph=True, backend=record_graph)(q, k, v)
    expected = attention(q, k, v)
    assert torch.equal(found, expected)
    grad_output = torch.randn(found.shape)
    gradients = (torch.autograd.grad(y, (q, k, v), grad_output) for y in (found, expected))
    assert all(torch.equal(gradient, reference) for gradient, reference in zip(*gradients, strict=True))
    assert graphs[0].count("tercet.flash_attention.default") == 1
