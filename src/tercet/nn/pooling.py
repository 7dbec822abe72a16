"""Pooling: one vector for a whole sequence.

mean:   the mean of the hidden states of its real tokens      Reimers and Gurevych, "Sentence-BERT" (2019), 3
first:  the hidden state of its first real token              Devlin et al., "BERT" (2019), 3: [CLS]
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from tercet.nn.specs import Pooling


def pool(
    hidden: Float[Tensor, "B T D"], token_mask: Bool[Tensor, "B T"] | None = None, kind: Pooling = "mean"
) -> Float[Tensor, "B D"]:
    """One vector for each row of hidden states.

    Args:
        token_mask: True at real tokens, wherever they stand; a row without any gives zeros, or its first state.
    """
    if token_mask is None:
        return hidden.mean(1) if kind == "mean" else hidden[:, 0]
    if kind == "first":
        first = token_mask.long().argmax(1)  # (B,)
        return hidden[torch.arange(len(hidden), device=hidden.device), first]
    real = token_mask[..., None]  # (B, T, 1)
    # What stands at padding is left out rather than multiplied by zero: it need not be a number.
    return hidden.masked_fill(~real, 0.0).sum(1) / real.sum(1).clamp(min=1)
