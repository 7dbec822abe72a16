"""ln p of each token by itself, for whoever scores and does not learn: a few rows of logits at a time.

    ln p(token) = z[token] - lse(z)

The logits of all rows over a whole vocabulary are the largest tensor of a pass, so no more of them are held together
than `MAX_LOGITS`. What is learnt from is the sum in `likelihood.py`, with its gradient.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tercet.models import AnyModel
from tercet.objectives.batch import to_device
from tercet.objectives.loss import IGNORE_INDEX

MAX_LOGITS = 1 << 24  # 64 MiB of float32, whatever the vocabulary


def token_logprobs(logits: Float[Tensor, "N V"], tokens: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """ln p of one token in each row, in float32."""
    return -F.cross_entropy(logits.float(), tokens, reduction="none")


def split_logits(model: AnyModel, hidden: Float[Tensor, "N D"]) -> Iterator[tuple[slice, Float[Tensor, "n V"]]]:
    """The logits of hidden states, a few rows at a time, and which rows these are."""
    n_rows = max(1, MAX_LOGITS // model.vocab_size)
    for start in range(0, max(1, len(hidden)), n_rows):
        rows = slice(start, start + n_rows)
        yield rows, model.logits(hidden[rows])


def target_logprobs(model: AnyModel, hidden: Float[Tensor, "*B D"], targets: Int[Tensor, "*B"]) -> Float[Tensor, " N"]:
    """ln p of each target that is not IGNORE_INDEX, in the order of the rows, in float32.

    Args:
        targets: On the CPU, where those that count are found: their number on a GPU would have to be waited for.
    """
    flat = targets.flatten()
    positions = (flat != IGNORE_INDEX).nonzero().squeeze(1)  # (N,)
    ids = to_device(flat[positions], hidden.device)
    states = hidden.flatten(0, -2).index_select(0, to_device(positions, hidden.device))  # (N, D)
    return torch.cat([token_logprobs(logits, ids[rows]) for rows, logits in split_logits(model, states)])


def likeliest_tokens(model: AnyModel, hidden: Float[Tensor, "N D"]) -> Int[Tensor, " N"]:
    """The token with the largest logit in each row; the first of equals."""
    return torch.cat([logits.argmax(-1) for _, logits in split_logits(model, hidden)])
