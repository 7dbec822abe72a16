"""How the gradients of a step's micro-batches, on all ranks, become those of the step.

    mean    each rank adds up its own as they come, and the strategy adds those of the ranks: in what order depends on
            how many there are
    exact   the sum over all micro-batches is one binary tree, whoever works out its branches

A step of M = q 2^k micro-batches, q odd, is 2^k lots of q; a lot is added up one by one, and lots in pairs, pairs in
pairs, and so on to the sum of the two halves. R ranks, a power of two, have a piece of R-th of the micro-batches each,
in their order: a branch of the tree. What joins the branches is a reduce-scatter whose sums are worked out in the
tree's order by the rank that needs them: every rank sends 4 N (R - 1) / R bytes for N weights, and as many in the
all-gather that follows where weights are not sharded, just as a ring all-reduce does.
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

MAX_CHUNK_NUMEL = 1 << 23  # gradients that are joined in one message: 32 MiB of float32


class Reduction(Protocol):
    """Attributes:
    scale: what a micro-batch's loss is to be multiplied by besides.
    """

    scale: float

    def micro_batch(self, loss: Tensor, index: int, count: int) -> AbstractContextManager[None]:
        """Wrap the backward pass of one micro-batch of this rank.

        After the last micro-batch, the parameters' `grad` holds the gradients of the step.

        Args:
            loss: Loss of the micro-batch.
            index: Index of the micro-batch on this rank, from 0.
            count: Number of micro-batches of this rank.
        """
        ...

    def sum(self, values: Sequence[Tensor]) -> Tensor:
        """Of a number that each micro-batch of this rank has (a tensor of one shape), the sum over all ranks'."""
        ...


def make_reduction(model: AnyModel, wrapped_model: nn.Module, spec: TrainingSpec) -> Reduction:
    """What the settings ask for; `wrapped_model` is what the strategy made of the module that holds the model."""
    if spec.is_sharded and spec.strategy == "fsdp":
        reduction_class = ShardedExactReduction if spec.exact else ShardedMeanReduction
        return reduction_class(model, reshard=spec.reshard_after_forward)
    return (
        ExactReduction(wrapped_model, spec.world_size)
        if spec.exact
        else MeanReduction(wrapped_model, spec.data_parallel_size)
    )


class MeanReduction:
    """PyTorch's: a strategy takes the mean of the ranks' gradients, which times their number is the sum again. Whole
    gradients are exchanged once a step."""

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
    """The same of models that FSDP2 has cut up: gradients are exchanged after each pass, or a rank would hold all of
    them. Without `reshard` it does, and has the gathered weights, to the end of a step."""

    def __init__(self, model: AnyModel, *, reshard: bool) -> None:
        super().__init__(model, dist.get_world_size())
        self.root, self.reshard = cast(FSDPModule, model), reshard
        if dist.get_backend() == "gloo":  # whose own reduce-scatter sends all sums to all ranks, twice as many bytes
            self.scale = 1.0
            _replace_reduce_scatters(model)

    def micro_batch(self, loss: Tensor, index: int, count: int) -> AbstractContextManager[None]:
        if not self.reshard:
            self.root.set_reshard_after_backward(index == count - 1)
            self.root.set_requires_gradient_sync(index == count - 1)
        return nullcontext()


