"""The compiled AdamW step is PyTorch's, and the gradient norm is right with any number of threads."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tercet.kernel import adam_, gradient_norm, supports_gradients
from tercet.kernel.adam import MIN_WORK
from tercet.kernel.build import library

pytestmark = pytest.mark.skipif(library() is None, reason="no C++ compiler")
SIZES = st.lists(st.sampled_from([1, 7, 16, 33, 1 << 14, (1 << 14) + 1, 50_000]), min_size=1, max_size=5)


def numbers(sizes: list[int], size: float = 1.0) -> list[Tensor]:
    return [torch.randn(count) * size for count in sizes]


@pytest.mark.slow
@given(
    sizes=SIZES, decay=st.sampled_from([0.0, 0.1]), size=st.sampled_from([1e-6, 1.0, 1e4]),
    scale=st.sampled_from([1.0, 0.3]), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_steps_match_pytorch(sizes: list[int], decay: float, size: float, scale: float, seed: int) -> None:
    torch.manual_seed(seed)
    ours = numbers(sizes)
    theirs = [p.double() for p in ours]
    means, squares = ([torch.zeros_like(p) for p in ours] for _ in range(2))
    steps = [torch.zeros(()) for _ in ours]
    optimizer = torch.optim.AdamW(theirs, lr=0.01, betas=(0.9, 0.95), eps=1e-8, weight_decay=decay)
    for _ in range(3):
        gradients = numbers(sizes, size)
        for p, gradient in zip(theirs, gradients, strict=True):
            p.grad = gradient.double() * scale
        optimizer.step()
        adam_(
            ours, gradients, means, squares, steps,
            settings=[(0.01, 0.9, 0.95, 1e-8, decay)] * len(ours), scale=scale,
        )  # fmt: skip
    for p, expected in zip(ours, theirs, strict=True):
        torch.testing.assert_close(p.double(), expected, rtol=1e-5, atol=1e-6)
    for p, step, mean, square in zip(theirs, steps, means, squares, strict=True):
        state = optimizer.state[p]
        assert step == state["step"] == 3
        torch.testing.assert_close(mean.double(), state["exp_avg"], rtol=1e-4, atol=1e-6 * size)
        torch.testing.assert_close(square.double(), state["exp_avg_sq"], rtol=1e-4, atol=1e-7 * size**2)


@given(sizes=SIZES, size=st.sampled_from([1e-8, 1.0, 1e10]), seed=st.integers(0, 2**32))
def test_norm_is_that_of_all_tensors(sizes: list[int], size: float, seed: int) -> None:
    torch.manual_seed(seed)
    gradients = numbers(sizes, size)
    expected = torch.cat(gradients).double().norm()
    torch.testing.assert_close(gradient_norm(gradients).double(), expected, rtol=1e-5, atol=0.0)


def test_threads_do_not_change_results(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients = numbers([100_003, 5, 40_000])
    results = list[tuple[float, list[Tensor]]]()
    for threads in (1, 2, 3):
        monkeypatch.setattr(torch, "get_num_threads", lambda threads=threads: threads)
        ours = [x.clone() for x in gradients]
        means, squares = ([torch.zeros_like(x) for x in gradients] for _ in range(2))
        steps = [torch.zeros(()) for _ in gradients]
        adam_(ours, gradients, means, squares, steps, settings=[(0.1, 0.9, 0.99, 1e-8, 0.1)] * len(ours))
        results.append((float(gradient_norm(gradients)), ours))
    assert results[0][0] == results[1][0] == results[2][0]
    for _, parameters in results[1:]:
        assert all(torch.equal(x, y) for x, y in zip(parameters, results[0][1], strict=True))


def test_nan_and_infinity_appear_in_the_norm() -> None:
    for value in (torch.nan, torch.inf):
        gradients = numbers([20, 30])
        gradients[1][29] = value
        assert not gradient_norm(gradients).isfinite()


def test_each_parameter_has_its_own_settings() -> None:
    ours = [torch.ones(3), torch.ones(5)]
    zeros, means, squares = ([torch.zeros(3), torch.zeros(5)] for _ in range(3))
    settings = [(0.1, 0.9, 0.99, 1e-8, 0.0), (0.5, 0.9, 0.99, 1e-8, 0.2)]
    adam_(ours, zeros, means, squares, [torch.zeros(()) for _ in ours], settings=settings)
    assert torch.equal(ours[0], torch.ones(3))  # no gradient, no decay
    torch.testing.assert_close(ours[1], torch.full((5,), 1 - 0.5 * 0.2))


def test_autograd_detects_in_place_changes_of_parameters() -> None:
    p = torch.nn.Parameter(torch.ones(4))
    loss = (p * p).sum()  # autograd saves p for the square
    mean, square = torch.zeros(4), torch.zeros(4)
    adam_([p], [torch.ones(4)], [mean], [square], [torch.zeros(())], settings=[(0.1, 0.9, 0.99, 1e-8, 0.0)])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_supported_parameters_use_the_kernel() -> None:
    def with_gradients(*tensors: Tensor) -> list[Tensor]:
        parameters = [x.requires_grad_() for x in tensors]
        for p in parameters:
            p.grad = torch.zeros_like(p)
        return parameters

    large = torch.zeros(MIN_WORK)
    assert supports_gradients(with_gradients(large, torch.zeros(3, 4)))
    assert supports_gradients(with_gradients(torch.nn.Parameter(large)))
    assert not supports_gradients([])
    assert not supports_gradients(with_gradients(torch.zeros(3, 4)))
    for unsupported in (torch.zeros(4, 3).mT, torch.zeros(4, dtype=torch.float64), torch.zeros(4, device="meta")):
        assert not supports_gradients(with_gradients(large, unsupported))
    mismatched = with_gradients(large, torch.zeros(4, 3))
    mismatched[1].grad = torch.zeros(3, 4).mT
    assert not supports_gradients(mismatched)
    mismatched[1].grad = torch.zeros(4, 3).to_sparse()
    assert not supports_gradients(mismatched)
    mismatched[1].grad = None
    assert not supports_gradients(mismatched)


@given(
    size=st.integers(1, 200), first=st.integers(0, 40), decay=st.sampled_from([0.0, 0.1]),
    scale=st.sampled_from([1.0, 0.3]), seed=st.integers(0, 2**32),
)  # fmt: skip
def test_step_of_a_piece_is_bitwise_identical_to_the_whole(
    size: int, first: int, decay: float, scale: float, seed: int
) -> None:
    """The piece may start and end within a vector register. Ranks that own a piece rely on this."""
    torch.manual_seed(seed)
    whole = [*numbers([size]), *numbers([size]), *numbers([size]), torch.rand(size)]
    piece = [x[first:].clone() for x in whole]
    for p, gradient, mean, square in (whole, piece):
        adam_(
            [p], [gradient], [mean], [square], [torch.tensor(3.0)],
            settings=[(0.01, 0.9, 0.95, 1e-8, decay)], scale=scale,
        )  # fmt: skip
    for x, y in zip(whole, piece, strict=True):
        assert torch.equal(x[first:], y)
