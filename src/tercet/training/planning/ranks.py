"""What each of several devices holds of a step, and what they send each other, by the strategy that shares it out."""

from dataclasses import dataclass, replace
from typing import Literal

from tercet.models import EncoderDecoderSpec, StackSpec
from tercet.training.planning.step_memory import StepMemory
from tercet.training.recipe.recipe import Recipe, TranslationRecipe

FLOAT32 = 4  # bytes of a number that is learnt, and of its gradient
Strategy = Literal["single", "ddp", "fsdp", "tp"]


@dataclass(frozen=True, kw_only=True)
class RankMemory:
    """Bytes of one device, by whether activations are kept or worked out once more.

    Attributes:
        weights, gradients, optimizer, average: of ddp the whole, of fsdp and tp what a rank has; on the device.
    host: weights, gradients and optimizer, where cpu_offload keeps them in the host's memory; not in the total.
        communication: gradients in the buckets of ddp, or weights and gradients that fsdp has gathered.
        activations, workspace: of a micro-batch.
        total: of all these.
        fits: within the device's memory but for HEADROOM; None where that is not known.
        largest_micro_batch: that fits, no larger than a device's share of a step; None where none does, or the
            device's memory is not known.
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
    """What shares the work out: ddp from two devices on, unless the recipe says fsdp or tp."""
    if recipe.training.world_size == 1:
        return "single"
    strategy = recipe.training.strategy
    return strategy if strategy == "fsdp" or strategy == "tp" else "ddp"


def rank_part(recipe: Recipe) -> Recipe:
    """What one device works on by itself: with tp a model of as wide a stream, with its part of each block's heads and
    inner width; else the recipe as it is."""
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
    """What one device holds, by a step that was counted of its `rank_part`."""
    world, strategy = recipe.training.world_size, strategy_of(recipe)
    shards = world if strategy == "fsdp" else 1
    weights, gradients, optimizer = (-(-size // shards) for size in (step.weights, step.gradients, step.optimizer))
    communication = 0
    if strategy == "ddp":
        communication = step.gradients  # the buckets that are reduced are copies
    if strategy == "fsdp" and recipe.training.reshard_after_forward:
        # What is in no block is gathered for the whole step; of blocks one that is worked on, and the next; and there
        # are whole gradients of the one and of what is in none.
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
    """Bytes that each device sends in a step, and receives as many, by algorithms in a ring: whole gradients are summed
    up once a step. With fsdp blocks but for the last are gathered for each pass, all else for each micro-batch, after
    which each rank gets its share of the sum, with `exact` once a step; without `reshard_after_forward` all of this is
    done once a step. With tp hidden states are summed up, and gradients of them.

    Args:
        step: of the whole model.
        share: rows of a step that fall to one device; of a translator tokens a side.
        passes: micro-batches of a device in a step.
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
    """Numbers that the devices of tp add up in a step: what each sublayer gives, and the gradient of what it reads."""
    model, recomputes = recipe.model, recipe.training.activation_checkpointing
    tokens = share * (1 if isinstance(recipe, TranslationRecipe) else model.max_len)
    forward = 2 if recomputes else 1

    def stack_sums(stack: StackSpec, *, cross: bool = False) -> int:
        sublayers = 3 if cross else 2
        gradients = sublayers + cross  # cross-attention reads the encoder's output too
        return stack.n_layers * stack.d_model * (forward * sublayers + gradients)

    if isinstance(model, EncoderDecoderSpec):
        return tokens * (stack_sums(model.encoder) + stack_sums(model.decoder, cross=True))
    return tokens * stack_sums(model.stack)