class ExactReduction:
    """For whole models, on one rank or several."""

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
    """For models that FSDP2 has cut up: a branch's sum is of whole gradients, which are cut up at the end of a step, as
    are gathered weights without `reshard`."""

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

        # What is not in a block may be called several times, such as the two sides' embedding, and FSDP would exchange
        # its gradient after each. Here it waits until all of it is there: this callback comes before FSDP's own, for
        # the loss is the first whose gradient is worked out.
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
    """Adds up `count` lists of tensors as they come, in place of the first of each two."""

    def __init__(self, count: int) -> None:
        self.count, self.chunk_size = count, count // (count & -count)  # q 2^k and q
        self.added = 0
        self.open_chunk: list[Tensor] | None = None
        self.branches: list[tuple[int, list[Tensor]]] = []  # the height and the sum of each, as a counter's ones are

    def add(self, tensors: Sequence[Tensor]) -> list[Tensor] | None:
        """The next list; the sum of all of them, where it is the last."""
        total = list(tensors) if self.open_chunk is None else _join(self.open_chunk, tensors)
        self.added += 1
        if self.added > self.count:
            raise RuntimeError(f"gradients of {self.added} micro-batches, and a step has {self.count}")
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
    """FSDP2's exchange of one block's gradients: their sum, and not the mean. With a tree it is nothing before a step's
    last micro-batch, and then the sum of all of them."""

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
            output_tensor.zero_()  # a gradient that is thrown away
        else:
            reduce_scatter_in_order(output_tensor, total[0], group)


def _replace_reduce_scatters(model: AnyModel) -> list[_ReduceScatterInOrder]:
    """What now exchanges the gradients of each block, and of what is in none."""
    modules = (model, *blocks_of(model))
    scatters = [_ReduceScatterInOrder() for _ in modules]
    for module, scatter in zip(modules, scatters, strict=True):
        cast(FSDPModule, module).set_custom_reduce_scatter(cast(Any, scatter))
        cast(FSDPModule, module).set_gradient_divide_factor(1.0)
    return scatters


def reduce_scatter_in_order(output: Tensor, branch: Tensor, group: dist.ProcessGroup | None = None) -> None:
    """The sum of the branches (R n,) of all R ranks, of which this one gets its n numbers (n,)."""
    branches = torch.empty_like(branch)
    dist.all_to_all_single(branches, branch, group=group)
    output.copy_(_sum_rows(branches.view(-1, len(output))))


@torch.no_grad()
def all_reduce_in_order(tensors: Sequence[Tensor]) -> None:
    """Each becomes the sum of the ranks' own, in place; some are sent together."""
    world = dist.get_world_size()
    for chunk in _chunks(tensors):
        counts = [x.numel() for x in chunk]
        buffer = chunk[0].new_zeros(-(-sum(counts) // world) * world)
        torch.cat([x.flatten() for x in chunk], out=buffer[: sum(counts)])
        part = buffer.new_empty(len(buffer) // world)
        reduce_scatter_in_order(part, buffer)
        dist.all_gather_single(buffer, part)
        for x, total in zip(chunk, buffer.split([*counts, len(buffer) - sum(counts)]), strict=False):
            x.copy_(total.view_as(x))


def sum_in_order(values: Sequence[Tensor], *, world: int) -> Tensor:
    """Of one tensor for each of this rank's micro-batches, the sum over those of all `world` ranks."""
    tree = Tree(len(values))
    branch = [tree.add([value.clone()]) for value in values][-1]
    assert branch is not None
    if world == 1:
        return branch[0]
    branches = branch[0].new_empty(world * branch[0].numel())
    dist.all_gather_single(branches, branch[0].flatten())
    return _sum_rows(branches.view(world, *branch[0].shape))


def _sum_rows(branches: Tensor) -> Tensor:
    """(R, ...) to (...): neighbours in pairs, and pairs in pairs; one that is left over waits for the next round."""
    while (n := len(branches)) > 1:
        pairs = branches[0 : n - 1 : 2] + branches[1::2]
        branches = torch.cat([pairs, branches[n - 1 :]]) if n % 2 else pairs
    return branches[0]


def _chunks(tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Neighbours together, of `MAX_CHUNK_NUMEL` numbers in all or of one tensor."""
    chunk, numel = list[Tensor](), 0
    for x in tensors:
        if chunk and numel + x.numel() > MAX_CHUNK_NUMEL:
            yield chunk
            chunk, numel = [], 0
        chunk.append(x)
        numel += x.numel()
    if chunk:
        yield chunk
