"""Reduction of the gradients of a step over micro-batches and ranks.

    mean    (default) each rank adds the gradients of its micro-batches in order, and the strategy adds those of the
            ranks; the order of the sum depends on the number of ranks
    exact   (`training.exact`) the sum over all micro-batches is a binary tree, whose order of additions does not depend
            on the number of ranks

In the tree, a step of M = q 2^k micro-batches, with odd q, consists of 2^k chunks of q micro-batches. The micro-batches
of a chunk are added one by one, then the chunks in pairs, these sums in pairs, and so on up to the sum of the two
halves. Each of R ranks, a power of two, computes M / R consecutive micro-batches, which are a branch of the tree. The
branches are joined by a reduce-scatter, in which each rank receives its part of all branches and adds the parts in the
order of the tree. As in a ring all-reduce, every rank sends 4 N (R - 1) / R bytes for N weights, and as many again in
the all-gather that follows if weights are not sharded.
"""

from collections.abc import Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, Protocol, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from tercet.models import AnyModel, blocks_of
from tercet.training.recipe.specs import TrainingSpec

MAX_CHUNK_NUMEL = 1 << 23  # elements in one message: 32 MiB of float32


class Reduction(Protocol):
    """Sums gradients and values over micro-batches and ranks.

    Attributes:
        scale: Factor by which the loss of a micro-batch must be multiplied before its backward pass.
    """

    scale: float

    def micro_batch(self, loss: Tensor, index: int, count: int) -> AbstractContextManager[None]:
        """Wrap the backward pass of one micro-batch of this rank.

        After the last micro-batch, the parameters' `grad` holds the gradients of the step.

        Args:
            loss: Loss of the micro-batch, shape ().
            index: Index of the micro-batch on this rank, counted from 0.
            count: Number of micro-batches of this rank.
        """
        ...

    def sum(self, values: Sequence[Tensor]) -> Tensor:
        """Return the sum of values over the micro-batches of all ranks.

        Args:
            values: One tensor per micro-batch of this rank, all of the same shape.
        """
        ...


def make_reduction(model: AnyModel, wrapped_model: nn.Module, spec: TrainingSpec) -> Reduction:
    """Return the reduction for the strategy and `exact` of the settings.

    Args:
        model: Model to train.
        wrapped_model: Training module as wrapped by Lightning's strategy, for example in DistributedDataParallel.
        spec: Training settings.
    """
    if spec.is_sharded and spec.strategy == "fsdp":
        reduction_class = ShardedExactReduction if spec.exact else ShardedMeanReduction
        return reduction_class(model, reshard=spec.reshard_after_forward)
    return (
        ExactReduction(wrapped_model, spec.world_size)
        if spec.exact
        else MeanReduction(wrapped_model, spec.data_parallel_size)
    )


class MeanReduction:
    """Mean reduction for models that FSDP does not shard: on one device, with DDP or with tensor parallelism.

    DDP averages the gradients of ranks. The loss is multiplied by the number of ranks, so that the mean becomes the
    sum. Gradients are exchanged once per step.
    """

    def __init__(self, wrapped_model: nn.Module, world: int) -> None:
        self.wrapped_model, self.world = wrapped_model, world
        self.scale = float(world)

    def micro_batch(self, loss: Tensor, index: int, count: int) -> AbstractContextManager[None]:
        waits = isinstance(self.wrapped_model, DistributedDataParallel) and index < count - 1
        return cast(DistributedDataParallel, self.wrapped_model).no_sync() if waits else nullcontext()

    def sum(self, values: Sequence[Tensor]) -> Tensor:
        total = torch.stack(list(values)).sum(0)
        if self.world > 1:
            dist.all_reduce(total)
        return total


class ShardedMeanReduction(MeanReduction):
    """Mean reduction for models that are sharded by FSDP2.

    Gradients are exchanged after each backward pass, so that no rank stores all of them. Without `reshard`, they are
    exchanged once per step, and each rank keeps all gradients and the gathered weights until then.
    """

    def __init__(self, model: AnyModel, *, reshard: bool) -> None:
        super().__init__(model, dist.get_world_size())
        self.root, self.reshard = cast(FSDPModule, model), reshard
        if dist.get_backend() == "gloo":  # whose reduce-scatter sends all sums to all ranks: twice as many bytes
            self.scale = 1.0
            _replace_reduce_scatters(model)

    def micro_batch(self, loss: Tensor, index: int, count: int) -> AbstractContextManager[None]:
        if not self.reshard:
            self.root.set_reshard_after_backward(index == count - 1)
            self.root.set_requires_gradient_sync(index == count - 1)
        return nullcontext()


