"""Tercet as a contender: with the settings that `--precision auto` chooses on this machine, eager and compiled.

All knowledge of these benchmarks about the decisions of `auto` is in this file.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Literal, cast

from benchmarks.speed.contender import Settings
from benchmarks.speed.training import Loss, Training
from torch import Tensor, nn

from tercet.models import AnyModel, stacks_of
from tercet.training.compute.auto_arithmetic import choose_matmul, choose_precision
from tercet.training.compute.compiling import compile_in_place, is_one_graph, one_graph
from tercet.training.optim.adamw import clip_gradients
from tercet.training.optim.optimizers import build_optimizer
from tercet.training.optim.specs import AdamW
from tercet.training.recipe.specs import TrainingSpec


def auto_settings(accelerator: Literal["cpu", "auto"] = "cpu") -> list[Settings]:
    """Return the choices of `auto`, eager and compiled: `--compile auto` decides by the length of a run.

    Args:
        accelerator: Accelerator for which it decides.
    """
    spec = TrainingSpec(max_steps=1, accelerator=accelerator)
    precision = choose_precision(spec)
    return [
        Settings(
            precision="bf16" if precision == "bf16" else "fp32",
            matmul=choose_matmul(spec),
            attention="own",
            fused=True,
            keeps_memory=True,
            compiled=compiled,
        )
        for compiled in (False, True)
    ]


def compile_as_tercet(model: Any, loss: Loss, settings: Settings) -> Loss:
    """Return the loss, compiled as `tercet train` does: one graph on a GPU, otherwise blocks in place."""
    if not is_one_graph(TrainingSpec(max_steps=1), next(model.parameters()).device.type):
        compile_in_place(model)
        return loss
    return one_graph(loss, dynamic=settings.dynamic is not False, cuda_graphs=settings.mode == "reduce-overhead")


def ours_training(
    build: Callable[[], nn.Module],
    loss: Loss,
    batches: Sequence[Any],
    tokens: int,
    answer: Callable[[Any], Tensor],
    flops: float | None,
    *,
    compiled: bool = True,
    checkpointed: bool = False,
) -> list[Training]:
    """Return Tercet's training contenders.

    Args:
        compiled: If True, add a compiled contender.
        checkpointed: If True, add a contender with activation checkpointing: less memory for more time.
    """

    def built_again() -> nn.Module:
        model = build()
        for stack in stacks_of(cast(AnyModel, model)):
            stack.activation_checkpointing = True
        return model

    ways = [
        ("tercet, compiled" if settings.compiled else "tercet", build, settings)
        for settings in auto_settings()
        if compiled or not settings.compiled
    ]
    if checkpointed:
        name = "activation checkpointing"
        ways.append((f"tercet, {name}", built_again, replace(ways[0][2], note=name)))
    return [
        Training(
            name,
            "ours",
            settings,
            build=builder,
            loss=loss,
            batches=batches,
            tokens=tokens,
            answer=answer,
            compile=compile_as_tercet,
            optimizer=partial(build_optimizer, AdamW(lr=1e-4)),
            clip=clip_gradients,
            flops=flops,
        )
        for name, builder, settings in ways
    ]
