"""The loss of each token of one text: -ln p(token), in nats.

In a causal stack, row t predicts token t + 1. In a masked language model, a masked row predicts its original token.
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
    """Return the loss in nats of each row of the last stack; None for rows without a target.

    Args:
        recording: Recording with the tokens.
        logits: Logits of these rows: those of the recording, or of the model after a change.
        original_ids: Ids before masking, for a masked language model. Without them it has no targets.
    """
    targets = _targets(recording, original_ids)
    nats = -token_logprobs(logits, torch.tensor(targets, device=logits.device))  # (T)
    return [None if target == IGNORE_INDEX else loss for target, loss in zip(targets, nats.tolist(), strict=True)]


def mean_loss(losses: Sequence[float | None]) -> float | None:
    """Return the mean of the losses that are not None; None if there are none."""
    values = [loss for loss in losses if loss is not None]
    return sum(values) / len(values) if values else None


def _targets(recording: Recording, original_ids: Sequence[int] | None) -> list[int]:
    """Return the target of each row, or IGNORE_INDEX."""
    ids, mask = recording.side.ids, recording.side.tokenizer.mask_id
    if recording.causal:
        return [*ids[1:], IGNORE_INDEX]
    if original_ids is None:
        return [IGNORE_INDEX] * len(ids)
    return [original if token == mask else IGNORE_INDEX for token, original in zip(ids, original_ids, strict=True)]
