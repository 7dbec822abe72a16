"""A `RunPlan` for programs, as plain dictionaries, and for people, as lines and a table on the terminal."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table

from tercet.inspect.model_table_view import format_bytes, format_count
from tercet.training.planning.micro_batch import with_unit
from tercet.training.planning.ranks import RankMemory
from tercet.training.planning.run_plan import RunPlan
from tercet.training.planning.this_machine import HEADROOM

TITLES = {False: "activations kept", True: "checkpointing"}


def plan_to_dict(plan: RunPlan) -> dict[str, Any]:
    """What `json.dumps` takes."""
    return asdict(plan)


def render_plan(plan: RunPlan) -> Group:
    """What rich prints: what is to be done, what each device holds, what it takes."""
    facts = Table.grid(padding=(0, 2))
    for name, value in _facts(plan):
        facts.add_row(name, value)
    ends = Table.grid(padding=(0, 2))
    for name, value in _ends(plan):
        ends.add_row(name, value)
    return Group(facts, "", _memory(plan), "", ends)


def _facts(plan: RunPlan) -> Iterator[tuple[str, str]]:
    devices = f"{plan.devices:,} {'devices' if plan.devices > 1 else 'device'}, as the recipe says"
    strategy = "" if plan.strategy == "single" else f", {plan.strategy}"
    yield "on", f"{devices if plan.cluster is None else plan.cluster.describe()}; {plan.precision}{strategy}"
    learn = "all learn" if plan.trainable == plan.parameters else f"{plan.trainable:,} of them learn"
    yield "parameters", f"{plan.parameters:,}, {learn}"
    if plan.vocabulary_at_most:
        sizes = " and ".join(f"{size:,}" for size in plan.vocabulary_at_most.values())
        yield "vocabulary", f"{sizes} at most: learnt from the data"
    a_step = f"{with_unit(plan.micro_batch, plan.rows)}"
    shared = f"{plan.data_parallel_size:,} x {plan.micro_batches:,} x {a_step}"
    of_each = f" of {plan.length:,} tokens" if plan.rows == "rows" else f", sentences of up to {plan.length:,}"
    yield "a step", f"{with_unit(plan.batch, plan.rows)}{of_each}: {shared}"
    pairs = f" {plan.unit}s" if plan.unit == "token pair" else " tokens"
    yield "tokens", f"{plan.tokens_per_step:,}{pairs} a step" + ("" if plan.tokens is None else
        f", {format_count(plan.tokens)} in all")  # fmt: skip
    flops = "" if plan.flops is None else f", {format_count(plan.flops)} in all"
    yield (
        "FLOPs",
        f"{format_count(plan.flops_per_token)} a {plan.unit}, {format_count(plan.flops_per_step)} a step{flops}",
    )
    yield "steps", f"{plan.steps:,}, by {plan.length_from}" if plan.steps else (
        "unknown: max_hours, which need a speed: --mfu, --measured or --here")  # fmt: skip


def _memory(plan: RunPlan) -> Table:
    kept = sorted(plan.memory, key=lambda memory: memory.checkpointing)
    chosen = plan.memory[0].checkpointing
    titles = [f"{TITLES[memory.checkpointing]}{' *' if memory.checkpointing == chosen else ''}" for memory in kept]
    table = Table(f"memory of {'each' if plan.devices > 1 else 'the'} device", *titles, box=None, pad_edge=False)
    table.caption, table.caption_justify = "* as the recipe has it", "left"
    for column in table.columns[1:]:
        column.justify = "right"
    rows = {
        "weights": "weights", "gradients": "gradients", "optimizer": f"optimizer, {plan.optimizer}",
        "average": "moving average", "communication": _name_communication(plan),
        "activations": f"activations of {with_unit(plan.micro_batch, plan.rows)}", "workspace": "workspace",
    }  # fmt: skip
    for key, title in rows.items():
        sizes = [getattr(memory, key) for memory in kept]
        if any(sizes):
            table.add_row(title, *map(format_bytes, sizes))
    table.add_row("in all", *(format_bytes(memory.total) for memory in kept))
    if any(memory.host for memory in kept):
        table.add_row("in the host's memory", *(format_bytes(memory.host) for memory in kept))
    if any(memory.fits is not None for memory in kept):
        table.add_row(f"fits into {1 - HEADROOM:.0%}", *("yes" if memory.fits else "no" for memory in kept))
        table.add_row(f"largest micro-batch, {plan.rows}", *(_largest(plan, memory) for memory in kept))
    return table


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
        yield "network", f"{format_bytes(plan.communicated_bytes)} a step that each device sends, and receives"
    time = plan.time
    if time is None:
        yield "time", "unknown: give --mfu SHARE, --measured RUN or --here"
        return
    yield "speed", time.throughput.described
    own = time.throughput.flops_per_second
    mfu = (
        ""
        if time.throughput.mfu is None or time.throughput.basis == "assumed"
        else f", {time.throughput.mfu:.1%} of peak"
    )
    yield "", f"{format_count(round(own))}FLOP/s of the model on each device{mfu}"
    yield "time", f"{format_duration(time.seconds)}, {format_duration(time.seconds_per_step)} a full step"
    hours = f"{time.gpu_hours:,.4g} device hours"
    yield "cost", hours if time.cost is None else f"{time.cost:,.2f} for {hours}"


def format_duration(seconds: float) -> str:
    """Two units: `3 d 4 h`, `2 h 15 min`, `41 s`, `0.0123 s`."""
    if seconds < 60:
        return f"{seconds:.3g} s"
    units = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))
    first = next(i for i, (_, size) in enumerate(units) if seconds >= size)
    (name, size), (smaller, part) = units[first], units[first + 1]
    whole, rest = divmod(round(seconds / part), size // part)
    return f"{whole:,} {name} {rest} {smaller}" if rest else f"{whole:,} {name}"
