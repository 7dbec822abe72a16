"""Pooling: reduce the hidden states of a sequence to one vector.

mean:   the mean of the hidden states of the real tokens      Reimers and Gurevych, "Sentence-BERT" (2019), 3
first:  the hidden state of the first real token              Devlin et al., "BERT" (2019), 3: [CLS]
max:    the maximum of each number over the real tokens       Reimers and Gurevych (2019), 3
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.nn.specs import Pooling


def pool(
    hidden: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None = None, kind: Pooling = "mean"
) -> Float[Tensor, "B D"]:
    """Return one vector for each row of hidden states.

    Args:
        hidden: Hidden states.
        token_mask: True at real tokens, at any position (default: all tokens are real). A row without real tokens gives
            zeros, or its first hidden state ("first").
        kind: `mean`, `first` or `max`; see the list at the top of this module.
    """
    if token_mask is None:
        return hidden.mean(1) if kind == "mean" else hidden[:, 0] if kind == "first" else hidden.amax(1)
    if kind == "first":
        first = token_mask.long().argmax(1)  # (B,)
        return hidden[torch.arange(len(hidden), device=hidden.device), first]
    real = token_mask[..., None]  # (B, T, 1)
    if kind == "max":
        return hidden.masked_fill(~real, -torch.inf).amax(1).masked_fill(~real.any(1), 0.0)
    # Padding is masked instead of multiplied by zero, because its hidden states may be NaN.
    return hidden.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
