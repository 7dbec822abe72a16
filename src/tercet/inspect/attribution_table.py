"""The contributions of a model's parts to a logit, as a table."""

from typing import Any

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.inspect.attribution import attribute_logit
from tercet.inspect.recording import Recording
from tercet.inspect.token_text import label_with_spaces
from tercet.notebook import Table, View
from tercet.tokens import Tokenizer

MAX_PARTS = 12  # maximum number of parts with a separate row; the others are summed in one row


def attribution_to_dict(
    trained_model: TrainedModel, recording: Recording, *, row: int | None, text: str | None
) -> dict[str, Any]:
    """Return the contributions to a token's logit, for JSON.

    Args:
        trained_model: Model that was recorded.
        recording: All tensors of one forward pass.
        row: Row of the logit (default: the first mask of a masked language model, else the last row).
        text: Text of the token (default: that of the most likely token).

    Raises:
        UserError: If the row or token does not exist, or the model's logits are not a sum over parts.
    """
    side = recording.side
    if recording.logits is None:
        raise UserError(f"{trained_model.folder} has no language-model head, so there is no logit to attribute")
    if row is None:
        row = len(side.ids) - 1 if recording.masked_row is None else recording.masked_row
    if not 0 <= row < len(side.ids):
        raise UserError(f"row {row} is out of range; the tokens are rows 0 to {len(side.ids) - 1}")
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
    """Return a table of the largest contributions, with the others in one row."""
    pairs = sorted(zip(attribution["names"], attribution["values"], strict=True), key=lambda pair: -abs(pair[1]))
    rows = [(name, f"{value:+.3f}") for name, value in pairs[:MAX_PARTS]]
    if len(pairs) > MAX_PARTS:
        rows.append((f"{len(pairs) - MAX_PARTS} more", f"{sum(value for _, value in pairs[MAX_PARTS:]):+.3f}"))
    rows.append(("logit", f"{attribution['logit']:+.3f}"))
    row, token = attribution["row"], label_with_spaces(attribution["text"])
    place = f"row {row} ({label_with_spaces(recording.side.texts[row])})"
    table = Table(header=("part", "share"), rows=rows, flush=True)
    return View((f"logit of {token} at {place} as a sum over the parts", table))


def _find_token(tokenizer: Tokenizer, text: str) -> int:
    """Return the id of the token that is displayed as `text`, or else of the single token that encodes it."""
    texts = tokenizer.tokens(range(tokenizer.vocab_size))
    if text in texts:
        return texts.index(text)
    ids = tokenizer.encode(text)
    if len(ids) != 1:
        raise UserError(f"{text!r} is {len(ids)} tokens: {', '.join(map(repr, tokenizer.tokens(ids)))}; pass one token")
    return ids[0]
