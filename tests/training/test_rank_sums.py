"""Sums over ranks, which are threads of this process with simulated collectives of four lines each."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from tercet.models import build, model_spec
from tercet.training.distributed.reduction import (
    MeanReduction,
    ShardedExactReduction,
    Tree,
    all_reduce_in_order,
    reduce_scatter_in_order,
    sum_in_order,
)
from tercet.training.optim.exact_norm import exact_norm

SHAPES = [(7, 3), (5,), (1, 2), (6, 4)]
Work = Callable[[int], Any]


@pytest.fixture
def run_ranks(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, Work], list[Any]]:
    """Return a function that calls `work` once per rank, in threads that synchronize at each exchange.

    The results are in the order of the ranks.
    """

    def run(world: int, work: Work) -> list[Any]:
        local, slots, barrier = threading.local(), [torch.empty(0)] * world, threading.Barrier(world, timeout=20)

        def exchange(tensor: Tensor) -> list[Tensor]:
            slots[local.rank] = tensor.clone()
            barrier.wait()
            gathered = list(slots)
            barrier.wait()
            return gathered

        def all_reduce(x: Tensor, **_: Any) -> None:
            x.copy_(torch.stack(exchange(x)).sum(0))

        def all_gather(output: Tensor, tensor: Tensor, **_: Any) -> None:
            output.copy_(torch.cat(exchange(tensor)).view_as(output))

        def all_to_all(output: Tensor, tensor: Tensor, **_: Any) -> None:
            output.copy_(torch.cat([x.chunk(world)[local.rank] for x in exchange(tensor)]))

        def start(rank: int) -> Any:
            local.rank = rank
            try:
                return work(rank)
            except BaseException:
                barrier.abort()
                raise

        gather = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"  # PyTorch 2.11
        fakes = {"get_world_size": lambda *_: world, "get_rank": lambda *_: local.rank, "all_reduce": all_reduce,
                 gather: all_gather, "all_to_all_single": all_to_all}  # fmt: skip
        for name, fake in fakes.items():
            monkeypatch.setattr(dist, name, fake)
        with ThreadPoolExecutor(world) as pool:
            futures = [pool.submit(start, rank) for rank in range(world)]
        for future in futures:  # raise the error that broke the barrier, not those of the waiting ranks
            with suppress(threading.BrokenBarrierError):
                future.result()
        return [future.result() for future in futures]

    return run


def micro_batches(count: int) -> list[list[Tensor]]:
    """Return gradients of such different magnitudes that each order of addition gives another sum."""
    rng = torch.Generator().manual_seed(3)
    size = lambda shape: 10 ** torch.randn(shape, generator=rng)  # noqa: E731
    return [[torch.randn(shape, generator=rng) * size(shape) for shape in SHAPES] for _ in range(count)]


def tree_sum(tensors: list[list[Tensor]]) -> list[Tensor]:
    tree = Tree(len(tensors))
    total = [tree.add([x.clone() for x in leaves]) for leaves in tensors][-1]
    assert total is not None
    return total


@pytest.mark.parametrize("world", [2, 4, 8])
def test_gradients_of_ranks_add_up_in_the_order_of_the_tree(world: int, run_ranks: Any) -> None:
    tensors = micro_batches(3 * world)
    whole = tree_sum(tensors)

    def work(rank: int) -> tuple[list[Tensor], Tensor]:
        rank_tensors = tensors[3 * rank : 3 * rank + 3]
        gradients = tree_sum(rank_tensors)
        all_reduce_in_order(gradients)
        return gradients, sum_in_order([x[1] for x in rank_tensors], world=world)

    for gradients, loss in run_ranks(world, work):
        assert all(map(torch.equal, gradients, whole))
        assert torch.equal(loss, whole[1])
    sequential_sums = [torch.stack(list(parts)).cumsum(0)[-1] for parts in zip(*tensors, strict=True)]
    assert not all(map(torch.equal, sequential_sums, whole))  # otherwise any order would pass


def test_three_ranks_get_their_shard_of_the_sum(run_ranks: Any) -> None:
    branches = torch.arange(18.0).view(3, 6) ** 2

    def work(rank: int) -> Tensor:
        reduce_scatter_in_order(piece := torch.empty(2), branches[rank].clone())
        return piece

    assert torch.equal(torch.cat(run_ranks(3, work)), branches.sum(0))


class Piece:
    """The interface of a DTensor that `exact_norm` uses, sharded by rows as `torch.chunk` does."""

    full_tensor = None

    def __init__(self, whole: Tensor, rank: int, world: int) -> None:
        self.whole, pieces = whole, whole.chunk(world)
        self.local_piece = pieces[rank] if rank < len(pieces) else whole[:0]
        self.device_mesh = SimpleNamespace(
            size=lambda: world, get_local_rank=lambda: rank, get_group=lambda: None, get_coordinate=lambda: [rank]
        )

    def __len__(self) -> int:
        return len(self.whole)

    def to_local(self) -> Tensor:
        return self.local_piece


@pytest.mark.parametrize("world", [2, 4])
def test_the_norm_of_uneven_pieces_is_that_of_whole_gradients(world: int, run_ranks: Any) -> None:
    """Ranks have different numbers of 7, 5 and 1 rows, and some have none."""
    (tensors,) = micro_batches(1)
    norm = exact_norm(tensors)
    torch.testing.assert_close(norm, torch.cat([x.flatten() for x in tensors]).norm())
    pieces: Any = [[Piece(x, rank, world) for x in tensors] for rank in range(world)]
    assert all(torch.equal(rank_norm, norm) for rank_norm in run_ranks(world, lambda rank: exact_norm(pieces[rank])))


def test_the_mean_over_ranks_is_that_of_all_targets(run_ranks: Any) -> None:
    """Ranks have different numbers of targets, and DDP divides the sum of their gradients by the number of ranks."""
    rows = [torch.arange(1.0, 4.0), torch.tensor([10.0]), torch.tensor([2.0, 5.0])]

    def work(rank: int) -> tuple[Tensor, Tensor]:
        weight = nn.Parameter(torch.tensor(3.0))
        reduction = MeanReduction(nn.Module(), 3)
        total = (weight * rows[rank]).sum()
        targets = reduction.sum([torch.tensor(1)] * len(rows[rank]))
        share = total * (reduction.scale / targets)
        with reduction.micro_batch(share, 0, 1):
            share.backward()
        assert weight.grad is not None
        dist.all_reduce(weight.grad)
        return weight.grad / 3, targets

    for gradient, targets in run_ranks(3, work):
        assert targets == 6
        torch.testing.assert_close(gradient, torch.cat(rows).mean())


def test_only_the_last_micro_batch_of_a_sharded_exact_step_leaves_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """The reduce-scatter trees contain these branches; gradients left by an earlier pass would be added twice."""
    stack = {"d_model": 8, "n_layers": 1, "n_heads": 1}
    model = build(model_spec({"preset": "gpt2", "vocab_size": 5, "max_len": 3, "stack": stack}))
    for name in ("set_custom_reduce_scatter", "set_gradient_divide_factor", "set_requires_gradient_sync"):
        monkeypatch.setattr(nn.Module, name, lambda *_, **__: None, raising=False)
    reduction = ShardedExactReduction(model, reshard=True)
    batches = [torch.tensor([[0, 1, 2]]), torch.tensor([[3, 3]]), torch.tensor([[4]])]
    for place, tokens in enumerate(batches):
        loss = model(tokens).logsumexp(-1).sum()
        with reduction.micro_batch(loss, place, len(batches)):
            loss.backward()
        assert all((p.grad is None) == (place < 2) for p in model.parameters())
    assert all(scatter.tree is not None and scatter.tree.count == 3 for scatter in reduction.scatters)
    last = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    model(batches[-1]).logsumexp(-1).sum().backward()
    assert all(torch.equal(p.grad, last[name]) for name, p in model.named_parameters())
