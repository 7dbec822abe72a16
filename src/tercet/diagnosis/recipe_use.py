"""What a recipe will use of this machine: device, precision, threads, strategy, micro-batch, and memory beside what is
there."""

from dataclasses import dataclass
from functools import cache, partial

from tercet.training.planning.micro_batch import auto_micro_batch, micro_batches, unit_of
from tercet.training.planning.plan_run import count_step
from tercet.training.planning.ranks import estimate_rank, rank_part, strategy_of
from tercet.training.planning.this_machine import device_memory, usable_memory
from tercet.training.recipe.recipe import Recipe


@dataclass(frozen=True, kw_only=True)
class RecipeUse:
    """Attributes:
    device: cpu, cuda or mps.
    devices: over all nodes, as the recipe says.
    precision: what `auto` comes to here, or what the recipe says.
    threads: of PyTorch's for one operation.
    micro_batch: rows that a device holds at once; of a translator tokens a side.
    memory_bytes: that a device is estimated to hold.
    device_bytes: of the device; None where the system does not say.
    fits: within the device's memory but for what a plan leaves free; None where nobody knows.
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
    """What it comes to here.

    Args:
        name: of the recipe.
        progress: say on stderr how far reading the data is, where they must be read.

    Raises:
        UserError: where this machine has fewer devices than it asks for, or it does not fit together.
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
