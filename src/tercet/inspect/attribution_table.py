"""The parts of a model that speak for a token, as a table."""

from typing import Any

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.inspect.attribution import attribute_logit
from tercet.inspect.recording import Recording
from tercet.inspect.token_text import label_with_spaces
from tercet.notebook import Table, View
from tercet.tokens import Tokenizer

MAX_PARTS = 12  # that have a line each


def attribution_to_dict(
    trained_model: TrainedModel, recording: Recording, *, row: int | None, text: str | None
) -> dict[str, Any]:
    """For programs: the parts of a token's logit.

    Args:
        row: the last by default; in a masked language model the first mask.
        text: the token; the likeliest by default.

    Raises:
        UserError: for a row or a token that is not there, and a model whose logits are no sum.
    """
    side = recording.side
    if recording.logits is None:
        raise UserError(f"{trained_model.folder} scores no words, so there is no logit to attribute")
    if row is None:
        row = len(side.ids) - 1 if recording.masked_row is None else recording.masked_row
    if not 0 <= row < len(side.ids):
        raise UserError(f"there is no row {row}; the {len(side.ids)} tokens are rows 0 to {len(side.ids) - 1}")
    token = int(recording.logits[row].argmax()) if text is None else _find_token(side.tokenizer, text)
    attribution = attribute_logit(trained_model.model, recording, row=row, token=token)
    return {
        "row": row,
        "id": token,
        "text": side.tokenizer.tokens([token])[0],
        "names": attribution.names,
        "values": attribution.values[:, 0].tolist(),
        "logit": float(attribution.logits[0]),
    }


def render_attribution(attribution: dict[str, Any], recording: Recording) -> View:
    """Return the largest parts of what `attribution_to_dict` returned, and the others in one row."""
    pairs = sorted(zip(attribution["names"], attribution["values"], strict=True), key=lambda pair: -abs(pair[1]))
    rows = [(name, f"{value:+.3f}") for name, value in pairs[:MAX_PARTS]]
    if len(pairs) > MAX_PARTS:
        rows.append((f"{len(pairs) - MAX_PARTS} more", f"{sum(value for _, value in pairs[MAX_PARTS:]):+.3f}"))
    rows.append(("logit", f"{attribution['logit']:+.3f}"))
    row, token = attribution["row"], label_with_spaces(attribution["text"])
    place = f"row {row} ({label_with_spaces(recording.side.texts[row])})"
    table = Table(header=("part", "share"), rows=rows, flush=True)
    return View((f"the logit of {token} at {place}, as a sum over the parts", table))


def _find_token(tokenizer: Tokenizer, text: str) -> int:
    """The id of a token as it is shown, else of a text that is one token."""
    texts = tokenizer.tokens(range(tokenizer.vocab_size))
    if text in texts:
        return texts.index(text)
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise UserError(f"{text!r} is {len(ids)} tokens: {', '.join(map(repr, tokenizer.tokens(ids)))}; give one token")
    return ids[0]
