"""-ln p(target) from hidden states, with the unembedding and its gradient worked out a few rows at a time.

    z = softcap(h Wᵀ + b)
    loss = (1 - ε) (lse(z) - z[target]) + ε (lse(z) - mean(z))      dloss/dz = softmax(z) - (1 - ε) 1[target] - ε/V

The scores of all targets over a whole vocabulary are the largest tensor of a training step, and written out they are
read and written some eight times. Of a few rows at a time they take little memory, and as their gradient is known at
once nothing of them is kept for the backward pass. ε is label smoothing as PyTorch defines it (Szegedy et al. 2016).
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tercet.models.vocabulary import Unembedding
from tercet.objectives.loss import IGNORED, Loss

# Scores worked out together: what a cache holds, or what keeps a GPU busy. But of so many rows at least, for with each
# lot the unembedding is read twice, and its gradient read and written (docs/log.md).
AT_ONCE, ROWS = {"cpu": 1 << 21, "cuda": 1 << 27}, 512


def negative_log_likelihood(
    hidden: Float[Tensor, "*B D"], unembedding: Unembedding, targets: Int[Tensor, "*B"], *, smoothing: float = 0.0
) -> Loss:
    """The loss of `targets` (IGNORED ones cost nothing), in float32 sums.

    Args:
        smoothing: ε, the share of each target that is spread over the whole vocabulary.
    """
    flat, wanted = hidden.flatten(0, -2), targets.flatten()
    weight, bias, vocab_size = unembedding.weight, unembedding.bias, unembedding.vocab_size
    if torch.is_autocast_enabled(flat.device.type):  # which does not look into a function of our own
        dtype = torch.get_autocast_dtype(flat.device.type)
        flat, weight = flat.to(dtype), weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
    given = [tensor for tensor in (flat, weight, bias) if tensor is not None]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)  # within, gradients are off
    total, plain = _LinearCrossEntropy.apply(
        flat, weight, bias, vocab_size, wanted, smoothing, unembedding.softcap, learns
    )
    return Loss(total, plain.detach(), (targets != IGNORED).sum())


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        vocab_size: int,  # rows of the weight that are tokens; others only pad it
        targets: Tensor,
        smoothing: float,
        softcap: float | None,
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        learning = len(weight) if learns else 0
        d_hidden, padded_d_weight = torch.empty_like(hidden), torch.zeros_like(weight[:learning], dtype=torch.float32)
        padded_d_bias = None if bias is None else torch.zeros_like(bias[:learning], dtype=torch.float32)
        weight, d_weight = weight[:vocab_size], padded_d_weight[:vocab_size]
        bias, d_bias = (None if vector is None else vector[:vocab_size] for vector in (bias, padded_d_bias))
        total = plain = torch.zeros((), device=hidden.device)
        n_rows = max(ROWS, AT_ONCE.get(hidden.device.type, 1 << 24) // len(weight))
        for start in range(0, len(hidden), n_rows):
            rows = slice(start, start + n_rows)
            scores, slope = _scores(hidden[rows], weight, bias, softcap)  # (N, V)
            counts = (targets[rows] != IGNORED)[:, None]  # (N, 1)
            target = targets[rows, None].clamp(min=0)
            mean = scores.mean(-1, keepdim=True) if smoothing else 0.0
            likely = scores.gather(-1, target)
            largest = scores.amax(-1, keepdim=True)
            # From here on `scores` becomes first the softmax, then the gradient, in place.
            sums = scores.sub_(largest).exp_().sum(-1, keepdim=True)
            lse = sums.log() + largest
            nll = lse - likely
            plain = plain + (nll * counts).sum()
            total = total + (((1 - smoothing) * nll + smoothing * (lse - mean)) * counts).sum()
            if learns:
                gradient = scores.mul_(counts / sums)
                if smoothing:
                    gradient.sub_(counts * (smoothing / len(weight)))
                gradient.scatter_add_(-1, target, counts * (smoothing - 1))
                if slope is not None:
                    gradient.mul_(slope)
                if d_bias is not None:
                    d_bias.add_(gradient.sum(0))
                gradient = gradient.to(hidden.dtype)
                torch.mm(gradient, weight, out=d_hidden[rows])
                if gradient.dtype == d_weight.dtype:
                    d_weight.addmm_(gradient.mT, hidden[rows])
                else:
                    d_weight.add_(gradient.mT @ hidden[rows])
        padded_d_bias = None if bias is None or padded_d_bias is None else padded_d_bias.to(bias.dtype)
        ctx.slopes = d_hidden, padded_d_weight.to(weight.dtype), padded_d_bias
        return total, plain

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.slopes is None:
            raise RuntimeError("the gradient of this loss was handed out already; work out the loss anew")
        # They are scaled in place, which saves a copy as large as the unembedding, and so serve once.
        slopes, ctx.slopes = ctx.slopes, None
        return (*(None if slope is None else slope.mul_(gradients[0]) for slope in slopes), *[None] * 5)


def _scores(hidden: Tensor, weight: Tensor, bias: Tensor | None, softcap: float | None) -> tuple[Tensor, Tensor | None]:
    """Scores in float32, and how much they move with the uncapped ones where they are capped."""
    scores = F.linear(hidden, weight, bias).float()
    if softcap is None:
        return scores, None
    bent = torch.tanh(scores.div_(softcap))
    return bent * softcap, 1 - bent.square()
