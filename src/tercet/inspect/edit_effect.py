"""Effect of edits: run one text with and without tensors set to zero, and describe the difference in a sentence."""

from collections.abc import Sequence
from typing import Any

import torch

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.inspect.lens import stacks_of
from tercet.inspect.lens_table import LensTable
from tercet.inspect.recording import Recording, read
from tercet.inspect.token_text import label_with_spaces
from tercet.models import Edit
from tercet.notebook import View


def parse_edit(trained_model: TrainedModel, text: str) -> Edit:
    """Parse `NAME`, `NAME:3,5` (heads), or `1.3` (block 1, head 3 of the last stack) as an edit to zero.

    Raises:
        UserError: If the text has none of these forms, or the block does not exist.
    """
    block, dot, head = text.partition(".")
    if dot and block.isdecimal() and head.isdecimal():
        name, stack = list(stacks_of(trained_model.model).items())[-1]
        if int(block) >= len(stack.blocks):
            raise UserError(f"--ablate {text}: block {block} is out of range; blocks are 0 to {len(stack.blocks) - 1}")
        return Edit(name=f"{name}.blocks.{int(block)}.self_attention.heads", heads=(int(head),))
    name, colon, heads = text.partition(":")
    if colon and not all(part.isdecimal() for part in heads.split(",")):
        raise UserError(f"--ablate {text}: expected heads after the colon, such as {name}:3 or {name}:3,5")
    return Edit(name=name, heads=tuple(map(int, heads.split(","))) if colon else None)


def read_with_edits(
    trained_model: TrainedModel, text: str, *, target: str | None = None, edits: Sequence[Edit] = ()
) -> tuple[Recording, Recording]:
    """Record a text without edits, and again with edits.

    The target of a translator is the same in both recordings. Otherwise it could translate to another sentence.

    Raises:
        UserError: If the text cannot be read, or an edit does not fit.
    """
    original = read(trained_model, text, target=target)
    if not edits:
        return original, original
    try:
        return original, read(trained_model, ids=original.ids, target_ids=original.target_ids, edits=edits)
    except ValueError as error:
        raise UserError(str(error)) from None


@torch.inference_mode()
def effect_to_dict(edits: Sequence[str], original: LensTable, edited: LensTable) -> dict[str, Any]:
    """Return the losses without and with edits, and the largest change of a probability, for JSON.

    Args:
        edits: Edits as the user wrote them.
        original, edited: Predictions and losses of the same tokens without and with the edits.
    """
    most_changed: dict[str, Any] | None = None
    if original.recording.logits is not None and edited.recording.logits is not None:
        old, new = original.recording.logits.softmax(-1), edited.recording.logits.softmax(-1)  # (T, V)
        row, token = divmod(int((new - old).abs().argmax()), old.shape[-1])
        text = original.recording.side.tokenizer.tokens([token])[0]
        probability, becomes = float(old[row, token]), float(new[row, token])
        most_changed = {"row": row, "id": token, "text": text, "probability": probability, "becomes": becomes}
    return {
        "edits": list(edits),
        "loss_before": original.loss,
        "loss_after": edited.loss,
        "most_changed": most_changed,
    }


def render_effect(effect: dict[str, Any]) -> View:
    """Describe the result of `effect_to_dict` in a sentence."""
    sentence = f"with {', '.join(effect['edits'])} set to zero"
    if effect["loss_before"] is not None:
        rise = effect["loss_after"] - effect["loss_before"]
        sentence += f", the loss goes from {effect['loss_before']:.4f} to {effect['loss_after']:.4f} ({rise:+.4f})"
    change = effect["most_changed"]
    if change is not None:
        joint = "; largest change:" if effect["loss_before"] is not None else ", largest change:"
        sentence += f"{joint} {label_with_spaces(change['text'])} at row {change['row']}, "
        sentence += f"{change['probability']:.3f} to {change['becomes']:.3f}"
    return View((sentence,))
