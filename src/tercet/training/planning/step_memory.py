"""Memory of a training step, measured on fake tensors whose storages are counted.

Model, loss and optimizer are those of a run, but their tensors have only shapes, so no memory is needed. Four counts
are exact: weights, gradients, optimizer state and moving average. Activations are the bytes that are live when the loss
is known. The workspace is the maximum in addition to all of these during forward pass, backward pass or optimizer step.
"""

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from tercet.config import UserError
from tercet.models import AnyModel, blocks_of, build, stacks_of
from tercet.nn import document_mask
from tercet.objectives import LabeledBatch, QueryBatch, likelihood
from tercet.training.compute.compiling import is_one_graph
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.optim.trainable import set_trainable, trainable_parameters
from tercet.training.planning.fake_batch import fake_batch, fake_loss
from tercet.training.planning.fused_operations import Device, use_fused_operations
from tercet.training.planning.live_bytes import LiveBytes
from tercet.training.recipe.recipe import Recipe, objective_of

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Memory of a training step on a device that has the whole model.

    Attributes:
        parameters, trainable: Numbers of all and of trainable parameters; tied ones count once.
        frozen_multiplied: Number of elements of the frozen matrices that are multiplied.
        adapter: Number of parameters of the adapter; 0 without one.
        weights, gradients, optimizer, average: Bytes of weights, gradients, optimizer state and moving average, which
            are allocated for the whole run.
        activations: Bytes of a micro-batch that are live when its loss is known.
        workspace: Maximum bytes during the step in addition to all of these.
        largest_block: Bytes of the weights of the largest block.
        outside_blocks: Bytes of the weights outside blocks.
    """

    parameters: int
    trainable: int
    frozen_multiplied: int
    adapter: int
    weights: int
    gradients: int
    optimizer: int
    average: int
    activations: int
    workspace: int
    largest_block: int
    outside_blocks: int


def measure_step(
    recipe: Recipe, *, micro: int, device: Device, precision: str, checkpointing: bool, new: tuple[str, ...] = ()
) -> StepMemory:
    """Measure the memory of a step with one micro-batch, on fake tensors.

    Gradients are allocated before the step, as if earlier micro-batches had been accumulated.

    Args:
        recipe: Recipe with its vocabulary sizes.
        micro: Rows of the micro-batch, or tokens per side for translation.
        device: Device whose operations are assumed.
        precision: fp32, bf16 or fp16.
        checkpointing: If True, keep only the input of each block for the backward pass.
        new: Names of weights that the pretrained model lacks, which are trained along with an adapter.

    Raises:
        UserError: If the model's sizes do not fit together.
    """
    with FakeTensorMode(), _fake_tensors_on(device):
        try:
            model = build(recipe.model).train()
        except ValueError as error:
            raise UserError(f"model: {error}") from None
        set_trainable(model, new, freeze=recipe.freeze, adapter=recipe.adapter, seed=recipe.training.seed)
        for stack in stacks_of(model):
            stack.activation_checkpointing = checkpointing
        use_fused_operations(model, device)
        optimizer = build_optimizer(recipe.training.optimizer, model)
        trainable = trainable_parameters(model)
        for parameter in trainable:
            parameter.grad = torch.zeros_like(parameter)
        batch = fake_batch(recipe, micro)
        dtype = DTYPES.get(precision)
        with LiveBytes() as live:
            live.ignore([*model.parameters(), *model.buffers(), *(p.grad for p in trainable if p.grad is not None)])
            activations, workspace = _run_step(live, recipe, model, optimizer, batch, dtype)
        if is_one_graph(replace(recipe.training, activation_checkpointing=checkpointing), device):
            scored = torch.float32 if objective_of(recipe) is not None else dtype or torch.float32
            workspace = max(workspace, _scores_of_graph(model, batch, scored))
        blocks = [_bytes_of(list(block.parameters())) for block in blocks_of(model)]
        tensors = [*model.parameters(), *model.buffers()]
        weights = _bytes_of(tensors)
        return StepMemory(
            parameters=sum(p.numel() for p in model.parameters()),
            trainable=sum(p.numel() for p in trainable),
            frozen_multiplied=sum(
                part.weight.numel()
                for part in model.modules()
                if isinstance(part, nn.Linear) and not part.weight.requires_grad
            ),
            adapter=sum(p.numel() for name, p in model.named_parameters() if ".lora_" in name),
            weights=weights,
            gradients=_bytes_of([p.grad for p in trainable if p.grad is not None]),
            optimizer=_bytes_of([x for s in optimizer.state.values() for x in s.values() if isinstance(x, Tensor)]),
            average=0 if recipe.training.ema is None else weights,
            activations=activations,
            workspace=workspace,
            largest_block=max(blocks, default=0),
            outside_blocks=_bytes_of(list(model.parameters())) - sum(blocks),
        )


def _run_step(
    live: LiveBytes,
    recipe: Recipe,
    model: AnyModel,
    optimizer: torch.optim.Optimizer,
    batch: Any,
    dtype: torch.dtype | None,
) -> tuple[int, int]:
    """Return the bytes of activations when the loss is known, and the maximum in addition during the step."""
    with torch.autocast("cpu", dtype=dtype or torch.bfloat16, enabled=dtype is not None):
        loss = fake_loss(recipe, model, batch)
    activations = live.current
    loss.backward()
    del loss
    peak_of_passes = live.peak
    optimizer.step()  # allocates the optimizer state
    base_bytes = live.current
    live.peak = base_bytes
    optimizer.step()
    peak_of_step = live.peak - base_bytes
    return activations, max(0, peak_of_passes - activations, peak_of_step - activations)


def _scores_of_graph(model: AnyModel, batch: Any, dtype: torch.dtype) -> int:
    """Return the bytes of the logits and their gradient in a step that is compiled as one graph."""
    if isinstance(batch, LabeledBatch | QueryBatch):
        return 0
    return likelihood.bytes_of_graph(batch.targets.numel(), len(model.unembedding.weight), dtype)


def _bytes_of(tensors: list[Tensor]) -> int:
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in tensors}.values())


@contextmanager
def _fake_tensors_on(device: Device) -> Generator[None]:
    """Use the chunk sizes and document masks of `device` for fake tensors on a CPU, within a context."""
    cpu_rows, block_mask_devices = likelihood.CHUNK_ELEMENTS["cpu"], document_mask.DEVICES
    likelihood.CHUNK_ELEMENTS["cpu"] = likelihood.CHUNK_ELEMENTS[device]
    document_mask.DEVICES = ("cpu",) if device in block_mask_devices else ()
    try:
        yield
    finally:
        likelihood.CHUNK_ELEMENTS["cpu"], document_mask.DEVICES = cpu_rows, block_mask_devices
