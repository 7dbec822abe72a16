"""Scores of attention heads as a table."""

from collections.abc import Sequence
from typing import Any

from tercet.notebook import Table, View

TITLES = {"previous": "token before", "induction": "induction", "ablation": "loss without"}


def render_heads(attentions: Sequence[dict[str, Any]]) -> View:
    """Return one row per head of what `heads_to_dicts` returned; the largest value of each column is bold."""
    kinds = [kind for kind in TITLES if any(attention[kind] for attention in attentions)]
    rows, bold = list[tuple[str, ...]](), list[tuple[int, int]]()
    largest = {kind: max(value for attention in attentions for value in attention[kind] or ()) for kind in kinds}
    for attention in attentions:
        n_heads = len(next(attention[kind] for kind in kinds if attention[kind]))
        for head in range(n_heads):
            values = [None if attention[kind] is None else attention[kind][head] for kind in kinds]
            cells = [_format(kind, value) for kind, value in zip(kinds, values, strict=True)]
            places = enumerate(zip(kinds, values, strict=True), start=2)
            bold += [(len(rows), column) for column, (kind, value) in places if value == largest[kind]]
            rows.append((attention["name"] if head == 0 else "", str(head), *cells))
    notes = "weight on the token before, and on what followed this token earlier, in random tokens that are said twice"
    if "ablation" in kinds:
        notes += "; how much the loss of the prompt rises with the head at zero"
    header = ("attention", "head", *(TITLES[kind] for kind in kinds))
    return View((Table(header=header, rows=rows, bold=bold, flush=True), "", notes))


def _format(kind: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:+.4f}" if kind == "ablation" else f"{value:.3f}"
