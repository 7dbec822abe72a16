"""Memory of each device and communication between devices, by strategy."""

from dataclasses import dataclass, replace
from typing import Literal

from tercet.models import EncoderDecoderSpec, StackSpec
from tercet.training.planning.step_memory import StepMemory
from tercet.training.recipe.recipe import Recipe, TranslationRecipe

FLOAT32 = 4  # bytes per weight and gradient
Strategy = Literal["single", "ddp", "fsdp", "tp"]


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Memory of one device in bytes, with activations kept or recomputed.

    Attributes:
        checkpointing: If True, activations are recomputed in the backward pass.
        weights, gradients, optimizer, average: Bytes of weights, gradients, optimizer state and moving average on the
            device: of the rank's part with fsdp and tp, of the whole model otherwise.
        host: Bytes of weights, gradients and optimizer state in host memory with `cpu_offload`; 0 otherwise.
        communication: Bytes of the gradients in the buckets of ddp, or of the weights and gradients that fsdp has
            gathered; 0 otherwise.
        activations, workspace: Bytes of a micro-batch, as in `StepMemory`.
        total: Sum of all bytes except `host`.
        fits: True if `total` is at most the memory of the device that a run may use; None if the memory is unknown.
        largest_micro_batch: Largest micro-batch size that fits, at most the device's share of a step; None if none
            fits, or the memory is unknown or was not searched.
    """

    checkpointing: bool
    weights: int
    gradients: int
    optimizer: int
    average: int
    host: int
    communication: int
    activations: int
    workspace: int
    total: int
    fits: bool | None
    largest_micro_batch: int | None


def strategy_of(recipe: Recipe) -> Strategy:
    """Return the strategy of a recipe, with `auto` resolved: single for one device, else ddp."""
    if recipe.training.world_size == 1:
        return "single"
    strategy = recipe.training.strategy
    return strategy if strategy == "fsdp" or strategy == "tp" else "ddp"


def rank_part(recipe: Recipe) -> Recipe:
    """Return the recipe of the part of the model that one device computes.

    With tp, this model has the same width, but only the device's share of the heads and of the inner width. With other
    strategies, the recipe is returned unchanged.
    """
    devices = recipe.training.tensor_parallel_size
    if devices == 1:
        return recipe

    def part(stack: StackSpec) -> StackSpec:
        return replace(
            stack, n_heads=stack.n_heads // devices, n_kv_heads=stack.kv_heads // devices, d_head=stack.head_width,
            d_ff=stack.inner_width // devices,
        )  # fmt: skip

    model = recipe.model
    if isinstance(model, EncoderDecoderSpec):
        model = replace(model, encoder=part(model.encoder), decoder=part(model.decoder))
    else:
        model = replace(model, stack=part(model.stack))
    return replace(recipe, model=model, training=replace(recipe.training, strategy="single", devices=1))


def estimate_rank(recipe: Recipe, step: StepMemory, *, checkpointing: bool, available_bytes: int | None) -> RankMemory:
    """Return the memory of one device, without the largest micro-batch size.

    Args:
        recipe: Recipe with its vocabulary sizes.
        step: Memory of a step of the recipe's `rank_part`.
        checkpointing: If True, activations are recomputed in the backward pass.
        available_bytes: Memory of the device that a run may use, in bytes; None if unknown.
    """
    world, strategy = recipe.training.world_size, strategy_of(recipe)
    shards = world if strategy == "fsdp" else 1
    weights, gradients, optimizer = (-(-size // shards) for size in (step.weights, step.gradients, step.optimizer))
    communication = 0
    if strategy == "ddp":
        communication = step.gradients  # the buckets of the all-reduce are copies
    if strategy == "fsdp" and recipe.training.reshard_after_forward:
        # Weights outside blocks are gathered for the whole step, and weights of the current and the next block.
        # Gradients are whole for the current block and for weights outside blocks.
        communication = 2 * step.outside_blocks + 3 * step.largest_block
    elif strategy == "fsdp":
        communication = step.weights + step.gradients
    host = 0
    if recipe.training.cpu_offload and strategy == "fsdp":
        host, weights, gradients, optimizer = weights + gradients + optimizer, 0, 0, 0
    total = weights + gradients + optimizer + step.average + communication + step.activations + step.workspace
    return RankMemory(
        checkpointing=checkpointing,
        weights=weights,
        gradients=gradients,
        optimizer=optimizer,
        average=step.average,
        host=host,
        communication=communication,
        activations=step.activations,
        workspace=step.workspace,
        total=total,
        fits=None if available_bytes is None else total <= available_bytes,
        largest_micro_batch=None,
    )


def communicated_bytes(recipe: Recipe, step: StepMemory, precision: str, *, share: int, passes: int) -> int:
    """Return the bytes that each device sends per step with ring algorithms; it receives as many.

    With ddp, whole gradients are all-reduced once per step. With fsdp, all weights are gathered for the forward pass of
    each micro-batch, and those of all blocks except the last again for its backward pass. Gradients are reduced to each
    rank's shard once per micro-batch, or with `exact` once per step. With fsdp without `reshard_after_forward`, weights
    are gathered and gradients reduced once per step. With tp, hidden states and their gradients are all-reduced.

    Args:
        recipe: Recipe.
        step: Memory of a step of the whole model.
        precision: fp32, bf16 or fp16.
        share: One device's rows per step, or tokens per side for translation.
        passes: Micro-batches per device and step.
    """
    world = recipe.training.world_size
    match strategy_of(recipe):
        case "single":
            n_bytes = 0
        case "ddp":
            n_bytes = 2 * step.gradients
        case "fsdp" if recipe.training.reshard_after_forward:
            weights, sums = FLOAT32 * step.parameters, 1 if recipe.training.exact else passes
            regathered = weights - step.outside_blocks - step.largest_block
            n_bytes = passes * (weights + regathered) + sums * step.gradients
        case "fsdp":
            n_bytes = FLOAT32 * step.parameters + step.gradients
        case "tp":
            n_bytes = 2 * (FLOAT32 if precision == "fp32" else FLOAT32 // 2) * _summed_up(recipe, share)
    return n_bytes * (world - 1) // world


def _summed_up(recipe: Recipe, share: int) -> int:
    """Return the number of elements that tp all-reduces per step.

    These are the outputs of each sublayer, twice if activations are recomputed, and the gradients of each sublayer's
    inputs. Cross-attention has two inputs, since it also reads the encoder's output.
    """
    model, recomputes = recipe.model, recipe.training.activation_checkpointing
    tokens = share * (1 if isinstance(recipe, TranslationRecipe) else recipe.row_len)
    forward = 2 if recomputes else 1

    def stack_sums(stack: StackSpec, *, cross: bool = False) -> int:
        sublayers = 3 if cross else 2
        gradients = sublayers + cross  # cross-attention also reads the encoder's output
        return stack.n_layers * stack.d_model * (forward * sublayers + gradients)

    if isinstance(model, EncoderDecoderSpec):
        return tokens * (stack_sums(model.encoder) + stack_sums(model.decoder, cross=True))
    return tokens * stack_sums(model.stack)