class ExactReduction:
    """Exact reduction, in the order of the tree, for unsharded models on one or more ranks."""

    scale = 1.0

    def __init__(self, wrapped_model: nn.Module, world: int) -> None:
        self.wrapped_model, self.world = wrapped_model, world
        self.parameters = [p for p in wrapped_model.parameters() if p.requires_grad]

    @contextmanager
    def micro_batch(self, loss: Tensor, index: int, count: int) -> Generator[None]:
        if index == 0:
            self.tree = Tree(count)
        with self.wrapped_model.no_sync() if isinstance(self.wrapped_model, DistributedDataParallel) else nullcontext():
            yield
        learnt = [p for p in self.parameters if p.grad is not None]
        total = self.tree.add([cast(Tensor, p.grad) for p in learnt])
        for p in self.parameters:
            p.grad = None
        if total is None:
            return
        if self.world > 1:
            all_reduce_in_order(total)
        for p, gradient in zip(learnt, total, strict=True):
            p.grad = gradient

    def sum(self, values: Sequence[Tensor]) -> Tensor:
        return sum_in_order(values, world=self.world)


class ShardedExactReduction:
    """Exact reduction, in the order of the tree, for models that are sharded by FSDP2.

    Each rank stores the sum of its branch as unsharded gradients, which are reduced and sharded at the end of the step.
    Without `reshard`, each rank also keeps the gathered weights until then.
    """

    scale = 1.0

    def __init__(self, model: AnyModel, *, reshard: bool) -> None:
        self.root, self.reshard = cast(FSDPModule, model), reshard
        self.parameters = [p for p in model.parameters() if p.requires_grad]
        self.scatters = _replace_reduce_scatters(model)

    @contextmanager
    def micro_batch(self, loss: Tensor, index: int, count: int) -> Generator[None]:
        if index == 0:
            for scatter in self.scatters:
                scatter.tree = Tree(count)
        if not self.reshard:
            self.root.set_reshard_after_backward(index == count - 1)

        # Modules outside blocks may be called several times, such as an embedding shared by encoder and decoder, and
        # FSDP would exchange their gradients after each call. This callback delays the exchange until the gradients are
        # complete. It runs before FSDP's own callback, because the gradient of the loss is computed first.
        def let_root_reduce() -> None:
            self.root.set_requires_gradient_sync(True, recurse=False)

        def queue(_: Tensor) -> None:
            cast(Any, Variable)._execution_engine.queue_callback(let_root_reduce)

        self.root.set_requires_gradient_sync(False, recurse=False)
        with loss.register_hook(queue):
            yield
        if index < count - 1:
            for p in self.parameters:
                p.grad = None

    def sum(self, values: Sequence[Tensor]) -> Tensor:
        return sum_in_order(values, world=dist.get_world_size())


