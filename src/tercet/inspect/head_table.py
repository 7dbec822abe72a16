"""Scores of attention heads as a table."""

from collections.abc import Sequence
from typing import Any

from tercet.notebook import Table, View

TITLES = {"previous": "previous token", "induction": "induction", "ablation": "ablation"}


def render_heads(attentions: Sequence[dict[str, Any]]) -> View:
    """Return a table of the scores from `heads_to_dicts`, one row per head. The largest value of a column is bold."""
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
    notes = "mean weight on the previous token, and on the token after the last occurrence, in repeated random tokens"
    if "ablation" in kinds:
        notes += "; increase of the prompt's loss with the head set to zero"
    header = ("attention", "head", *(TITLES[kind] for kind in kinds))
    return View((Table(header=header, rows=rows, bold=bold, flush=True), "", notes))


def _format(kind: str, value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:+.4f}" if kind == "ablation" else f"{value:.3f}"
