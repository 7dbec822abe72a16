"""Result of planning a run: parameters, FLOPs, memory per device, steps, time, cost."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tercet.checkpoint.export_problems import describe_export_problems
from tercet.notebook import Summary, Table, View, format_bytes, format_count, format_duration
from tercet.training.planning.gpus import Cluster
from tercet.training.planning.micro_batch import format_with_unit
from tercet.training.planning.ranks import RankMemory, Strategy
from tercet.training.planning.this_machine import HEADROOM
from tercet.training.planning.throughput import Throughput

TITLES = {False: "activations kept", True: "checkpointing"}


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """Time and cost of a run.

    Attributes:
        throughput: Speed of a device, and its source.
        seconds_per_step: Seconds per step with the full batch.
        seconds: Seconds of the whole run.
        gpu_hours: Hours of the run times the number of devices.
        cost: Cost in the currency of the price; None without a price.
    """

    throughput: Throughput
    seconds_per_step: float
    seconds: float
    gpu_hours: float
    cost: float | None


@dataclass(frozen=True, kw_only=True, repr=False)
class RunPlan(Summary):
    """Memory, steps, time and cost that a run requires.

    Attributes:
        recipe: Name of the recipe.
        cluster: Cluster that is planned for; None for the recipe's devices.
        devices: Number of devices over all nodes.
        strategy: single, ddp, fsdp or tp.
        precision: fp32, bf16 or fp16.
        optimizer: Kind of the optimizer.
        objective: Import path of the objective of another package; None for the default.
        parameters, trainable: Numbers of all and of trainable parameters; tied ones count once.
        vocabulary_at_most: Assumed sizes of vocabularies that are not yet trained, by `vocab_size` and
            `source_vocab_size`; None if all sizes are known.
        length: Maximum tokens per row, or per sentence for translation.
        rows: Unit of `batch` and `micro_batch`: "rows", or "tokens per side" for translation.
        unit: Unit of `flops_per_token`: "token", or "token pair" for translation.
        batch: Size of the batch of a step over all devices.
        micro_batch: Size of a micro-batch on one device.
        micro_batches: Micro-batches per device and step.
        tokens_per_step: Maximum tokens over all devices, padding included; for translation, per side.
        steps: Length of the run in steps; None if it is in hours and the speed is unknown.
        tokens: Maximum tokens of the whole run, counted as in `tokens_per_step`; None like `steps`.
        length_from: Key that sets the length: max_steps, max_epochs or max_hours.
        flops_per_token, flops_per_step, flops: FLOPs of forward and backward passes, per token or token pair, per step
            and of the whole run; the last is None like `steps`.
        communicated_bytes: Bytes that each device sends per step; it receives as many.
        memory: Memory of a device with activation checkpointing as in the recipe, and with the opposite setting.
        time: Time and cost; None if the speed is unknown.
        export_problems: Formats to which the model cannot be converted; see `tercet.export_problems`.
    """

    recipe: str
    cluster: Cluster | None
    devices: int
    strategy: Strategy
    precision: str
    optimizer: str
    objective: str | None
    parameters: int
    trainable: int
    vocabulary_at_most: dict[str, int] | None
    length: int
    rows: Literal["rows", "tokens per side"]
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
    export_problems: dict[str, list[str]]

    @property
    def data_parallel_size(self) -> int:
        """Number of shares into which the batch is divided."""
        return 1 if self.strategy == "tp" else self.devices

    def to_dict(self) -> dict[str, Any]:
        """Return the attributes as nested dicts for JSON."""
        return asdict(self)

    def view(self) -> View:
        """Return tables of the work of the run, of the memory per device, and of time and cost."""
        facts = Table(rows=list(_facts(self)), left=(0, 1))
        return View((facts, "", _memory(self), "", Table(rows=list(_ends(self)), left=(0, 1))))


def _facts(plan: RunPlan) -> Iterator[tuple[str, str]]:
    devices = f"{plan.devices:,} {'devices' if plan.devices > 1 else 'device'}, as in the recipe"
    strategy = "" if plan.strategy == "single" else f", {plan.strategy}"
    yield "on", f"{devices if plan.cluster is None else plan.cluster.describe()}; {plan.precision}{strategy}"
    learn = "all trainable" if plan.trainable == plan.parameters else f"{plan.trainable:,} trainable"
    yield "parameters", f"{plan.parameters:,}, {learn}"
    if plan.objective is not None:
        yield "objective", plan.objective
    if (problems := describe_export_problems(plan.export_problems)) is not None:
        yield "model", problems
    if plan.vocabulary_at_most:
        sizes = " and ".join(f"{size:,}" for size in plan.vocabulary_at_most.values())
        yield "vocabulary", f"at most {sizes}; trained on the data"
    micro_batch = f"{format_with_unit(plan.micro_batch, plan.rows)}"
    split = f"{plan.data_parallel_size:,} x {plan.micro_batches:,} x {micro_batch}"
    row_length = f" of {plan.length:,} tokens" if plan.rows == "rows" else f", sentences of up to {plan.length:,}"
    yield "step", f"{format_with_unit(plan.batch, plan.rows)}{row_length}: {split}"
    pairs = f" {plan.unit}s" if plan.unit == "token pair" else " tokens"
    yield "tokens", f"{plan.tokens_per_step:,}{pairs} per step" + ("" if plan.tokens is None else
        f", {format_count(plan.tokens)} in total")  # fmt: skip
    flops = "" if plan.flops is None else f", {format_count(plan.flops)} in total"
    yield (
        "FLOPs",
        f"{format_count(plan.flops_per_token)} per {plan.unit}, {format_count(plan.flops_per_step)} per step{flops}",
    )
    yield "steps", f"{plan.steps:,}, by {plan.length_from}" if plan.steps else (
        "unknown: max_hours requires a speed; pass --mfu, --measured or --here")  # fmt: skip


def _memory(plan: RunPlan) -> Table:
    columns = sorted(plan.memory, key=lambda memory: memory.checkpointing)
    checkpointing = plan.memory[0].checkpointing
    titles = [
        f"{TITLES[memory.checkpointing]}{' *' if memory.checkpointing == checkpointing else ''}" for memory in columns
    ]
    names = {
        "weights": "weights", "gradients": "gradients", "optimizer": f"optimizer, {plan.optimizer}",
        "average": "moving average", "communication": _name_communication(plan),
        "activations": f"activations of {format_with_unit(plan.micro_batch, plan.rows)}", "workspace": "workspace",
    }  # fmt: skip
    sizes = {title: [getattr(memory, key) for memory in columns] for key, title in names.items()}
    rows = [(title, *map(format_bytes, values)) for title, values in sizes.items() if any(values)]
    rows.append(("total", *(format_bytes(memory.total) for memory in columns)))
    if any(memory.host for memory in columns):
        rows.append(("in host memory", *(format_bytes(memory.host) for memory in columns)))
    if any(memory.fits is not None for memory in columns):
        rows.append(
            (f"fits into {1 - HEADROOM:.0%} of memory", *("yes" if memory.fits else "no" for memory in columns))
        )
        rows.append((f"largest micro-batch, {plan.rows}", *(_largest(plan, memory) for memory in columns)))
    header = f"memory of {'each' if plan.devices > 1 else 'the'} device", *titles
    return Table(header=header, rows=rows, caption="* as in the recipe", flush=True)


def _largest(plan: RunPlan, memory: RankMemory) -> str:
    if memory.largest_micro_batch is None:
        return "none"
    shares = plan.data_parallel_size
    whole = memory.largest_micro_batch * shares >= plan.batch - shares + 1
    return f"{memory.largest_micro_batch:,}{' (all)' if whole else ''}"


def _name_communication(plan: RunPlan) -> str:
    return "buckets of ddp" if plan.strategy == "ddp" else "gathered by fsdp"


def _ends(plan: RunPlan) -> Iterator[tuple[str, str]]:
    if plan.communicated_bytes:
        yield "network", f"{format_bytes(plan.communicated_bytes)} per step sent and received by each device"
    time = plan.time
    if time is None:
        yield "time", "unknown; pass --mfu SHARE, --measured RUN or --here"
        return
    yield "speed", time.throughput.described
    flops_per_second = time.throughput.flops_per_second
    mfu = (
        ""
        if time.throughput.mfu is None or time.throughput.basis == "assumed"
        else f", {time.throughput.mfu:.1%} of peak"
    )
    yield "", f"{format_count(round(flops_per_second))}FLOP/s of the model on each device{mfu}"
    yield "time", f"{format_duration(time.seconds)}, {format_duration(time.seconds_per_step)} per full step"
    hours = f"{time.gpu_hours:,.4g} device hours"
    yield "cost", hours if time.cost is None else f"{time.cost:,.2f} for {hours}"