class Tree:
    """Incremental sum of `count` lists of tensors, in the order of the tree of this module.

    Each addition is written into its first operand, so the tensors that are passed to `add` may be changed.
    """

    def __init__(self, count: int) -> None:
        self.count, self.chunk_size = count, count // (count & -count)  # q 2^k and q
        self.added = 0
        self.open_chunk: list[Tensor] | None = None
        # (height, sum) of each complete branch, like the digits 1 of a binary counter.
        self.branches: list[tuple[int, list[Tensor]]] = []

    def add(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """Add the next list; return the sum of all lists if it is the last one, else None.

        Raises:
            RuntimeError: If all `count` lists were already added.
        """
        total = list(tensors) if self.open_chunk is None else _join(self.open_chunk, tensors)
        self.added += 1
        if self.added > self.count:
            raise RuntimeError(f"gradients of {self.added} micro-batches, but a step has {self.count}")
        if self.added % self.chunk_size:
            self.open_chunk = total
            return None
        self.open_chunk, height = None, 0
        while self.branches and self.branches[-1][0] == height:
            total, height = _join(self.branches.pop()[1], total), height + 1
        self.branches.append((height, total))
        return total if self.added == self.count else None


def _join(left: list[Tensor], right: Sequence[Tensor]) -> list[Tensor]:
    for sum_so_far, x in zip(left, right, strict=True):
        sum_so_far.add_(x)
    return left


class _ReduceScatterInOrder:
    """Custom reduce-scatter of FSDP2 for the gradients of one block, which adds instead of averaging.

    If `tree` is set, the output is zero until the last micro-batch of a step, and then the sum over all micro-batches.
    """

    tree: Tree | None = None

    def allocate(self, size: Sequence[int], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self,
        output_tensor: Tensor,
        input_tensor: Tensor,
        group: dist.ProcessGroup,
        op: Any,
        async_op: bool = False,
    ) -> None:
        total = [input_tensor] if self.tree is None else self.tree.add([input_tensor])
        if total is None:
            output_tensor.zero_()  # this gradient is discarded
        else:
            reduce_scatter_in_order(output_tensor, total[0], group)


def _replace_reduce_scatters(model: AnyModel) -> list[_ReduceScatterInOrder]:
    """Replace FSDP's reduce-scatter of each block and of the modules outside blocks, and return the new ones."""
    modules = (model, *blocks_of(model))
    scatters = [_ReduceScatterInOrder() for _ in modules]
    for module, scatter in zip(modules, scatters, strict=True):
        cast(FSDPModule, module).set_custom_reduce_scatter(cast(Any, scatter))
        cast(FSDPModule, module).set_gradient_divide_factor(1.0)
    return scatters


def reduce_scatter_in_order(output: Tensor, branch: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """Write this rank's part of the sum over all ranks into `output`, added in the order of the tree.

    Args:
        output: (n,) Tensor that receives elements r n to (r + 1) n of the sum on rank r.
        branch: (R n,) Sum over the micro-batches of this rank; R is the number of ranks.
        group: Process group (default: all ranks).
    """
    branches = torch.empty_like(branch)
    dist.all_to_all_single(branches, branch, group=group)
    output.copy_(_sum_rows(branches.view(-1, len(output))))


@torch.no_grad()
def all_reduce_in_order(tensors: Sequence[Tensor]) -> None:
    """Replace each tensor by its sum over all ranks, in place and in the order of the tree.

    Small tensors are sent together. All tensors must have the same dtype and device.
    """
    world = dist.get_world_size()
    for chunk in _chunks(tensors):
        counts = [x.numel() for x in chunk]
        buffer = chunk[0].new_zeros(-(-sum(counts) // world) * world)
        torch.cat([x.flatten() for x in chunk], out=buffer[: sum(counts)])
        part = buffer.new_empty(len(buffer) // world)
        reduce_scatter_in_order(part, buffer)
        _all_gather(buffer, part)
        for x, total in zip(chunk, buffer.split([*counts, len(buffer) - sum(counts)]), strict=False):
            x.copy_(total.view_as(x))


def sum_in_order(values: Sequence[Tensor], *, world: int) -> Tensor:
    """Return the sum over the micro-batches of all ranks, added in the order of the tree.

    The result is bitwise identical if the same micro-batches are divided among 1, 2, 4, ... ranks.

    Args:
        values: One tensor per micro-batch of this rank, all of the same shape.
        world: Number of ranks.
    """
    tree = Tree(len(values))
    branch = [tree.add([value.clone()]) for value in values][-1]
    assert branch is not None
    if world == 1:
        return branch[0]
    branches = branch[0].new_empty(world * branch[0].numel())
    _all_gather(branches, branch[0].flatten())
    return _sum_rows(branches.view(world, *branch[0].shape))


def _all_gather(output: Tensor, part: Tensor) -> None:
    """Write the parts of all ranks into `output`, one after another.

    PyTorch 2.11 has only the former name of the function, and later versions deprecate it.
    """
    name = "all_gather_single" if hasattr(dist, "all_gather_single") else "all_gather_into_tensor"
    getattr(dist, name)(output, part)


def _sum_rows(branches: Tensor) -> Tensor:
    """Sum (R, ...) over its rows: neighbors in pairs, then these sums in pairs, and so on.

    If the number of rows is odd, the last one is added in a later round.
    """
    while (n := len(branches)) > 1:
        pairs = branches[0 : n - 1 : 2] + branches[1::2]
        branches = torch.cat([pairs, branches[n - 1 :]]) if n % 2 else pairs
    return branches[0]


def _chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield chunks of consecutive tensors of at most `MAX_CHUNK_NUMEL` elements; a larger tensor is one chunk."""
    chunk, numel = list[Tensor](), 0
    for x in tensors:
        if chunk and numel + x.numel() > MAX_CHUNK_NUMEL:
            yield chunk
            chunk, numel = [], 0
        chunk.append(x)
        numel += x.numel()
    if chunk:
        yield chunk
