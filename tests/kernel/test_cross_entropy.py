"""The compiled cross-entropy is PyTorch's, in value and gradient, for any vocabulary, and writes nothing else."""

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tercet.kernel.build import library
from tercet.kernel.cross_entropy import MIN_WORK, cross_entropy_, supports_logits

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")


def written_out(
    scores: Tensor, targets: Tensor, *, smoothing: float, softcap: float | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return losses with and without smoothing, and the gradient of the smoothed sum, in float64."""
    scores = scores.double().requires_grad_()
    z = scores if softcap is None else softcap * torch.tanh(scores / softcap)
    totals, plains = (
        F.cross_entropy(z, targets, reduction="none", ignore_index=-100, label_smoothing=share)
        for share in (smoothing, 0.0)
    )
    totals.sum().backward()
    assert scores.grad is not None
    return totals.detach(), plains.detach(), scores.grad


@pytest.mark.slow
@settings(max_examples=50)
@given(
    n=st.integers(1, 5),
    v=st.sampled_from([1, 2, 7, 8, 9, 16, 130, 331]),
    gaps=st.integers(0, 9),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    smoothing=st.sampled_from([0.0, 0.1, 0.9]),
    softcap=st.sampled_from([None, 1.5, 15.0]),
    size=st.sampled_from([0.0, 0.1, 3.0, 40.0]),
    seed=st.integers(0, 2**32),
)
def test_kernel_matches_cross_entropy_written_out(
    n: int, v: int, gaps: int, dtype: torch.dtype, smoothing: float, softcap: float | None, size: float, seed: int
) -> None:
    torch.manual_seed(seed)
    table = (torch.randn(n, v + gaps) * size).to(dtype)
    targets = torch.randint(v, (n,)).masked_fill(torch.rand(n) < 0.3, -100)
    original, scores = table.clone(), table[:, :v]
    expected = written_out(scores, targets, smoothing=smoothing, softcap=softcap)
    options = {"smoothing": smoothing, "softcap": softcap}

    totals, plains = cross_entropy_(scores, targets, **options, needs_grad=False)
    assert torch.equal(table, original)  # without a requested gradient, none is written
    losses = cross_entropy_(scores, targets, **options, needs_grad=True)
    assert torch.equal(torch.stack(losses), torch.stack((totals, plains)))
    torch.testing.assert_close(totals.double(), expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(plains.double(), expected[1], rtol=1e-5, atol=1e-5)
    rounding = 2.0**-8 if dtype == torch.bfloat16 else 1e-5
    torch.testing.assert_close(scores.double(), expected[2], rtol=rounding, atol=2e-6)
    assert torch.equal(table[:, v:], original[:, v:])  # nothing is written outside the vocabulary


@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize("place", [3, 11])
def test_non_finite_scores_stay_in_their_row(value: float, place: int) -> None:
    scores, targets = torch.randn(3, 12), torch.tensor([1, 2, 3])
    scores[1, place] = value
    totals, plains = cross_entropy_(scores, targets, smoothing=0.0, softcap=None, needs_grad=True)
    for row_values in (totals, plains, scores.sum(1)):
        assert row_values.isfinite().tolist() == [True, False, True]


def test_bfloat16_gradient_is_rounded_to_nearest() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(64, 300).bfloat16(), torch.randint(300, (64,))
    exact = written_out(scores, targets, smoothing=0.1, softcap=None)[2].float()
    cross_entropy_(scores, targets, smoothing=0.1, softcap=None, needs_grad=True)
    assert (scores == exact.bfloat16()).float().mean() > 0.999  # truncation would change half of them


def test_threads_share_the_rows() -> None:
    torch.manual_seed(0)
    scores, targets = torch.randn(300, 1_000), torch.randint(1_000, (300,))
    results: list[Tensor] = []
    before = torch.get_num_threads()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            gradient = scores.clone()
            results.append(torch.stack(cross_entropy_(gradient, targets, smoothing=0.1, softcap=None, needs_grad=True)))
            results.append(gradient)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(result, results[i % 2]) for i, result in enumerate(results))


def test_supported_logits() -> None:
    rows = MIN_WORK // 1_024
    logits = torch.zeros(rows, 1_024)
    assert supports_logits(logits)
    assert supports_logits(logits.bfloat16())
    assert not supports_logits(logits[1:])  # too few rows to be worth compiling
    assert not supports_logits(logits.half())
    assert not supports_logits(torch.zeros(1_024, rows).T)
    assert not supports_logits(logits.requires_grad_())
