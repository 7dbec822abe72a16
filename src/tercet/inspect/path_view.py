"""The path of a sentence, the scores of heads, the parts of a logit: tables for people, dictionaries for programs."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tercet.inspect.attribution import Attribution
from tercet.inspect.heads import HeadScores
from tercet.inspect.paths import Guess, Path
from tercet.inspect.pictures import exact
from tercet.inspect.sentence import Side

TOKEN = 12  # the most characters of a token that are shown


def path_as_dict(path: Path) -> dict[str, Any]:
    return {
        "sides": {name: _tokens(side) for name, side in path.sides.items()},
        "truncated": path.truncated,
        "lens": {"names": path.names, "rows": [[[_guess(one) for one in cell] for cell in row] for row in path.lens]},
        "loss": None if path.loss is None else {"mean": path.loss, "tokens": path.losses},
    }


def path_as_table(path: Path, *, width: int, before: Path | None = None) -> Group:
    """A row for each token of the last side, a column for each block, as many of the last ones as fit into `width`.

    Args:
        before: the path without the edits that this one was made with.
    """
    *others, (_, side) = path.sides.items()
    parts: list[Text | Table] = []
    for name, other in others:
        pairs = [f"{exact(text)} {number}" for text, number in zip(other.texts, other.ids, strict=True)]
        parts += [Text(f"the {name} reads {len(pairs)} tokens, with their ids: " + ", ".join(pairs)), Text("")]
    losses = path.loss is not None
    columns = ["row", "token", "id", *(["loss"] if losses else []), *(["before"] if losses and before else [])]
    cells = [[[_said(one) for one in cell] for cell in row] for row in path.lens]
    widths = [max(len(said) for row in cells for said in row[i]) + 2 for i in range(len(path.names))]
    room = width - 6 - (TOKEN + 2) - 9 * (len(columns) - 2)
    shown = max(1, sum(sum(widths[i:]) <= room for i in range(len(widths)))) if widths else 0
    hidden = len(path.names) - shown
    table = Table(*columns, *(_heading(name) for name in path.names[hidden:]), box=None, padding=(0, 2, 0, 0))
    for number in (0, *range(2, len(columns))):
        table.columns[number].justify = "right"
    for column in table.columns:
        column.no_wrap = True
    for row, (number, text) in enumerate(zip(side.ids, side.texts, strict=True)):
        known = [_nats(path.losses[row])] if losses else []
        known += [_nats(before.losses[row])] if losses and before else []
        said = ["\n".join(cell) for cell in cells[row][hidden:]] if cells else []
        table.add_row(*(Text(one) for one in [str(row), _cut(exact(text)), str(number), *known, *said]))
    parts.append(table)
    return Group(*parts, Text(""), Text(_notes(path, hidden)))


def change_as_dict(
    edits: Sequence[str], before: Path, after: Path, change: tuple[int, Guess, float] | None
) -> dict[str, Any]:
    row, was, became = change or (None, None, None)
    most = None if was is None else {"row": row, **_guess(was), "becomes": became}
    return {"edits": list(edits), "loss_before": before.loss, "loss_after": after.loss, "most_changed": most}


def change_as_text(found: dict[str, Any]) -> Text:
    """What `change_as_dict` gave, in a sentence."""
    said = f"with {', '.join(found['edits'])} at zero"
    if found["loss_before"] is not None:
        rise = found["loss_after"] - found["loss_before"]
        said += f" the loss goes from {found['loss_before']:.4f} to {found['loss_after']:.4f} ({rise:+.4f})"
    most = found["most_changed"]
    if most is not None:
        joint = "; most changes" if found["loss_before"] is not None else " most changes"
        said += (
            f"{joint} {exact(most['text'])} at row {most['row']}, {most['probability']:.3f} to {most['becomes']:.3f}"
        )
    return Text(said)


def heads_as_dict(scores: HeadScores, rises: Mapping[str, Sequence[float]] | None) -> list[dict[str, Any]]:
    names = list(scores.previous) if rises is None else list(rises)
    return [
        {
            "name": name,
            "previous": scores.previous[name].tolist() if name in scores.previous else None,
            "induction": scores.induction[name].tolist() if name in scores.induction else None,
            "ablation": None if rises is None else list(rises[name]),
        }
        for name in names
    ]


def heads_as_table(rows: Sequence[dict[str, Any]]) -> Group:
    """What `heads_as_dict` gave, a line for each head; the largest of each column is bold."""
    kinds = [kind for kind in ("previous", "induction", "ablation") if any(row[kind] for row in rows)]
    titles = {"previous": "token before", "induction": "induction", "ablation": "loss without"}
    table = Table("attention", "head", *(titles[kind] for kind in kinds), box=None, padding=(0, 2, 0, 0))
    for column in table.columns[1:]:
        column.justify = "right"
    largest = {kind: max(value for row in rows for value in row[kind] or ()) for kind in kinds}
    for row in rows:
        count = len(next(row[kind] for kind in kinds if row[kind]))
        for head in range(count):
            values = [None if row[kind] is None else row[kind][head] for kind in kinds]
            marks = ["bold" if value == largest[kind] else "" for kind, value in zip(kinds, values, strict=True)]
            said = [
                "" if value is None else f"{value:+.4f}" if kind == "ablation" else f"{value:.3f}"
                for kind, value in zip(kinds, values, strict=True)
            ]
            name = row["name"] if head == 0 else ""
            table.add_row(name, str(head), *(Text(s, style=mark) for s, mark in zip(said, marks, strict=True)))
    notes = "weight on the token before, and on what followed this token earlier, in random tokens that are said twice"
    if "ablation" in kinds:
        notes += "; how much the loss of the prompt rises with the head at zero"
    return Group(table, Text(""), Text(notes))


def shares_as_dict(row: int, side: Side, token: int, shares: Attribution) -> dict[str, Any]:
    return {
        "row": row,
        "id": token,
        "text": side.tokenizer.tokens([token])[0],
        "names": shares.names,
        "values": shares.values[:, 0].tolist(),
        "logit": float(shares.logits[0]),
    }


def shares_as_table(found: dict[str, Any], side: Side, *, count: int = 12) -> Group:
    """What `shares_as_dict` gave: the largest parts, the rest in one line."""
    pairs = sorted(zip(found["names"], found["values"], strict=True), key=lambda pair: -abs(pair[1]))
    table = Table("part", "share", box=None, padding=(0, 2, 0, 0))
    table.columns[1].justify = "right"
    for name, value in pairs[:count]:
        table.add_row(name, f"{value:+.3f}")
    if pairs[count:]:
        table.add_row(f"{len(pairs) - count} more", f"{sum(value for _, value in pairs[count:]):+.3f}")
    table.add_section()
    table.add_row("logit", f"{found['logit']:+.3f}")
    row, text = found["row"], exact(side.texts[found["row"]])
    return Group(Text(f"the logit of {exact(found['text'])} at row {row} ({text}), as a sum over the parts"), table)


def _tokens(side: Side) -> list[dict[str, Any]]:
    return [{"id": number, "text": text} for number, text in zip(side.ids, side.texts, strict=True)]


def _guess(one: Guess) -> dict[str, Any]:
    return {"id": one.id, "text": one.text, "probability": one.probability}


def _said(one: Guess) -> str:
    return f"{_cut(exact(one.text))} {one.probability:.2f}"


def _cut(text: str) -> str:
    return text if len(text) <= TOKEN else text[: TOKEN - 1] + "…"


def _nats(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.3f}"


def _heading(name: str) -> str:
    last = name.rpartition(".")[2]
    return f"block {last}" if last.isdecimal() else "embedding"


def _notes(path: Path, hidden: int) -> str:
    notes: list[str] = []
    if path.truncated:
        notes.append("the text is longer than the context; a part of it was left out")
    if not path.names:
        notes.append("the model scores no words, so there are no guesses")
    else:
        whom = "comes after the token" if path.causal else "stands there"
        notes.append(f"what {whom}, if the model ended with that block; the last block's is what it says")
    if hidden:
        notes.append(f"what stands before {_heading(path.names[hidden])} does not fit; widen the terminal to see it")
    if path.loss is not None:
        notes.append(f"loss of what came: {path.loss:.4f} nats/token")
    return "\n".join(notes)
