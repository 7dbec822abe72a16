"""ln p of each token for scoring without training, with logits for a few rows at a time.

    ln p(token) = z[token] - lse(z)

The logits of all rows over the vocabulary are the largest tensor of a forward pass, so at most `MAX_LOGITS` are held at
once. Training uses the sum in `likelihood.py`, which has a gradient.
"""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tercet.models import AnyModel
from tercet.objectives.batch import to_device
from tercet.objectives.loss import IGNORE_INDEX

MAX_LOGITS = 1 << 24  # 64 MiB in float32


def token_logprobs(logits: Float[Tensor, "N V"], tokens: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return ln p of one token per row, in float32."""
    return -F.cross_entropy(logits.float(), tokens, reduction="none")


def split_logits(model: AnyModel, hidden: Float[Tensor, "N D"]) -> Iterator[tuple[slice, Float[Tensor, "n V"]]]:
    """Yield the logits of hidden states in chunks, each with the slice of its rows."""
    n_rows = max(1, MAX_LOGITS // model.vocab_size)
    for start in range(0, max(1, len(hidden)), n_rows):
        rows = slice(start, start + n_rows)
        yield rows, model.logits(hidden[rows])


def target_logprobs(model: AnyModel, hidden: Float[Tensor, "*B D"], targets: Int[Tensor, "*B"]) -> Float[Tensor, " N"]:
    """Return ln p of each target that is not IGNORE_INDEX, in row order, in float32.

    Args:
        model: Model of any family.
        hidden: Hidden states.
        targets: Targets on the CPU. With targets on a GPU, the host would have to wait to count those to score.
    """
    flat = targets.flatten()
    positions = (flat != IGNORE_INDEX).nonzero().squeeze(1)  # (N,)
    ids = to_device(flat[positions], hidden.device)
    states = hidden.flatten(0, -2).index_select(0, to_device(positions, hidden.device))  # (N, D)
    return torch.cat([token_logprobs(logits, ids[rows]) for rows, logits in split_logits(model, states)])


def likeliest_tokens(model: AnyModel, hidden: Float[Tensor, "N D"]) -> Int[Tensor, " N"]:
    """Return the token with the largest logit in each row, the first one in case of ties."""
    return torch.cat([logits.argmax(-1) for _, logits in split_logits(model, hidden)])
