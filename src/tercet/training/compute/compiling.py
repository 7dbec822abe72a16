"""Compilation of a training step: each block in place, or on one GPU everything from the embedding to the loss.

With one graph, the compiler fuses norms, residuals, embedding and loss with the operations next to them, and a step
needs the fewest kernel launches. It is not used with several devices, because sharded weights are gathered block by
block, and gradients are exchanged while the backward pass of earlier blocks continues; nor with activation
checkpointing, which computes each block twice; nor on a CPU, where Tercet's kernel of the loss is faster than compiled
code.
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
    """Function that returns the loss of a batch, such as `Task.loss`."""

    def __call__(self, model: Any, batch: Any, *, smoothing: float = 0.0) -> Loss: ...


def compiled_loss(task: Task, model: AnyModel, device: str, mode: CompileMode) -> LossFunction:
    """Return the loss function of a task, compiled as one graph, or compile the blocks of the model.

    One graph is used if `is_one_graph` is true. Otherwise, the blocks are compiled in place.

    Args:
        task: Task whose loss is returned.
        model: Model to train. Compiling its blocks does not change the names of its parameters.
        device: Type of the device, such as "cuda".
        mode: "never" returns `task.loss` and compiles nothing. "cuda_graphs" also replays the kernels of one graph as
            one launch; if one graph is not possible, it is the same as "always".
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
    """Compile a loss function as one graph, from the embedding to the loss.

    Args:
        loss: Loss function of a model and a batch.
        dynamic, cuda_graphs: As in `one_graph`.
    """

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
        function: Function of the model, the batch and any numbers. It returns a tensor or a tuple of tensors.
        dynamic: If True, one graph serves batches of all shapes. If False, each shape gets a graph.
        cuda_graphs: If True, record the kernels for each shape of a batch, and replay them as one launch. Each backward
            pass then overwrites the gradients of the previous one, unless these are copied (see `copy_gradients`).
    """
    # `dynamic=True` is not used, because it also makes the numbers of the model symbolic, such as a dropout rate.
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
    """Mark the sizes of all tensors in a batch, a named tuple of tensors and None, as dynamic."""
    for tensor in batch:
        if tensor is not None:
            for dim in range(tensor.ndim):
                cast(Any, torch)._dynamo.maybe_mark_dynamic(tensor, dim)


def copy_gradients(model: torch.nn.Module) -> None:
    """Move the gradients of a model to new memory.

    With CUDA graphs, the next backward pass would overwrite the old memory instead of adding to it.
    """
    parameters = [p for p in model.parameters() if p.grad is not None]
    copies = cast(Any, torch)._foreach_mul([p.grad for p in parameters], 1.0)
    for parameter, gradient in zip(parameters, copies, strict=True):
        parameter.grad = gradient


def compile_in_place(model: AnyModel, *, sharded: bool = False) -> None:
    """Compile each block of a model in place, without changing the names of parameters.

    The blocks of a stack are alike and share one graph. A stack of at most `MAX_STACK_BLOCKS` small blocks is compiled
    as a whole, because steps of separately compiled blocks took 15 to 18 % longer (benchmarks/log/kernels.md). This is
    not done for sharded models, or with activation checkpointing.

    Args:
        model: Model to compile.
        sharded: If True, the weights of each block are gathered when it is called.
    """
    for stack in stacks_of(model):
        is_small = all(sum(p.numel() for p in block.parameters()) <= SMALL_BLOCK_NUMEL for block in stack.blocks)
        per_block = sharded or stack.activation_checkpointing or not is_small or len(stack.blocks) > MAX_STACK_BLOCKS
        for part in stack.blocks if per_block else [stack]:
            part.compile()
