"""Estimate how a recipe would use this machine: device, precision, threads, strategy, micro-batch and memory."""

from dataclasses import dataclass
from functools import cache, partial

from tercet.training.planning.micro_batch import auto_micro_batch, micro_batches, unit_of
from tercet.training.planning.plan_run import count_step
from tercet.training.planning.ranks import estimate_rank, rank_part, strategy_of
from tercet.training.planning.this_machine import device_memory, usable_memory
from tercet.training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class RecipeUse:
    """Estimated use of this machine by a recipe.

    Attributes:
        recipe: Name of the recipe.
        device: cpu, cuda or mps.
        devices: Number of devices over all nodes.
        strategy: Strategy for several devices.
        precision: Precision of the recipe, or the one chosen for `auto`.
        threads: Threads that PyTorch uses for one operation.
        micro_batch: Rows per micro-batch; for a translator, tokens per side.
        micro_batches: Number of micro-batches per device and step.
        rows: Unit of `micro_batch`.
        checkpointing: If True, activation checkpointing is used.
        memory_bytes: Estimated memory per device in bytes.
        device_bytes: Memory of the device in bytes, or None if unknown.
        fits: If True, the estimate fits into the memory of the device with the safety margin of `tercet plan`; None if
            unknown.
    """

    recipe: str
    device: str
    devices: int
    strategy: str
    precision: str
    threads: int
    micro_batch: int
    micro_batches: int
    rows: str
    checkpointing: bool
    memory_bytes: int
    device_bytes: int | None
    fits: bool | None


def diagnose_recipe(name: str, recipe: Recipe, *, progress: bool = False) -> RecipeUse:
    """Return the estimated use of this machine by a recipe.

    Args:
        name: Name of the recipe.
        recipe: Recipe.
        progress: If True, print on stderr how much of the data has been read, if it has to be read for the estimate.

    Raises:
        UserError: If this machine has fewer devices than requested, or the settings do not fit together.
    """
    import torch

    from tercet.training.compute.auto_arithmetic import choose_precision
    from tercet.training.distributed.devices import accelerator
    from tercet.training.tasks.model_sizes import size_recipe

    device, precision = accelerator(recipe.training), choose_precision(recipe.training)
    recipe = size_recipe(recipe, progress=progress).recipe
    device_bytes = device_memory()
    available_bytes = usable_memory(device_bytes)
    checkpointing = recipe.training.activation_checkpointing
    device_kind = "cpu" if device == "cpu" else "cuda"
    count = cache(partial(count_step, rank_part(recipe), device_kind, precision))
    micro = auto_micro_batch(recipe, count, checkpointing=checkpointing, available_bytes=available_bytes)
    memory = estimate_rank(
        recipe, count(micro, checkpointing), checkpointing=checkpointing, available_bytes=available_bytes
    )
    return RecipeUse(
        recipe=name, device=device, devices=recipe.training.world_size, strategy=strategy_of(recipe),
        precision=precision, threads=torch.get_num_threads(), micro_batch=micro,
        micro_batches=micro_batches(recipe, micro), rows=unit_of(recipe),
        checkpointing=checkpointing, memory_bytes=memory.total, device_bytes=device_bytes, fits=memory.fits,
    )  # fmt: skip
