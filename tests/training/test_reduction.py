"""The gradient sum of a step is one binary tree, however ranks share its branches, and the norm is one number."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from machines import run_ranks
from torch import Tensor

from tercet.training.distributed.reduction import Tree
from tercet.training.optim.exact_norm import exact_norm

RANKS = Path(__file__).with_name("rank_program.py")


def leaves(count: int, seed: int) -> list[Tensor]:
    """Return tensors of such different magnitudes that each order of addition gives another sum."""
    rng = torch.Generator().manual_seed(seed)
    return [torch.randn(5, generator=rng) * 10 ** torch.randn(5, generator=rng) for _ in range(count)]


def sum_by_definition(tensors: list[Tensor]) -> Tensor:
    if len(tensors) % 2:
        total = tensors[0].clone()
        for x in tensors[1:]:
            total = total + x
        return total
    half = len(tensors) // 2
    return sum_by_definition(tensors[:half]) + sum_by_definition(tensors[half:])


def branch(tensors: list[Tensor]) -> Tensor:
    tree = Tree(len(tensors))
    sums = [tree.add([x.clone()]) for x in tensors]
    assert sums[:-1] == [None] * (len(tensors) - 1)
    assert sums[-1] is not None
    return sums[-1][0]


@given(odd=st.sampled_from([1, 3, 5, 7]), height=st.integers(0, 4), seed=st.integers(0, 999))
def test_a_sum_is_that_of_its_two_halves(odd: int, height: int, seed: int) -> None:
    """One rank may compute the whole sum, or each rank a branch."""
    tensors = leaves(odd << height, seed)
    expected = sum_by_definition(tensors)
    assert torch.equal(branch(tensors), expected)
    for digits in range(height + 1):
        size = len(tensors) >> digits
        branches = [branch(tensors[first : first + size]) for first in range(0, len(tensors), size)]
        assert torch.equal(sum_by_definition(branches), expected)


def test_orders_differ() -> None:
    """Otherwise the tests above would pass for any order."""
    tensors = leaves(8, 0)
    assert not torch.equal(branch(tensors), torch.stack(tensors).flip(0).sum(0))


def test_extra_micro_batch_is_detected() -> None:
    tree = Tree(1)
    tree.add([torch.ones(1)])
    with pytest.raises(RuntimeError, match="gradients of 2 micro-batches, but a step has 1"):
        tree.add([torch.ones(1)])


@given(
    shapes=st.lists(st.sampled_from([(1,), (7,), (3, 5), (16, 9), (2, 3, 4)]), min_size=1, max_size=5),
    size=st.sampled_from([1e-20, 1.0, 1e15]),
    seed=st.integers(0, 999),
)
def test_the_norm_is_the_norm(shapes: list[tuple[int, ...]], size: float, seed: int) -> None:
    rng = torch.Generator().manual_seed(seed)
    tensors = [torch.randn(shape, generator=rng) * size for shape in shapes]
    expected = torch.cat([x.flatten() for x in tensors]).double().norm()
    torch.testing.assert_close(exact_norm(tensors).double(), expected, rtol=1e-6, atol=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("world", [pytest.param(2, marks=pytest.mark.exhaustive), 4])
def test_ranks_add_up_in_the_order_of_the_tree(world: int, tmp_path: Path) -> None:
    """Sums, reduce-scatters and the norm of shards over gloo are compared with those of one process."""
    for result in run_ranks(RANKS, tmp_path, world):
        for name, (actual, expected) in result.items():
            assert torch.equal(actual, expected), name
