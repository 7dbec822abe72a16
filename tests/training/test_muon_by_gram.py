"""Muon's iteration by Gram matrices equals the plain iteration with fewer products, for any spectrum."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from tercet.training.optim import muon
from tercet.training.optim.muon import COEFFICIENTS, orthogonalize

CLOSE = 1e-2  # in the spectral norm, with singular values that end between 0.7 and 1.2; the worst measured is 2e-3


def plain_iteration(matrix: Tensor, iterations: int) -> Tensor:
    """Return the result of the published iteration, in float64."""
    a, b, c = COEFFICIENTS
    x = matrix.double()
    x = x.T if len(x) > x.shape[1] else x
    x = x / (x.norm() + 1e-7)
    for _ in range(iterations):
        gram = x @ x.T
        x = a * x + b * gram @ x + c * gram @ gram @ x
    return x.T if matrix.shape[0] > matrix.shape[1] else x


def matrix_with_spectrum(rows: int, columns: int, values: Tensor, *, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    left, right = (torch.linalg.qr(torch.randn(n, n, generator=generator))[0] for n in (rows, columns))
    return left[:, : len(values)] @ torch.diag(values) @ right[:, : len(values)].T


def products(rows: int, columns: int, iterations: int) -> int:
    with FlopCounterMode(display=False) as counter:
        orthogonalize(torch.ones(1, rows, columns), iterations)
    return counter.get_total_flops()


@given(
    rows=st.integers(1, 13),
    columns=st.integers(1, 60),
    tall=st.booleans(),
    iterations=st.integers(0, 6),
    smallest=st.sampled_from([1.0, 1e-2, 1e-4, 1e-8, 0.0]),
    rank=st.integers(1, 13),
    size=st.sampled_from([1e-3, 1.0, 1e4]),
    seed=st.integers(0, 9),
)
def test_it_is_the_plain_iteration(
    rows: int, columns: int, tall: bool, iterations: int, smallest: float, rank: int, size: float, seed: int
) -> None:
    count = min(rank, rows, columns)
    values = size * torch.linspace(1.0, smallest, count)
    matrix = matrix_with_spectrum(rows, columns, values, seed=seed)
    matrix = matrix.T.contiguous() if tall else matrix
    result = orthogonalize(matrix[None], iterations)[0]
    assert torch.linalg.matrix_norm(result.double() - plain_iteration(matrix, iterations), 2) < CLOSE


@pytest.mark.parametrize("shape", [(96, 389), (389, 96), (96, 97)])
@pytest.mark.parametrize("smallest", [1e-2, 1e-5, 1e-9])
def test_at_the_sizes_of_a_model(shape: tuple[int, int], smallest: float) -> None:
    values = torch.logspace(0, torch.tensor(smallest).log10().item(), min(shape))
    matrix = matrix_with_spectrum(*shape, values, seed=1)
    result = orthogonalize(matrix[None])[0]
    assert torch.linalg.matrix_norm(result.double() - plain_iteration(matrix, 5), 2) < CLOSE


def test_many_iterations_need_a_recomputed_gram_matrix(monkeypatch: pytest.MonkeyPatch) -> None:
    matrix = matrix_with_spectrum(11, 60, torch.tensor([1.0, 0.5, 0.3]), seed=3)
    plain = plain_iteration(matrix, 10)

    def distance() -> float:
        return float((orthogonalize(matrix[None], 10)[0].double() - plain).norm().nan_to_num(torch.inf))

    assert distance() < 0.02  # the zeros have grown 200,000-fold
    monkeypatch.setattr(muon, "MAX_GRAM_ITERATIONS", 10)
    assert distance() > 1


@pytest.mark.parametrize("shape", [(11, 60), (60, 11), (24, 24)])
def test_a_step_within_autocast_is_as_exact(shape: tuple[int, int]) -> None:
    """If a trainer runs whole steps within autocast, rounding the products to bfloat16 would prevent learning."""
    matrix = matrix_with_spectrum(*shape, torch.logspace(0, -4, min(shape)), seed=2)[None]
    with torch.autocast("cpu", torch.bfloat16):
        result = orthogonalize(matrix)
    torch.testing.assert_close(result, orthogonalize(matrix), rtol=0, atol=0)


@settings(max_examples=30)
@given(rows=st.integers(1, 40), columns=st.integers(1, 200), iterations=st.integers(1, 5))
def test_it_never_takes_more_products(rows: int, columns: int, iterations: int) -> None:
    short, long = sorted((rows, columns))
    plain = iterations * (4 * short**2 * long + 2 * short**3)
    assert products(rows, columns, iterations) <= plain


def test_long_matrices_need_half_the_products() -> None:
    plain = 5 * (4 * 24**2 * 96 + 2 * 24**3)
    assert products(24, 96, 5) == products(96, 24, 5) < 0.56 * plain
    assert products(24, 24, 5) == 5 * 6 * 24**3
