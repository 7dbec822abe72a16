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

from tercet.kernel import (
    cross_entropy_,
    is_thread_independent,
    linear_backward,
    linear_forward,
    refuse_second_derivative,
    supports_logits,
    supports_training_linear,
)
from tercet.models.vocabulary import Unembedding
from tercet.objectives.loss import IGNORED, Loss

# Scores worked out together: what a cache holds, or what keeps a GPU busy. But of so many rows of float32 at least, for
# with each lot the unembedding is read twice, and its gradient read and written (docs/measurements/kernels.md).
AT_ONCE, ROWS = {"cpu": 1 << 21, "cuda": 1 << 27}, 512
FEW = 1 << 25  # multiplications up to which calls take longer than they do: by fewer calls, in one lot, it is faster


def negative_log_likelihood(
    hidden: Float[Tensor, "*B D"], unembedding: Unembedding, targets: Int[Tensor, "*B"], *, smoothing: float = 0.0
) -> Loss:
    """The loss of `targets` (IGNORED ones cost nothing), in float32 sums.

    Args:
        smoothing: ε, the share of each target that is spread over the whole vocabulary.
    """
    flat, labels = hidden.flatten(0, -2), targets.flatten()
    weight, bias = unembedding.weight, unembedding.bias
    autocast = torch.is_autocast_enabled(flat.device.type)  # which does not look into a function of our own
    dtype = torch.get_autocast_dtype(flat.device.type) if autocast else flat.dtype
    tensors = [tensor for tensor in (flat, weight, bias) if tensor is not None]
    learns = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)  # within, gradients are off
    total, plain = _LinearCrossEntropy.apply(
        flat, weight, bias, unembedding.vocab_size, labels, smoothing, unembedding.softcap, dtype, learns
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
        dtype: torch.dtype,  # of what is multiplied
        learns: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        n_rows = max(ROWS * 4 // dtype.itemsize, AT_ONCE.get(hidden.device.type, 1 << 24) // len(weight))
        few = bias is None and len(hidden) <= n_rows and len(hidden) * weight.numel() <= FEW
        by_kernel = (few or is_thread_independent()) and supports_training_linear(hidden, weight, padded=True)
        hidden = hidden.to(dtype).contiguous()
        weight = weight if by_kernel else weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        d_hidden, d_weight, d_bias = torch.empty_like(hidden), None, None
        _, weight_learns, bias_learns = ctx.needs_input_grad[:3]  # a frozen unembedding's gradient is a third of it all
        total = plain = torch.zeros((), device=hidden.device)
        for start in range(0, len(hidden), n_rows):
            rows = slice(start, start + n_rows)
            if by_kernel:  # whose scores are zeros up to a width of whole sixteens
                scores = linear_forward(hidden[rows], weight, None)
                if bias is not None:
                    scores[:, : len(weight)] += bias
            else:
                scores = F.linear(hidden[rows], weight, bias)
            real = scores[:, :vocab_size]
            work = cross_entropy_ if supports_logits(real) else _cross_entropy_
            totals, plains = work(real, targets[rows], smoothing=smoothing, softcap=softcap, learns=learns)
            total, plain = total + totals.sum(), plain + plains.sum()
            if learns:
                gradient = scores  # which it has become
                gradient[:, vocab_size:] = 0
                if by_kernel:
                    needs = (True, weight_learns, False)
                    d_hidden[rows], part, _ = linear_backward(gradient, hidden[rows], weight, needs)
                    d_weight = part if d_weight is None else d_weight.add_(part)
                else:
                    torch.mm(gradient, weight, out=d_hidden[rows])
                    d_weight = _add_product(d_weight, gradient, hidden[rows]) if weight_learns else None
                if bias_learns:
                    so_far = gradient[:, : len(weight)].sum(0, dtype=torch.float32)
                    d_bias = so_far if d_bias is None else d_bias.add_(so_far)
        if learns and not len(hidden):
            d_weight, d_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        ctx.gradients = d_hidden, d_weight if weight_learns else None, d_bias if bias_learns else None
        return total, plain

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradient of this loss was handed out already; work out the loss anew")
        # They are scaled in place, which saves a copy as large as the unembedding, and so serve once.
        gradients, ctx.gradients = zip(ctx.gradients, ctx.dtypes, strict=True), None
        with torch.no_grad():
            scaled = [
                None if gradient is None else gradient.to(dtype).mul_(grad_outputs[0]) for gradient, dtype in gradients
            ]
        if torch.is_grad_enabled():  # as it is for second derivatives alone
            scaled = refuse_second_derivative("the likelihood", scaled, (*ctx.saved_tensors, grad_outputs[0]))
        return (*scaled, *[None] * 6)


def _add_product(total: Tensor | None, gradient: Float[Tensor, "N V"], hidden: Float[Tensor, "N D"]) -> Tensor:
    """All lots' parts of the weight's gradient, (V, D): in float32 where there are several."""
    if total is None:
        return gradient.mT @ hidden
    if hidden.dtype == torch.float32:
        return total.addmm_(gradient.mT, hidden)
    return total.float().add_(gradient.mT @ hidden)


def _cross_entropy_(
    logits: Float[Tensor, "N V"], targets: Int[Tensor, " N"], *, smoothing: float, softcap: float | None, learns: bool
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The loss of each row, and what it is without smoothing; the scores become its gradient where that is wanted."""
    scores, cap_gradient = logits.float(), None
    if softcap is not None:
        capped = torch.tanh(scores.div_(softcap))
        scores, cap_gradient = capped * softcap, 1 - capped.square()
    counts = (targets != IGNORED)[:, None]  # (N, 1)
    target = targets[:, None].clamp(min=0)
    mean = scores.mean(-1, keepdim=True) if smoothing else 0.0
    likely = scores.gather(-1, target)
    largest = scores.amax(-1, keepdim=True)
    # From here on `scores` becomes first the softmax, then the gradient, in place.
    sums = scores.sub_(largest).exp_().sum(-1, keepdim=True)
    lse = sums.log() + largest
    nll = lse - likely
    totals, plains = ((1 - smoothing) * nll + smoothing * (lse - mean)) * counts, nll * counts
    if learns:
        gradient = scores.mul_(counts / sums)
        if smoothing:
            gradient.sub_(counts * (smoothing / scores.shape[1]))
        gradient.scatter_add_(-1, target, counts * (smoothing - 1))
        if cap_gradient is not None:
            gradient.mul_(cap_gradient)
        logits.copy_(gradient)
    return totals[:, 0], plains[:, 0]
