"""Estimate the parameters, FLOPs, memory per device, steps, time and cost of a run before training."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING

from tercet.checkpoint.export_problems import export_problems
from tercet.config import UserError
from tercet.training.planning.flops import training_flops
from tercet.training.planning.gpus import Cluster
from tercet.training.planning.micro_batch import (
    auto_micro_batch,
    device_share,
    largest_micro_batch,
    micro_batches,
    plan_without_data,
    tokens_of_row,
    unit_of,
)
from tercet.training.planning.ranks import (
    RankMemory,
    communicated_bytes,
    estimate_rank,
    rank_part,
    strategy_of,
)
from tercet.training.planning.run_plan import RunPlan, RunTime
from tercet.training.planning.step_memory import Device, StepMemory, measure_step
from tercet.training.planning.this_machine import device_memory, usable_memory
from tercet.training.planning.throughput import Throughput, assume, measure_run, measure_this_machine
from tercet.training.recipe.recipe import Recipe, objective_of
from tercet.training.tasks.model_sizes import SizedRecipe, read_task, size_recipe
from tercet.training.tasks.plan import Plan

if TYPE_CHECKING:
    from tercet.training.compute.speed import Speed


def plan_run(
    name: str, recipe: Recipe, *, cluster: Cluster | None = None, mfu: float | None = None,
    measured: Path | None = None, here: bool = False, price: float | None = None, progress: bool = False,
) -> RunPlan:  # fmt: skip
    """Return memory and steps of a run, and time and cost if `mfu`, `measured` or `here` gives a speed.

    Args:
        name, recipe: Name of the recipe, and the recipe.
        cluster: Cluster that replaces the recipe's devices; None for the recipe's devices.
        mfu: Assumed model FLOPs utilization, from 0 to 1; requires `cluster`.
        measured: Folder of an earlier run whose speed is used.
        here: If True, measure the speed on this machine.
        price: Price per device and hour; None for no cost.
        progress: If True, report progress on stderr if the data has to be read.

    Raises:
        UserError: If recipe, data and cluster do not fit together, or a speed does not apply to the cluster.
    """
    sized_recipe = _size(recipe if cluster is None else on_cluster(recipe, cluster), progress=progress)
    recipe = sized_recipe.recipe
    device, precision = _device_and_precision(recipe, cluster, here)
    micro, step, memory = _count_memory(recipe, device, precision, _available_bytes(cluster, here))
    passes, flops = micro_batches(recipe, micro), training_flops(recipe, step)
    row_flops = tokens_of_row(recipe) * flops.per_token
    plan, time = _schedule(sized_recipe, cluster, row_flops, mfu=mfu, measured=measured, here=here, price=price)
    return RunPlan(
        recipe=name,
        cluster=cluster,
        devices=recipe.training.world_size,
        strategy=strategy_of(recipe),
        precision=precision,
        optimizer=recipe.training.optimizer.kind,
        objective=getattr(objective_of(recipe), "kind", None),
        parameters=step.parameters,
        trainable=step.trainable,
        vocabulary_at_most=sized_recipe.vocabulary_limits,
        length=recipe.row_len,
        rows=unit_of(recipe),
        unit=flops.unit,
        batch=device_share(recipe) * recipe.training.data_parallel_size,
        micro_batch=micro,
        micro_batches=passes,
        tokens_per_step=plan.full_batch * tokens_of_row(recipe),
        steps=plan.steps or None,
        tokens=plan.rows_before(plan.steps) * tokens_of_row(recipe) or None,
        length_from=_length_key(recipe),
        flops_per_token=flops.per_token,
        flops_per_step=plan.full_batch * row_flops,
        flops=plan.rows_before(plan.steps) * row_flops or None,
        communicated_bytes=communicated_bytes(recipe, step, precision, share=device_share(recipe), passes=passes),
        memory=memory,
        time=time,
        export_problems=export_problems(recipe.model),
    )


def step_bytes(recipe: Recipe, cluster: Cluster | None = None) -> int:
    """Return the memory of a step on one device in bytes, as a plan estimates it.

    Args:
        recipe: Recipe with its vocabulary sizes.
        cluster: Cluster that replaces this machine; None for this machine.
    """
    recipe = recipe if cluster is None else on_cluster(recipe, cluster)
    device, precision = _device_and_precision(recipe, cluster, here=True)
    return _count_memory(recipe, device, precision, None)[2][0].total


def on_cluster(recipe: Recipe, cluster: Cluster) -> Recipe:
    """Return the recipe with the devices and nodes of a cluster.

    Raises:
        UserError: If the recipe does not allow this number of devices or nodes, for example because its batch cannot be
            divided among them.
    """
    devices = cluster.count // cluster.nodes
    try:
        return replace(recipe, training=replace(recipe.training, devices=devices, nodes=cluster.nodes))
    except ValueError as error:
        raise UserError(f"on {cluster.count:,} GPUs: {error}") from None


def _size(recipe: Recipe, *, progress: bool) -> SizedRecipe:
    """Return the recipe with its vocabulary sizes, and its task if sizes or length depend on the data."""
    sized_recipe = size_recipe(recipe, progress=progress)
    if recipe.training.max_epochs is not None and sized_recipe.task is None:
        task = read_task(recipe, progress=progress)
        sized_recipe = SizedRecipe(task.recipe, task=task)
    return sized_recipe


def _count_memory(
    recipe: Recipe, device: Device, precision: str, available_bytes: int | None
) -> tuple[int, StepMemory, tuple[RankMemory, RankMemory]]:
    """Return the micro-batch size, the memory of a step of the whole model, and the memory of each rank.

    The last is a pair: with activation checkpointing as in the recipe, and with the opposite setting.
    """
    count = cache(partial(count_step, recipe, device, precision))
    part, checkpointing = rank_part(recipe), recipe.training.activation_checkpointing
    count_part = count if part is recipe else cache(partial(count_step, part, device, precision))
    micro = auto_micro_batch(recipe, count_part, checkpointing=checkpointing, available_bytes=available_bytes)
    memory = partial(_rank_memory, recipe, count_part, micro, available_bytes)
    return micro, count(micro, checkpointing), (memory(checkpointing), memory(not checkpointing))


def _rank_memory(
    recipe: Recipe,
    count: Callable[[int, bool], StepMemory],
    micro: int,
    available_bytes: int | None,
    checkpointing: bool,
) -> RankMemory:
    memory = estimate_rank(
        recipe, count(micro, checkpointing), checkpointing=checkpointing, available_bytes=available_bytes
    )
    if available_bytes is None:
        return memory
    return replace(
        memory,
        largest_micro_batch=largest_micro_batch(
            recipe, count, checkpointing=checkpointing, available_bytes=available_bytes
        ),
    )


def count_step(recipe: Recipe, device: Device, precision: str, micro: int, checkpointing: bool) -> StepMemory:
    """Return the result of `measure_step` for a recipe.

    With an adapter, heads that the pretrained model lacks are trained as well.
    """
    return measure_step(
        recipe, micro=micro, device=device, precision=precision, checkpointing=checkpointing,
        new=_new_weights(recipe),
    )  # fmt: skip


def _new_weights(recipe: Recipe) -> tuple[str, ...]:
    """Return the names of weights that the pretrained model lacks; empty without an adapter.

    These weights are trained along with the adapter.
    """
    if recipe.adapter is None or recipe.pretrained is None:
        return ()

    from torch._subclasses.fake_tensor import FakeTensorMode

    from tercet.checkpoint import read_spec
    from tercet.models import build

    with FakeTensorMode():
        old, new = (build(spec).state_dict() for spec in (read_spec(recipe.pretrained), recipe.model))
    return tuple(name for name in new if name not in old)


def _device_and_precision(recipe: Recipe, cluster: Cluster | None, here: bool) -> tuple[Device, str]:
    """Return the device whose operations are counted, and the training precision: fp32, bf16 or fp16."""
    training = recipe.training
    if cluster is not None:
        return "cuda", cluster.gpu.precision if training.precision == "auto" else training.precision
    if not here:
        device = "cpu" if training.accelerator == "cpu" else "cuda"
        auto = "fp32" if device == "cpu" else "bf16"
        return device, auto if training.precision == "auto" else training.precision

    from tercet.training.compute.auto_arithmetic import choose_precision
    from tercet.training.distributed.devices import accelerator

    return "cpu" if accelerator(training) == "cpu" else "cuda", choose_precision(training)


def _available_bytes(cluster: Cluster | None, here: bool) -> int | None:
    """Return the bytes of a device that are available to a run; None if the device is unknown."""
    memory = None if cluster is None else cluster.gpu.memory_bytes
    if here and cluster is None:
        memory = device_memory()
    return usable_memory(memory)


def _schedule(
    sized_recipe: SizedRecipe,
    cluster: Cluster | None,
    row_flops: int,
    *,
    mfu: float | None,
    measured: Path | None,
    here: bool,
    price: float | None,
) -> tuple[Plan, RunTime | None]:
    """Return the plan of the steps, and their time and cost.

    If the speed is unknown, the time is None, and a length in hours is not converted to steps.
    """
    recipe = sized_recipe.recipe
    plan = plan_without_data(recipe) if sized_recipe.task is None else sized_recipe.task.plan
    throughput, speed = _throughput(sized_recipe, cluster, mfu=mfu, measured=measured, here=here)
    if throughput is None:
        return plan, None
    if recipe.training.max_hours is not None:
        plan = _plan_hours(plan, recipe, throughput, speed, row_flops)
    return plan, _time(plan, recipe, throughput, speed, row_flops, price)


def _throughput(
    sized_recipe: SizedRecipe, cluster: Cluster | None, *, mfu: float | None, measured: Path | None, here: bool
) -> "tuple[Throughput | None, Speed | None]":
    gpu = None if cluster is None else cluster.gpu
    if mfu is not None:
        if gpu is None:
            raise UserError("--mfu requires the peak of a GPU; pass --gpus, such as --gpus 8xH100")
        return assume(mfu, gpu), None
    if measured is not None:
        return measure_run(measured, gpu), None
    return measure_this_machine(sized_recipe, gpu) if here else (None, None)


def _plan_hours(plan: Plan, recipe: Recipe, throughput: Throughput, speed: "Speed | None", row_flops: int) -> Plan:
    if speed is not None:
        return speed.plan(plan, recipe.training)
    seconds = plan.unit * row_flops / throughput.flops_per_second / recipe.training.world_size
    return plan.for_hours(3600 * (recipe.training.max_hours or 0), unit_seconds=seconds, step_seconds=0)


def _time(
    plan: Plan, recipe: Recipe, throughput: Throughput, speed: "Speed | None", row_flops: int, price: float | None
) -> RunTime | None:
    world, training = recipe.training.world_size, recipe.training
    per_row = row_flops / throughput.flops_per_second / world
    per_step = plan.full_batch * per_row
    seconds = plan.rows_before(plan.steps) * per_row
    if speed is not None:  # a measurement includes optimizer steps and validations
        per_step = plan.units * speed.unit_seconds + speed.step_seconds
        validations = plan.steps // training.validate_every + 1
        seconds = plan.units_before(plan.steps) * speed.unit_seconds + plan.steps * speed.step_seconds
        seconds += validations * speed.validation_seconds
    hours = world * seconds / 3600
    return RunTime(
        throughput=throughput, seconds_per_step=per_step, seconds=seconds, gpu_hours=hours,
        cost=None if price is None else price * hours,
    )  # fmt: skip


def _length_key(recipe: Recipe) -> str:
    training = recipe.training
    if training.max_steps is not None:
        return "max_steps"
    return "max_epochs" if training.max_epochs is not None else "max_hours"
