"""What a run will need, before anything is trained: parameters, FLOPs, memory of each device, steps, time, cost."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from tercet.config import UserError
from tercet.notebook import Summary, rich_html
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
    Strategy,
    communicated_bytes,
    estimate_rank,
    rank_part,
    strategy_of,
)
from tercet.training.planning.step_memory import Device, StepMemory, measure_step
from tercet.training.planning.this_machine import device_memory, usable_memory
from tercet.training.planning.throughput import Throughput, assume, measure_here, measure_run
from tercet.training.recipe.recipe import Recipe
from tercet.training.tasks.model_sizes import SizedRecipe, read_task, size_recipe
from tercet.training.tasks.plan import Plan

if TYPE_CHECKING:
    from tercet.training.compute.speed import Speed


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """Attributes:
    seconds_per_step, seconds: of a full step, and of the whole run.
    gpu_hours: of all devices together.
    cost: in the money of the price; None without one.
    """

    throughput: Throughput
    seconds_per_step: float
    seconds: float
    gpu_hours: float
    cost: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class RunPlan(Summary):
    """Attributes:
    recipe: its name.
    cluster: None where nobody said one.
    devices: over all nodes.
    precision: fp32, bf16 or fp16.
    parameters, trainable: numbers, tied ones once.
    vocabulary_at_most: where vocabularies are still to be learnt, the sizes that are counted with, by side.
    length: tokens of a row; of a translator the most of a sentence.
    batch, micro_batch: rows of a step over all devices, and of what one holds at once; of a translator tokens a side.
    micro_batches: of a device in a step.
    tokens_per_step: at the most, over all devices; of a translator a side, padding included.
    steps, tokens: of the whole run; None where hours say how long it is, and nobody how fast.
    length_from: which setting says how long the run is.
    flops_per_token, flops_per_step, flops: forward and backward; of a translator for a pair of tokens.
    communicated_bytes: that each device sends in a step, and receives.
    memory: as the recipe keeps activations first, then the other way.
    time: None where nobody said how fast a device is.
    """

    recipe: str
    cluster: Cluster | None
    devices: int
    strategy: Strategy
    precision: str
    optimizer: str
    parameters: int
    trainable: int
    vocabulary_at_most: dict[str, int] | None
    length: int
    rows: Literal["rows", "tokens a side"]
    unit: Literal["token", "token pair"]
    batch: int
    micro_batch: int
    micro_batches: int
    tokens_per_step: int
    steps: int | None
    tokens: int | None
    length_from: str
    flops_per_token: int
    flops_per_step: int
    flops: int | None
    communicated_bytes: int
    memory: tuple[RankMemory, RankMemory]
    time: RunTime | None

    @property
    def data_parallel_size(self) -> int:
        """In how many shares the batch is divided."""
        return 1 if self.strategy == "tp" else self.devices

    def _repr_html_(self) -> str:
        from tercet.training.planning.run_plan_view import render_plan

        return rich_html(render_plan(self))


def plan_run(
    name: str,
    recipe: Recipe,
    *,
    cluster: Cluster | None = None,
    mfu: float | None = None,
    measured: Path | None = None,
    here: bool = False,
    price: float | None = None,
    progress: bool = False,
) -> RunPlan:
    """Plan a run.

    Args:
        name: of the recipe.
        cluster: what it is to run on, in place of the recipe's devices.
        mfu: the share of a GPU's peak that is assumed.
        measured: the folder of a run whose speed is taken.
        here: take the speed of this machine, which is measured.
        price: of a device for an hour.
        progress: say on stderr how far reading the data is, where they must be read.

    Raises:
        UserError: where recipe, data and cluster do not fit together, or a speed says nothing of the cluster.
    """
    if cluster is not None:
        recipe = on_cluster(recipe, cluster)
    device, precision = _device_of(recipe, cluster, here)
    sized = size_recipe(recipe, progress=progress)
    if recipe.training.max_epochs is not None and sized.task is None:
        task = read_task(recipe, progress=progress)
        sized = SizedRecipe(task.recipe, task=task)
    recipe = sized.recipe
    plan = plan_without_data(recipe) if sized.task is None else sized.task.plan
    count = cache(partial(count_step, recipe, device, precision))
    part, keeps, room = rank_part(recipe), recipe.training.activation_checkpointing, _room(cluster, here)
    count_part = count if part is recipe else cache(partial(count_step, part, device, precision))
    micro = auto_micro_batch(recipe, count_part, checkpointing=keeps, room=room)
    passes, step = micro_batches(recipe, micro), count(micro, keeps)
    flops = training_flops(recipe, step)
    throughput, speed = _throughput(sized, cluster, mfu=mfu, measured=measured, here=here)
    world, row_flops = recipe.training.world_size, tokens_of_row(recipe) * flops.per_token
    if recipe.training.max_hours is not None and throughput is not None:
        plan = _within_hours(plan, recipe, throughput, speed, row_flops)
    full_batch = plan.unit * plan.units
    memory = partial(_rank_memory, recipe, count_part, micro, room)
    return RunPlan(
        recipe=name,
        cluster=cluster,
        devices=world,
        strategy=strategy_of(recipe),
        precision=precision,
        optimizer=recipe.training.optimizer.kind,
        parameters=step.parameters,
        trainable=step.trainable,
        vocabulary_at_most=sized.at_most,
        length=recipe.model.max_len,
        rows=unit_of(recipe),
        unit=flops.unit,
        batch=device_share(recipe) * recipe.training.data_parallel_size,
        micro_batch=micro,
        micro_batches=passes,
        tokens_per_step=full_batch * tokens_of_row(recipe),
        steps=plan.steps or None,
        tokens=plan.rows_before(plan.steps) * tokens_of_row(recipe) or None,
        length_from=_length_from(recipe),
        flops_per_token=flops.per_token,
        flops_per_step=full_batch * row_flops,
        flops=plan.rows_before(plan.steps) * row_flops or None,
        communicated_bytes=communicated_bytes(recipe, step, precision, share=device_share(recipe), passes=passes),
        memory=(memory(keeps), memory(not keeps)),
        time=None if throughput is None else _time(plan, recipe, throughput, speed, row_flops, price),
    )


def on_cluster(recipe: Recipe, cluster: Cluster) -> Recipe:
    """The recipe with the cluster's devices in place of its own.

    Raises:
        UserError: where they cannot share its batch.
    """
    devices = cluster.count // cluster.nodes
    try:
        return replace(recipe, training=replace(recipe.training, devices=devices, nodes=cluster.nodes))
    except ValueError as error:
        raise UserError(f"on {cluster.count:,} GPUs: {error}") from None


def _rank_memory(
    recipe: Recipe, count: Callable[[int, bool], StepMemory], micro: int, room: int | None, checkpointing: bool
) -> RankMemory:
    memory = estimate_rank(recipe, count(micro, checkpointing), checkpointing=checkpointing, room=room)
    if room is None:
        return memory
    return replace(
        memory, largest_micro_batch=largest_micro_batch(recipe, count, checkpointing=checkpointing, room=room)
    )


def count_step(recipe: Recipe, device: Device, precision: str, micro: int, checkpointing: bool) -> StepMemory:
    """`measure_step`, with the heads that an adapter's model is new to."""
    return measure_step(
        recipe, micro=micro, device=device, precision=precision, checkpointing=checkpointing,
        new=_new_weights(recipe),
    )  # fmt: skip


