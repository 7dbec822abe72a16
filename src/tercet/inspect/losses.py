"""The loss of each token of one text, by the model's own logits.

-ln p(token)      in nats; causal: row t predicts token t + 1; masked: row t predicts what stood behind its mask
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.inspect.recording import Recording
from tercet.objectives import IGNORE_INDEX, token_logprobs


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
    nats = -token_logprobs(logits, torch.tensor(targets, device=logits.device))  # (T)
    return [None if target == IGNORE_INDEX else loss for target, loss in zip(targets, nats.tolist(), strict=True)]


def mean_loss(losses: Sequence[float | None]) -> float | None:
    """The mean over the rows that have one; None where none has."""
    values = [loss for loss in losses if loss is not None]
    return sum(values) / len(values) if values else None


def _targets(recording: Recording, original_ids: Sequence[int] | None) -> list[int]:
    """Of each row what is predicted there, or IGNORE_INDEX."""
    ids, mask = recording.side.ids, recording.side.tokenizer.mask_id
    if recording.causal:
        return [*ids[1:], IGNORE_INDEX]
    if original_ids is None:
        return [IGNORE_INDEX] * len(ids)
    return [original if token == mask else IGNORE_INDEX for token, original in zip(ids, original_ids, strict=True)]
