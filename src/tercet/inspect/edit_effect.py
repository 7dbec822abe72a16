"""What an edit changes: one text read as it is and again with tensors set to zero, and the difference in words."""

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
    """What `NAME`, `NAME:3,5` (heads), or for short `1.3` (block 1, head 3 of the last side) sets to zero.

    Raises:
        UserError: where it is none of them.
    """
    block, dot, head = text.partition(".")
    if dot and block.isdecimal() and head.isdecimal():
        name, stack = list(stacks_of(trained_model.model).items())[-1]
        if int(block) >= len(stack.blocks):
            raise UserError(f"--ablate {text}: there is no block {block}; there are {len(stack.blocks)}, from 0")
        return Edit(name=f"{name}.blocks.{int(block)}.self_attention.heads", heads=(int(head),))
    name, colon, heads = text.partition(":")
    if colon and not all(part.isdecimal() for part in heads.split(",")):
        raise UserError(f"--ablate {text}: after the colon come heads, such as {name}:3 or {name}:3,5")
    return Edit(name=name, heads=tuple(map(int, heads.split(","))) if colon else None)


def read_with_edits(
    trained_model: TrainedModel, text: str, *, target: str | None = None, edits: Sequence[Edit] = ()
) -> tuple[Recording, Recording]:
    """The text read as it is, and the same tokens with the edits made: a translator does not write another sentence.

    Raises:
        UserError: for a text that cannot be read, and edits that do not fit.
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
    """For programs: the loss before and after, and the row and token whose probability changed most.

    Args:
        edits: as they were written.
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
    """What `effect_to_dict` gave, in a sentence."""
    sentence = f"with {', '.join(effect['edits'])} at zero"
    if effect["loss_before"] is not None:
        rise = effect["loss_after"] - effect["loss_before"]
        sentence += f" the loss goes from {effect['loss_before']:.4f} to {effect['loss_after']:.4f} ({rise:+.4f})"
    change = effect["most_changed"]
    if change is not None:
        joint = "; most changes" if effect["loss_before"] is not None else " most changes"
        sentence += f"{joint} {label_with_spaces(change['text'])} at row {change['row']}, "
        sentence += f"{change['probability']:.3f} to {change['becomes']:.3f}"
    return View((sentence,))
