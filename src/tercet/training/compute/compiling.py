"""Compilation of a training step: each block in place, or on one GPU everything from the embedding to the loss.

One graph fuses norms, residuals, embedding and loss with their neighbors, and has the fewest launches. Each
block is compiled separately if its weights are gathered as it is called, if its activations are computed twice, or if
gradients are exchanged while earlier blocks are still in their backward pass. On a CPU the loss is a
kernel, which is faster than a graph's.
"""

from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar, cast

import torch
from torch import Tensor

from tercet.models import AnyModel, stacks_of
from tercet.objectives import Loss
from tercet.training.recipe.specs import TrainingSpec
from tercet.training.tasks.task import Task

# A stack is compiled as one graph if it has at most this many blocks, each with at most this many weights.
SMALL_BLOCK_NUMEL, MAX_STACK_BLOCKS = 1 << 20, 8
CompileMode = Literal["never", "always", "cuda_graphs"]
Tensors = TypeVar("Tensors")  # one tensor, or a tuple of them


class LossFunction(Protocol):
    """The loss of a batch, such as `Task.loss`."""

    def __call__(self, model: Any, batch: Any, *, smoothing: float = 0.0) -> Loss: ...


def compiled_loss(task: Task, model: AnyModel, device: str, mode: CompileMode) -> LossFunction:
    """Return the task's loss, compiled: as one graph, or with a model whose blocks are compiled in place.

    Args:
        task: Task of the loss.
        model: Model to train; its parameter names do not change.
        device: Type of the device, such as `cuda`.
        mode: Whether to compile, and whether CUDA graphs replay the compiled kernels.
    """
    if mode == "never":
        return task.loss
    if is_one_graph(task.recipe.training, device):
        return compile_loss(task.loss, dynamic=not task.static, cuda_graphs=mode == "cuda_graphs")
    compile_in_place(model, sharded=task.recipe.training.is_sharded)
    return task.loss


def is_one_graph(spec: TrainingSpec, device: str) -> bool:
    """Return whether a compiled step is one graph from the embedding to the loss."""
    return device == "cuda" and spec.world_size == 1 and not spec.is_sharded and not spec.activation_checkpointing


def compile_loss(loss: LossFunction, *, dynamic: bool = False, cuda_graphs: bool = False) -> LossFunction:
    """Compile a loss as one graph from the embedding on; arguments as of `one_graph`."""

    def parts(model: Any, batch: Any, smoothing: float) -> tuple[Tensor, Tensor, Tensor]:
        whole = loss(model, batch, smoothing=smoothing)
        return whole.total, whole.plain, whole.count

    graph = one_graph(parts, dynamic=dynamic, cuda_graphs=cuda_graphs)
    return lambda model, batch, *, smoothing=0.0: Loss(*graph(model, batch, smoothing))


def one_graph(
    function: Callable[..., Tensors], *, dynamic: bool = False, cuda_graphs: bool = False
) -> Callable[..., Tensors]:
    """Compile a function of a model and a batch.

    Args:
        function: Function of the model, the batch and any numbers.
        dynamic: If True, one graph serves batches of all shapes.
        cuda_graphs: If True, replay the kernels of a batch's shape as one launch. The gradients of a backward pass are
            then overwritten by the next one unless they are copied.
    """
    # Not `dynamic=True`, which also makes the numbers of the model symbolic, such as a dropout rate.
    mode = "reduce-overhead" if cuda_graphs else None
    compiled_function = torch.compile(function, dynamic=None if dynamic else False, mode=mode)

    def run(model: Any, batch: Any, *numbers: float) -> Tensors:
        if dynamic:
            _mark_sizes(batch)
        if cuda_graphs:
            torch.compiler.cudagraph_mark_step_begin()
        return compiled_function(model, batch, *numbers)

    return run


def _mark_sizes(batch: Any) -> None:
    """Mark the sizes of a batch, a named tuple of tensors, as dynamic."""
    for tensor in batch:
        if tensor is not None:
            for dim in range(tensor.ndim):
                cast(Any, torch)._dynamo.maybe_mark_dynamic(tensor, dim)


def copy_gradients(model: torch.nn.Module) -> None:
    """Copy all gradients into new memory, so that later backward passes add to them."""
    parameters = [p for p in model.parameters() if p.grad is not None]
    copies = cast(Any, torch)._foreach_mul([p.grad for p in parameters], 1.0)
    for parameter, gradient in zip(parameters, copies, strict=True):
        parameter.grad = gradient


def compile_in_place(model: AnyModel, *, sharded: bool = False) -> None:
    """Compile each block in place, without changing parameter names.

    Blocks are alike, so the first one's graph serves all. A few small ones are compiled as one stack, because their
    calls would take a tenth of a step (benchmarks/log/kernels.md), unless activations are computed twice.

    Args:
        sharded: If True, each block's weights are gathered as it is called.
    """
    for stack in stacks_of(model):
        is_small = all(sum(p.numel() for p in block.parameters()) <= SMALL_BLOCK_NUMEL for block in stack.blocks)
        per_block = sharded or stack.activation_checkpointing or not is_small or len(stack.blocks) > MAX_STACK_BLOCKS
        for part in stack.blocks if per_block else [stack]:
            part.compile()