def _new_weights(recipe: Recipe) -> tuple[str, ...]:
    """The heads that the pretrained model has not, which learn beside an adapter."""
    if recipe.adapter is None or recipe.pretrained is None:
        return ()

    from torch._subclasses.fake_tensor import FakeTensorMode

    from tercet.checkpoint import read_spec
    from tercet.models import build

    with FakeTensorMode():
        old, new = (build(spec).state_dict() for spec in (read_spec(recipe.pretrained), recipe.model))
    return tuple(name for name in new if name not in old)


def _device_of(recipe: Recipe, cluster: Cluster | None, here: bool) -> tuple[Device, str]:
    """Whose operations are counted, and in what precision it trains."""
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


def _room(cluster: Cluster | None, here: bool) -> int | None:
    """Bytes that a device has for a run."""
    memory = None if cluster is None else cluster.gpu.memory_bytes
    if here and cluster is None:
        memory = device_memory()
    return usable_memory(memory)


def _throughput(
    sized: SizedRecipe, cluster: Cluster | None, *, mfu: float | None, measured: Path | None, here: bool
) -> "tuple[Throughput | None, Speed | None]":
    gpu = None if cluster is None else cluster.gpu
    if mfu is not None:
        if gpu is None:
            raise UserError("--mfu is a share of a GPU's peak: say which with --gpus, such as --gpus 8xH100")
        return assume(mfu, gpu), None
    if measured is not None:
        return measure_run(measured, gpu), None
    return measure_here(sized, gpu) if here else (None, None)


def _within_hours(plan: Plan, recipe: Recipe, throughput: Throughput, speed: "Speed | None", row_flops: int) -> Plan:
    if speed is not None:
        return speed.plan(plan, recipe.training)
    seconds = plan.unit * row_flops / throughput.flops_per_second / recipe.training.world_size
    return plan.within(3600 * (recipe.training.max_hours or 0), a_unit=seconds, a_step=0)


def _time(
    plan: Plan, recipe: Recipe, throughput: Throughput, speed: "Speed | None", row_flops: int, price: float | None
) -> RunTime | None:
    world, training = recipe.training.world_size, recipe.training
    per_row = row_flops / throughput.flops_per_second / world
    per_step = plan.unit * plan.units * per_row
    seconds = plan.rows_before(plan.steps) * per_row
    if speed is not None:  # it was measured what else there is
        per_step = plan.units * speed.a_unit + speed.a_step
        validations = plan.steps // training.validate_every + 1
        seconds = plan.units_before(plan.steps) * speed.a_unit + plan.steps * speed.a_step
        seconds += validations * speed.a_validation
    hours = world * seconds / 3600
    return RunTime(
        throughput=throughput, seconds_per_step=per_step, seconds=seconds, gpu_hours=hours,
        cost=None if price is None else price * hours,
    )  # fmt: skip


def _length_from(recipe: Recipe) -> str:
    training = recipe.training
    if training.max_steps is not None:
        return "max_steps"
    return "max_epochs" if training.max_epochs is not None else "max_hours"
