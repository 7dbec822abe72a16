"""The compiled masked softmax matches the formula, forward and backward, with every mask."""

import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.kernel.build import library, supports_elements
from tercet.kernel.masked_softmax import MIN_WORK, masked_softmax
from tercet.nn import attend

pytestmark = [pytest.mark.threads, pytest.mark.skipif(library() is None, reason="no C++ compiler")]


@pytest.fixture(autouse=True, scope="module")
def _use_kernel() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("tercet.kernel.masked_softmax.MIN_WORK", 1)
        yield


def written_out(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
    """Compute the softmax in float64."""
    mask = torch.ones(scores.shape[-2:], dtype=torch.bool).tril() if causal else mask
    scores = scores.double()
    if mask is None:
        return scores.softmax(-1)
    return scores.masked_fill(~mask, -math.inf).softmax(-1).nan_to_num(0.0)


@pytest.mark.slow
@settings(max_examples=50)
@given(
    b=st.integers(1, 3),
    h=st.integers(1, 3),
    t=st.integers(1, 18),
    s=st.sampled_from([1, 3, 7, 8, 9, 16, 31, 40]),
    mask_kind=st.sampled_from(["all", "what came before", "a mask", "a mask by rows", "a mask by queries"]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    size=st.sampled_from([0.0, 1.0, 50.0]),
    strided=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_kernel_matches_the_softmax_of_visible_scores(
    b: int, h: int, t: int, s: int, mask_kind: str, dtype: torch.dtype, size: float, strided: bool, seed: int
) -> None:
    torch.manual_seed(seed)
    causal = mask_kind == "what came before"
    t = s if causal else t
    scores = (torch.randn(h, b, t, s) * size).to(dtype).transpose(0, 1)
    scores = (scores if strided else scores.contiguous()).requires_grad_()
    shape = {"a mask": (b, 1, t, s), "a mask by rows": (b, 1, 1, s), "a mask by queries": (1, 1, t, s)}.get(mask_kind)
    mask = None if shape is None else torch.rand(shape) < 0.6
    exact = scores.detach().clone().double().requires_grad_()
    expected = written_out(exact, mask, causal)

    weights = masked_softmax(scores, mask=mask, causal=causal)
    assert "tercet" in type(weights.grad_fn).__name__
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(weights.double(), expected.detach(), rtol=rounding, atol=1e-7)
    assert not weights[expected == 0].any()  # exactly zero
    grad_output = torch.randn(weights.shape).to(dtype)
    (found,) = torch.autograd.grad(weights, scores, grad_output)
    (gradient,) = torch.autograd.grad(expected, exact, grad_output.double())
    torch.testing.assert_close(found.double(), gradient, rtol=4 * rounding, atol=4 * rounding)
    assert (found.dtype, found.shape) == (dtype, scores.shape)


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [0, 9])
def test_non_finite_scores_reach_only_rows_that_see_them(value: float, place: int) -> None:
    scores = torch.randn(1, 1, 10, 10)
    scores[0, 0, 9, place] = value
    scores[0, 0, 3, 7] = value  # masked, since it is a later position
    weights = masked_softmax(scores, mask=None, causal=True)
    assert weights.sum(-1).isfinite().flatten().tolist() == [True] * 9 + [False]


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("mask_kind", ["causal", "mask", "all"])
def test_attention_is_the_same_with_and_without_the_kernel(
    autocast: bool, mask_kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, 11, 8, requires_grad=True) for _ in range(3))
    mask = torch.rand(2, 1, 11, 11) < 0.7 if mask_kind == "mask" else None
    results: list[tuple[Tensor, ...]] = []
    for min_work in (1, 10**9):
        monkeypatch.setattr("tercet.kernel.masked_softmax.MIN_WORK", min_work)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            out = attend(q, k, v, mask=mask, causal=mask_kind == "causal")
        gradients = torch.autograd.grad(out.float().square().sum(), (q, k, v))
        results.append((out.detach(), *gradients))
    for kernel_result, plain_result in zip(*results, strict=True):
        assert float((kernel_result.float() - plain_result.float()).norm() / plain_result.float().norm()) < (
            0.01 if autocast else 1e-5
        )


def test_supported_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = torch.zeros(4, 16, 128, 128)
    assert supports_elements(scores, MIN_WORK)
    assert supports_elements(scores.bfloat16(), MIN_WORK)
    assert not supports_elements(scores[1:], MIN_WORK)  # too few rows to be worth compiling
    assert not supports_elements(scores.half(), MIN_WORK)
    weights = masked_softmax(scores, mask=None, causal=True)
    monkeypatch.setattr("tercet.kernel.masked_softmax.MIN_WORK", scores.numel() + 1)
    torch.testing.assert_close(weights, masked_softmax(scores, mask=None, causal=True))


def test_second_derivative_is_rejected() -> None:
    scores = torch.randn(1, 1, 4, 4, requires_grad=True)
    weights = masked_softmax(scores, mask=None, causal=False)
    (gradient,) = torch.autograd.grad(weights.square().sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()
