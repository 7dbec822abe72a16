"""-ln p(target) from hidden states, with the unembedding and its gradient worked out a few rows at a time.

    z = softcap(h Wᵀ + b)
    loss = (1 - ε) (lse(z) - z[target]) + ε (lse(z) - mean(z))      dloss/dz = softmax(z) - (1 - ε) 1[target] - ε/V

The scores of all targets over a whole vocabulary are the largest tensor of a training step, and written out they are
read and written some eight times. Of a few rows at a time they take little memory, and as their gradient is known at
once nothing of them is kept for the backward pass. ε is label smoothing as PyTorch defines it (Szegedy et al. 2016).

In a graph that is compiled for a GPU the compiler fuses the formula with its neighbors, so there it is written plainly
if the scores of all rows fit into `MAX_WHOLE_BYTES` bytes. `choose_form` holds the rule.
"""

from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from tercet.kernel import (
    cross_entropy_,
    is_thread_independent,
    linear_backward,
    linear_forward,
    reject_second_derivative,
    supports_training_linear,
)
from tercet.models.vocabulary import Unembedding
from tercet.nn.linear import multiplied_dtype
from tercet.objectives.loss import IGNORE_INDEX, Loss

# Scores worked out together: what a cache holds, or what keeps a GPU busy. But of so many rows of float32 at least, for
# with each chunk the unembedding is read twice, and its gradient read and written (benchmarks/log/kernels.md).
CHUNK_ELEMENTS, MIN_CHUNK_ROWS = {"cpu": 1 << 21, "cuda": 1 << 27}, 512
MAX_WHOLE_BYTES = 2 << 30  # bytes of scores that a compiled graph writes at once
SMALL_MATMUL = (
    1 << 25
)  # multiplications up to which calls take longer than they do: by fewer calls, in one chunk, it is faster


# whole    the formula over all rows, its gradient by autograd
# chunks   a few rows at a time, with the gradient in closed form
# library  torch.nn.functional.linear_cross_entropy, from PyTorch 2.13 on; for measurements
Form = Literal["whole", "chunks", "library"]
_forced_form: Form | None = None
# A graph cannot make them, and would be broken by a warning if the gradients served a single backward pass.
# Older versions of PyTorch have no such options, and nothing reads them there.
_LIBRARY_OPTIONS: Any = getattr(torch.nn, "LinearCrossEntropyOptions", dict)(allow_retain_graph=True)


def negative_log_likelihood(
    hidden: Float[Tensor, "*B D"], unembedding: Unembedding, targets: Int[Tensor, "*B"], *, smoothing: float = 0.0
) -> Loss:
    """The loss of `targets` (IGNORE_INDEX ones cost nothing), in float32 sums.

    Args:
        smoothing: ε, the share of each target that is spread over the whole vocabulary.
    """
    flat, labels = hidden.flatten(0, -2), targets.flatten()
    forms = {"whole": _whole, "chunks": _chunked, "library": _library}
    work = forms[choose_form(len(flat), len(unembedding.weight), multiplied_dtype(flat), flat.device.type)]
    total, plain = work(flat, unembedding, labels, smoothing)
    return Loss(total, plain.detach(), (targets != IGNORE_INDEX).sum())


def choose_form(n_rows: int, width: int, dtype: torch.dtype, device: str) -> Form:
    """Return how the loss of `n_rows` targets is computed.

    Args:
        n_rows: Number of targets.
        width: Number of scores of each target.
        dtype: Type in which the scores are multiplied.
        device: Type of the device, such as `cuda`.
    """
    if _forced_form is not None:
        return _forced_form
    if device == "cpu" or not torch.compiler.is_compiling():  # kernels, or operations that nothing fuses
        return "chunks"
    return "whole" if n_rows * width * dtype.itemsize <= MAX_WHOLE_BYTES else "chunks"


@contextmanager
def use_form(form: Form) -> Generator[None]:
    """Compute the loss in one form, whatever the rule says: for benchmarks and tests."""
    global _forced_form
    previous, _forced_form = _forced_form, form
    try:
        yield
    finally:
        _forced_form = previous


