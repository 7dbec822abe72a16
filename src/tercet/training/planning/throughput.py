"""Training speed of a device in model FLOP/s: assumed, from an earlier run, or measured here.

    FLOP/s of a device = MFU · peak = tokens per second · FLOPs per token / devices

MFU, the model FLOPs utilization (Chowdhery et al., "PaLM", 2022), is the ratio of the FLOPs that the model requires,
without recomputation for checkpointing, to the peak.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.metrics import read_metrics, training_time
from tercet.config import UserError
from tercet.training.planning.gpus import GIB, GPU, find_by_device_name
from tercet.training.recipe.recipe import Recipe, TranslationRecipe
from tercet.training.request import find_run
from tercet.training.run_folder.checkpoints import METRICS, Checkpoints

if TYPE_CHECKING:
    from tercet.training.compute.speed import Speed
    from tercet.training.tasks.model_sizes import SizedRecipe

CPU = "cpu"


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """Speed of a device.

    Attributes:
        flops_per_second: FLOP/s of one device.
        mfu: Fraction of the device's peak; None if the peak is unknown.
        basis: Source of the speed: "assumed" (`--mfu`), "run" (`--measured`) or "here" (`--here`).
        described: Description of the speed and its source for users.
    """

    flops_per_second: float
    mfu: float | None
    basis: str
    described: str


def assume(mfu: float, gpu: GPU) -> Throughput:
    """Return the throughput for an assumed MFU.

    Args:
        mfu: Fraction of the GPU's peak, from 0 to 1.
        gpu: GPU to plan for.

    Raises:
        UserError: If the peak of the GPU is unknown.
    """
    if gpu.peak_flops is None:
        memory = f"{gpu.memory_bytes / GIB:g}GiB"
        raise UserError(f"--mfu requires a peak, but --gpus has none; pass for example {memory}@150TFLOPS")
    return Throughput(
        flops_per_second=mfu * gpu.peak_flops, mfu=mfu, basis="assumed",
        described=f"{mfu:.1%} of {gpu.peak_flops / 1e12:,.4g} TFLOP/s (assumed)",
    )  # fmt: skip


def measure_run(run: Path, gpu: GPU | None) -> Throughput:
    """Return the throughput of an earlier run.

    Args:
        run: Folder of the run.
        gpu: GPU to plan for; None for the device of the run.

    Raises:
        UserError: If the folder contains no run, the run is too short, or its speed cannot be converted to `gpu`:
            it was not trained on a GPU, or a peak is unknown.
    """
    if find_run(str(run)) is None:
        raise UserError(f"--measured {run}: not a run folder; pass one such as runs/mine")

    from tercet.checkpoint import read_spec
    from tercet.training.planning.flops import training_flops
    from tercet.training.run_folder.changes import read_recipe

    if not (run / METRICS).exists():
        raise UserError(f"--measured {run}: no {METRICS} yet; train for some steps first")
    time = training_time(read_metrics(run / METRICS))
    if time is None or time.tokens_per_second is None:
        raise UserError(
            f"--measured {run}: {METRICS} contains no speed yet (written with its second line); train longer"
        )
    recipe = read_recipe(run)
    recipe = replace(recipe, model=read_spec(run))
    world = recipe.training.world_size
    device_flops = training_flops(recipe).for_tokens(time.tokens_per_second) / world
    newest = Checkpoints(run, recipe.training.keep).newest()
    device = None if newest is None else newest.arithmetic[-1]["device"]
    devices = f"{world} devices" if world > 1 else "one device"
    description = (
        f"{time.tokens_per_second:,.0f} tokens/s on {devices}{'' if device is None else f' ({device})'} in {run}"
    )
    return _scale_to_gpu(gpu, device_flops, device, basis="run", described=description, flag=f"--measured {run}")


def measure_this_machine(sized_recipe: "SizedRecipe", gpu: GPU | None) -> "tuple[Throughput, Speed | None]":
    """Measure the throughput of some steps on this machine.

    Args:
        sized_recipe: Recipe with its vocabulary sizes. With a `gpu`, one device of this machine computes the share of
            one device of the cluster.
        gpu: GPU to plan for; None for this machine.

    Returns:
        Throughput, and the measured times of steps and validations; the latter is None with a `gpu`.

    Raises:
        UserError: If the speed cannot be converted to `gpu`: this machine has no GPU, or a peak is unknown.
    """
    import torch

    from tercet.kernel import warm_up
    from tercet.models import build, stacks_of
    from tercet.training.compute.auto_arithmetic import choose_arithmetic, matmul_precision
    from tercet.training.compute.choose_compile import choose_compile
    from tercet.training.compute.speed import speed
    from tercet.training.distributed.devices import accelerator
    from tercet.training.optim.trainable import set_trainable
    from tercet.training.planning.flops import training_flops
    from tercet.training.planning.micro_batch import tokens_of_row
    from tercet.training.tasks.model_sizes import read_task

    recipe = sized_recipe.recipe if gpu is None else single_device_recipe(sized_recipe.recipe)
    kind = accelerator(recipe.training)
    _check_kind(kind, gpu, "--here")  # before measuring
    task = sized_recipe.task if sized_recipe.task is not None and gpu is None else read_task(recipe, progress=True)
    if not task.plan.steps:
        task.plan = replace(task.plan, steps=1)  # hours are converted by the measured speed
    model = build(task.recipe.model, seed=recipe.training.seed)
    for stack in stacks_of(model):
        stack.activation_checkpointing = recipe.training.activation_checkpointing
    set_trainable(model, freeze=recipe.freeze, adapter=recipe.adapter, seed=recipe.training.seed)
    warm_up()
    arithmetic = choose_arithmetic(recipe.training)
    with matmul_precision(arithmetic["matmul"]):
        compiled = choose_compile(task, model, arithmetic["precision"])[0]
        measurement = speed(task, model, precision=arithmetic["precision"], compile_mode=compiled)
    full_step = measurement.unit_seconds * task.plan.units + measurement.step_seconds
    tokens = task.plan.full_batch * tokens_of_row(task.recipe)
    world = recipe.training.world_size
    device_flops = tokens * training_flops(task.recipe).per_token / full_step / world
    device = torch.cuda.get_device_name() if kind == "cuda" else kind
    description = f"{full_step:.3g} s per step, measured on this machine ({device})"
    return _scale_to_gpu(
        gpu, device_flops, device, basis="here", described=description, flag="--here"
    ), measurement if gpu is None else None


def single_device_recipe(recipe: Recipe) -> Recipe:
    """Return the recipe for a single device with the share of one device of the original recipe."""
    training, task = recipe.training, recipe.task
    world = training.world_size
    if isinstance(recipe, TranslationRecipe):
        device_task = replace(recipe.task, batch_tokens=recipe.task.batch_tokens // world)
    else:
        device_task = replace(task, batch_size=getattr(task, "batch_size") // world)  # noqa: B009
    return replace(recipe, task=device_task, training=replace(training, devices=1, nodes=1, strategy="auto"))


def _scale_to_gpu(
    gpu: GPU | None, device_flops: float, device: str | None, *, basis: str, described: str, flag: str
) -> Throughput:
    """Return the throughput of a GPU, given the measured speed of a device.

    The speed is used unchanged if both are the same, or one of them is None. Otherwise the GPU is assumed to reach the
    same fraction of its peak.

    Args:
        gpu: GPU to plan for; None for the measured device.
        device_flops: Measured FLOP/s of the device.
        device: Name of the measured device; None if unknown.
        basis: Source of the speed, as in `Throughput`.
        described: Description of the measurement.
        flag: Command-line flag, for error messages.

    Raises:
        UserError: If the device is not a GPU, or one of the peaks is unknown.
    """
    measured_gpu = None if device is None or device == CPU else find_by_device_name(device, 0)
    peak = None if measured_gpu is None else measured_gpu.peak_flops
    mfu = None if peak is None else device_flops / peak
    if gpu is None or device is None:
        return Throughput(flops_per_second=device_flops, mfu=mfu, basis=basis, described=described)
    _check_kind(device, gpu, flag)
    if measured_gpu is not None and measured_gpu.name == gpu.name:
        return Throughput(flops_per_second=device_flops, mfu=mfu, basis=basis, described=described)
    if mfu is None or gpu.peak_flops is None:
        raise UserError(f"{flag} measures {device}, but no peak is known to compare it with {gpu.name}; pass --mfu")
    description = f"{described}: {mfu:.1%} of its peak, also assumed for {gpu.name}"
    return Throughput(flops_per_second=mfu * gpu.peak_flops, mfu=mfu, basis=basis, described=description)


def _check_kind(device: str, gpu: GPU | None, flag: str) -> None:
    """Check that the speed of a device can be converted to a GPU; any device will do if `gpu` is None.

    Raises:
        UserError: If there is a `gpu`, and `device` is cpu or mps.
    """
    if gpu is not None and device in (CPU, "mps"):
        raise UserError(
            f"{flag} measures {device}, which does not apply to {gpu.name}; leave out --gpus, or pass --mfu"
        )
