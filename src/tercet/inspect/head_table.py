"""Where heads look and what they are worth, as a table on the terminal."""

from collections.abc import Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

TITLES = {"previous": "token before", "induction": "induction", "ablation": "loss without"}


def render_heads(attentions: Sequence[dict[str, Any]]) -> Group:
    """What `heads_to_dicts` gave, a line for each head; the largest of each column is bold."""
    kinds = [kind for kind in TITLES if any(attention[kind] for attention in attentions)]
    table = Table("attention", "head", *(TITLES[kind] for kind in kinds), box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    largest = {kind: max(value for attention in attentions for value in attention[kind] or ()) for kind in kinds}
    for attention in attentions:
        n_heads = len(next(attention[kind] for kind in kinds if attention[kind]))
        for head in range(n_heads):
            cells: list[Text] = []
            for kind in kinds:
                if attention[kind] is None:
                    cells.append(Text(""))
                    continue
                value = attention[kind][head]
                style = "bold" if value == largest[kind] else ""
                cells.append(Text(f"{value:+.4f}" if kind == "ablation" else f"{value:.3f}", style=style))
            table.add_row(attention["name"] if head == 0 else "", str(head), *cells)
    notes = "weight on the token before, and on what followed this token earlier, in random tokens that are said twice"
    if "ablation" in kinds:
        notes += "; how much the loss of the prompt rises with the head at zero"
    return Group(table, Text(""), Text(notes))