def bytes_of_graph(n_rows: int, width: int, dtype: torch.dtype) -> int:
    """Return the bytes of scores, and of their gradient, that a graph compiled for a GPU holds at once."""
    return 2 * min(n_rows * width * dtype.itemsize, MAX_WHOLE_BYTES)


def _whole(
    hidden: Float[Tensor, "N D"], unembedding: Unembedding, targets: Int[Tensor, " N"], smoothing: float
) -> tuple[Tensor, Tensor]:
    cost = partial(F.cross_entropy, unembedding(hidden), targets, ignore_index=IGNORE_INDEX, reduction="sum")
    plain = cost()
    return cost(label_smoothing=smoothing) if smoothing else plain, plain


def _library(
    hidden: Float[Tensor, "N D"], unembedding: Unembedding, targets: Int[Tensor, " N"], smoothing: float
) -> tuple[Tensor, Tensor]:
    if unembedding.softcap is not None or smoothing:
        raise ValueError("linear_cross_entropy has no softcap, and no plain loss beside a smoothed one")
    dtype, n_tokens, bias = multiplied_dtype(hidden), unembedding.vocab_size, unembedding.bias
    total = cast(Any, F).linear_cross_entropy(
        hidden.to(dtype),
        unembedding.weight[:n_tokens].to(dtype),
        targets,
        linear_bias=None if bias is None else bias[:n_tokens].to(dtype),
        reduction="sum",
        ignore_index=IGNORE_INDEX,
        options=_LIBRARY_OPTIONS,
    )
    return total, total


def _chunked(
    hidden: Float[Tensor, "N D"], unembedding: Unembedding, targets: Int[Tensor, " N"], smoothing: float
) -> tuple[Tensor, Tensor]:
    weight, bias, dtype = unembedding.weight, unembedding.bias, multiplied_dtype(hidden)
    tensors = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    needs_grad = torch.is_grad_enabled() and any(
        tensor.requires_grad for tensor in tensors
    )  # within, gradients are off
    return _LinearCrossEntropy.apply(
        hidden, weight, bias, unembedding.vocab_size, targets, smoothing, unembedding.softcap, dtype, needs_grad
    )


