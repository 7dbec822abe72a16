"""A `ModelTable` for programs, as plain dictionaries, and for people, as a table on the terminal."""

from dataclasses import asdict
from typing import Any

from rich.console import Group
from rich.table import Table

from tercet.inspect.model_table import ModelTable
from tercet.notebook import format_bytes, format_count


def table_to_dict(table: ModelTable) -> dict[str, Any]:
    """What `json.dumps` takes."""
    return asdict(table)


def render_table(table: ModelTable) -> Group:
    """What rich prints: the layers, then what the whole costs."""
    layers = Table("layer", "module", "output", "parameters", f"FLOPs/{table.unit}", box=None)
    for row in table.rows:
        shape = " x ".join(map(str, row.shape))
        kind = row.kind if row.count == 1 else f"{row.count} x {row.kind}"
        count = f"{row.parameters:,}" if row.parameters else ""
        parameters = " + ".join(part for part in (f"= {row.tied_to}" if row.tied_to else "", count) if part)
        layers.add_row(row.name, kind, shape, parameters, format_count(row.flops) if row.flops else "")
    layers.add_section()
    layers.add_row("total", "", "", f"{table.parameters:,}", format_count(table.flops_forward))
    layers.columns[0].overflow = "fold"  # a name is told whole, on a narrow terminal in two lines
    layers.columns[3].justify = layers.columns[4].justify = "right"
    memory = table.memory
    costs = Table("cost", "", box=None)
    costs.add_row(f"training, FLOPs/{table.unit}", f"{format_count(table.flops_training)}  (6 N + 12 L d T)")
    costs.add_row("weights", _format_both(memory.weights_float32, memory.weights_bfloat16))
    costs.add_row("gradients, AdamW", f"{format_bytes(memory.gradients)}, {format_bytes(memory.optimizer)}")
    costs.add_row("training", f"{format_bytes(memory.training)}, and the activations")
    pairs = table.unit == "token pair"
    cache = _format_both(memory.cache_per_token_float32, memory.cache_per_token_bfloat16)
    if memory.cache_per_token_float32:
        costs.add_row("cache per target token" if pairs else "cache per token", cache)
    if pairs:
        source = _format_both(memory.cache_per_source_token_float32, memory.cache_per_source_token_bfloat16)
        costs.add_row("cache per source token", source)
    attentions = sum(row.count for row in table.rows if row.kind == "Attention")
    length = f"T = {table.length:,}{' on each side' if pairs else ''}"
    multiplied = f"N = {table.multiplied:,} multiplied, L = {attentions} attentions"
    assumed = "attention as if not causal" if memory.cache_per_token_float32 else "every place scored, masked or not"
    costs.caption = f"{multiplied}, {length}; {assumed}"
    return Group(layers, "", costs)


def _format_both(float32: int, bfloat16: int) -> str:
    return f"{format_bytes(float32)} float32, {format_bytes(bfloat16)} bfloat16"
