"""The loss of each token of one text, by the model's own logits.

-ln p(token)      in nats; causal: row t predicts token t + 1; masked: row t predicts what stood behind its mask
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.inspect.lens import ROWS
from tercet.inspect.recording import Recording


@torch.inference_mode()
def token_losses(
    recording: Recording, logits: Float[Tensor, "T V"], *, original_ids: Sequence[int] | None = None
) -> list[float | None]:
    """Nats of each row of the last side; None where nothing was to be predicted.

    Args:
        logits: of those rows: the recording's own, or those of a model that was changed since.
        original_ids: of a masked language model, what stood there before anything was masked.
    """
    targets = _targets(recording, original_ids)
    rows = [row for row, target in enumerate(targets) if target is not None]
    losses: list[float | None] = [None] * len(targets)
    for start in range(0, len(rows), ROWS):
        chunk = rows[start : start + ROWS]
        logprobs = logits[chunk].float().log_softmax(-1).cpu()
        for place, row in enumerate(chunk):
            losses[row] = -float(logprobs[place, targets[row]])
    return losses


def mean_loss(losses: Sequence[float | None]) -> float | None:
    """The mean over the rows that have one; None where none has."""
    known = [loss for loss in losses if loss is not None]
    return sum(known) / len(known) if known else None


def _targets(recording: Recording, original_ids: Sequence[int] | None) -> list[int | None]:
    ids, mask = recording.side.ids, recording.side.tokenizer.mask_id
    if recording.causal:
        return [*ids[1:], None]
    if original_ids is None:
        return [None] * len(ids)
    return [original if number == mask else None for number, original in zip(ids, original_ids, strict=True)]