def _rows_per_chunk(width: int, dtype: torch.dtype, device: str) -> int:
    """Number of rows whose scores are computed together."""
    if device == "cuda" and torch.compiler.is_compiling():  # fused, so larger lots have no larger copies
        return max(1, MAX_WHOLE_BYTES // (width * dtype.itemsize))
    return max(MIN_CHUNK_ROWS * 4 // dtype.itemsize, CHUNK_ELEMENTS.get(device, 1 << 24) // width)


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
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        n_rows = _rows_per_chunk(len(weight), dtype, hidden.device.type)
        is_small = bias is None and len(hidden) <= n_rows and len(hidden) * weight.numel() <= SMALL_MATMUL
        use_kernel = (is_small or is_thread_independent()) and supports_training_linear(hidden, weight, padded=True)
        hidden = hidden.to(dtype).contiguous()
        weight = weight if use_kernel else weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        d_hidden, d_weight, d_bias = torch.empty_like(hidden), None, None
        _, weight_needs_grad, bias_needs_grad = ctx.needs_input_grad[
            :3
        ]  # a frozen unembedding's gradient is a third of it all
        total = plain = torch.zeros((), device=hidden.device)
        for chunk in range(-(-len(hidden) // n_rows)):  # a graph of any length has this many lots
            rows = slice(chunk * n_rows, (chunk + 1) * n_rows)
            if use_kernel:  # whose scores are zeros up to a width of whole sixteens
                scores = linear_forward(hidden[rows], weight, None)
                if bias is not None:
                    scores[:, : len(weight)] += bias
            else:
                scores = F.linear(hidden[rows], weight, bias)
            real = scores[:, :vocab_size]
            costs = cross_entropy_(real, targets[rows], smoothing=smoothing, softcap=softcap, needs_grad=needs_grad)
            if costs is None:
                costs = _cross_entropy_(
                    real, targets[rows], smoothing=smoothing, softcap=softcap, needs_grad=needs_grad
                )
            totals, unsmoothed = costs
            total, plain = total + totals.sum(), plain + unsmoothed.sum()
            if needs_grad:
                gradient = scores  # which it has become
                gradient[:, vocab_size:].zero_()
                if use_kernel:
                    needs = (True, weight_needs_grad, False)
                    d_hidden[rows], part, _ = linear_backward(gradient, hidden[rows], weight, needs)
                    d_weight = part if d_weight is None else d_weight.add_(part)
                else:
                    torch.mm(gradient, weight, out=d_hidden[rows])
                    d_weight = _add_product(d_weight, gradient, hidden[rows]) if weight_needs_grad else None
                if bias_needs_grad:
                    chunk_bias = gradient[:, : len(weight)].sum(0, dtype=torch.float32)
                    d_bias = chunk_bias if d_bias is None else d_bias.add_(chunk_bias)
        if needs_grad and not len(hidden):
            d_weight, d_bias = torch.zeros_like(weight), None if bias is None else torch.zeros_like(bias)
        ctx.gradients = d_hidden, d_weight if weight_needs_grad else None, d_bias if bias_needs_grad else None
        return total, plain

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        if ctx.gradients is None:
            raise RuntimeError("the gradient of this loss was handed out already; work out the loss anew")
        # They are scaled_gradients in place, which saves a copy as large as the unembedding, and so serve once.
        gradients, ctx.gradients = zip(ctx.gradients, ctx.dtypes, strict=True), None
        with torch.no_grad():
            scaled_gradients = [
                None if gradient is None else gradient.to(dtype).mul_(grad_outputs[0]) for gradient, dtype in gradients
            ]
        if torch.is_grad_enabled():  # as it is for second derivatives alone
            scaled_gradients = reject_second_derivative(
                "the likelihood", scaled_gradients, (*ctx.saved_tensors, grad_outputs[0])
            )
        return (*scaled_gradients, *[None] * 6)


def _add_product(total: Tensor | None, gradient: Float[Tensor, "N V"], hidden: Float[Tensor, "N D"]) -> Tensor:
    """All lots' parts of the weight's gradient, (V, D): in float32 where there are several."""
    if total is None:
        return gradient.mT @ hidden
    if hidden.dtype == torch.float32:
        return total.addmm_(gradient.mT, hidden)
    return total.float().add_(gradient.mT @ hidden)


def _cross_entropy_(
    logits: Float[Tensor, "N V"],
    targets: Int[Tensor, " N"],
    *,
    smoothing: float,
    softcap: float | None,
    needs_grad: bool,
) -> tuple[Float[Tensor, " N"], Float[Tensor, " N"]]:
    """The loss of each row, and what it is without smoothing; the scores become its gradient where that is wanted."""
    scores, cap_gradient = logits.float(), None
    if softcap is not None:
        tanh = torch.tanh(scores.div_(softcap))
        scores, cap_gradient = tanh * softcap, 1 - tanh.square()
    counts = (targets != IGNORE_INDEX)[:, None]  # (N, 1)
    target = targets[:, None].clamp(min=0)
    mean = scores.mean(-1, keepdim=True) if smoothing else 0.0
    likely = scores.gather(-1, target)
    largest = scores.amax(-1, keepdim=True)
    # From here on `scores` becomes first the softmax, then the gradient, in place.
    sums = scores.sub_(largest).exp_().sum(-1, keepdim=True)
    lse = sums.log() + largest
    nll = lse - likely
    totals, unsmoothed = ((1 - smoothing) * nll + smoothing * (lse - mean)) * counts, nll * counts
    if needs_grad:
        gradient = scores.mul_(counts / sums)
        if smoothing:
            gradient.sub_(counts * (smoothing / scores.shape[1]))
        target_gradient = counts * (smoothing - 1)
        if torch.compiler.is_compiling():  # a comparison is fused, a scatter would write all scores in float32
            gradient.add_((torch.arange(scores.shape[1], device=target.device) == target) * target_gradient)
        else:
            gradient.scatter_add_(-1, target, target_gradient)
        if cap_gradient is not None:
            gradient.mul_(cap_gradient)
        logits.copy_(gradient)
    return totals[:, 0], unsmoothed[:, 0]
