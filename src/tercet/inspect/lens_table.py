"""The logit lens of one text as a table: predictions of each block for each token, and the loss.

    table = lens_table(trained, recording, top=3)
    table.lens["stack.blocks.1"].ids[row], table.losses[row]

The predictions of the last block are the model's own. In a causal stack, a row predicts the next token, and its loss is
the loss of that token; in an encoder, a row predicts its own position.
"""

from dataclasses import dataclass
from typing import Any

from tercet.checkpoint import TrainedModel
from tercet.inspect.lens import TopPredictions, lens_top_tokens
from tercet.inspect.losses import mean_loss, token_losses
from tercet.inspect.recording import Recording, Side
from tercet.inspect.token_text import label_with_spaces
from tercet.notebook import Table, View

MAX_TOKEN_CHARACTERS = 12  # displayed characters of a token


@dataclass(frozen=True, kw_only=True)
class LensTable:
    """Predictions of each block for one text.

    Attributes:
        recording: Forward pass that the table is from.
        lens: Predictions by the name of each tensor of the residual stream, from the embedding to the last block; empty
            without a language-model head.
        losses: Loss of each row in nats; None for rows without a target.
    """

    recording: Recording
    lens: dict[str, TopPredictions]
    losses: list[float | None]

    @property
    def loss(self) -> float | None:
        """The mean of the losses that are not None; None if there are none."""
        return mean_loss(self.losses)

    def cells(self, row: int) -> list[list[tuple[int, str, float]]]:
        """Return the most likely tokens at this row, as (id, text, probability), for each tensor of the stream."""
        tokenizer = self.recording.side.tokenizer
        return [
            list(zip(top.ids[row], tokenizer.tokens(top.ids[row]), top.probabilities[row].tolist(), strict=True))
            for top in self.lens.values()
        ]


def lens_table(trained_model: TrainedModel, recording: Recording, *, top: int = 1) -> LensTable:
    """Return the `top` most likely tokens after each block at each row of a recording, and the losses."""
    if recording.logits is None:
        return LensTable(recording=recording, lens={}, losses=[None] * len(recording.side.ids))
    lens = lens_top_tokens(trained_model.model, recording.activations, top)
    return LensTable(recording=recording, lens=lens, losses=token_losses(recording, recording.logits))


def lens_to_dict(table: LensTable) -> dict[str, Any]:
    """Return the table for JSON."""
    recording = table.recording
    rows = [
        [[{"id": i, "text": text, "probability": p} for i, text, p in cell] for cell in table.cells(row)]
        for row in range(len(recording.side.ids))
    ]
    return {
        "sides": {name: _tokens_to_dicts(side) for name, side in recording.sides.items()},
        "truncated": recording.truncated,
        "lens": {"names": list(table.lens), "rows": rows if table.lens else []},
        "loss": None if table.loss is None else {"mean": table.loss, "tokens": table.losses},
    }


def render_lens(table: LensTable, *, width: int, original: LensTable | None = None) -> View:
    """Return one row per token of the last stack, with as many of the last blocks as fit into `width`.

    Args:
        table: Table to show.
        width: Width of the terminal in characters.
        original: Table of the same tokens without edits, whose losses are shown too.
    """
    side, names = table.recording.side, list(table.lens)
    has_loss = table.loss is not None
    headings = ["row", "token", "id", *(["loss"] if has_loss else []), *(["before"] if has_loss and original else [])]
    cells = [
        [[f"{_shorten(text)} {probability:.2f}" for _, text, probability in cell] for cell in table.cells(row)]
        for row in range(len(side.ids))
    ]
    widths = [max(len(line) for row in cells for line in row[i]) + 2 for i in range(len(names))]
    max_width = width - 6 - (MAX_TOKEN_CHARACTERS + 2) - 9 * (len(headings) - 2)
    n_shown = max(1, sum(sum(widths[i:]) <= max_width for i in range(len(widths)))) if widths else 0
    n_hidden = len(names) - n_shown
    header = [*headings, *map(_name_column, names[n_hidden:])]
    rows = list[list[str]]()
    for row, (number, text) in enumerate(zip(side.ids, side.texts, strict=True)):
        losses = [_format_nats(table.losses[row])] if has_loss else []
        losses += [_format_nats(original.losses[row])] if has_loss and original else []
        blocks = ["\n".join(cell) for cell in cells[row][n_hidden:]]
        rows.append([str(row), _shorten(text), str(number), *losses, *blocks])
    left = (1, *range(len(headings), len(header)))
    grid = Table(header=header, rows=rows, left=left, unbroken=range(len(header)), flush=True)
    return View((*_describe_sources(table.recording), grid, "", _write_notes(table, n_hidden)))


def _describe_sources(recording: Recording) -> list[str]:
    """Return lines with the tokens of each stack except the last, whose tokens are the rows of the table."""
    lines = list[str]()
    for name, side in list(recording.sides.items())[:-1]:
        tokens = [f"{label_with_spaces(text)} {number}" for text, number in zip(side.texts, side.ids, strict=True)]
        lines += [f"the {name} reads {len(tokens)} tokens, with their ids: " + ", ".join(tokens), ""]
    return lines


def _write_notes(table: LensTable, n_hidden: int) -> str:
    notes: list[str] = []
    if table.recording.truncated:
        notes.append("the text is longer than the context and was truncated")
    if not table.lens:
        notes.append("the model has no language-model head, so there are no predictions")
    else:
        meaning = "next token" if table.recording.causal else "token"
        notes.append(f"predicted {meaning} if the model ended after each block; the last block is the model's output")
    if n_hidden:
        notes.append(
            f"columns before {_name_column(list(table.lens)[n_hidden])} do not fit; widen the terminal to show them"
        )
    if table.loss is not None:
        notes.append(f"mean loss: {table.loss:.4f} nats/token")
    return "\n".join(notes)


def _tokens_to_dicts(side: Side) -> list[dict[str, Any]]:
    return [{"id": number, "text": text} for number, text in zip(side.ids, side.texts, strict=True)]


def _shorten(token: str) -> str:
    text = label_with_spaces(token)
    return text if len(text) <= MAX_TOKEN_CHARACTERS else text[: MAX_TOKEN_CHARACTERS - 1] + "…"


def _format_nats(loss: float | None) -> str:
    return "" if loss is None else f"{loss:.3f}"


def _name_column(name: str) -> str:
    last = name.rpartition(".")[2]
    return f"block {last}" if last.isdecimal() else "embedding"
