"""-ln p(target) from hidden states, with the unembedding and its gradient computed in chunks of rows.

    z = softcap(h Wᵀ + b)
    loss = (1 - ε) (lse(z) - z[target]) + ε (lse(z) - mean(z))      dloss/dz = softmax(z) - (1 - ε) 1[target] - ε/V

h are the hidden states, W and b the unembedding, and lse is logsumexp. The scores z of all targets over the vocabulary
are the largest tensor of a training step, and the plain formula reads and writes them about eight times. A chunk of a
few rows takes little memory. Its gradient is computed immediately, so its scores are not kept for the backward pass.
ε is label smoothing as in PyTorch (Szegedy et al. 2016).

In a graph that is compiled for a GPU, the compiler fuses the formula with its neighbors. There the plain formula is
used if the scores of all rows fit into `MAX_WHOLE_BYTES`. `choose_form` contains the rule.
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

# Scores per chunk: as many as fit into a cache, or keep a GPU busy. A chunk has at least `MIN_CHUNK_ROWS` float32 rows,
# or twice as many 16-bit rows, because each chunk reads the unembedding twice, and reads and writes its gradient
# (benchmarks/log/kernels.md).
CHUNK_ELEMENTS, MIN_CHUNK_ROWS = {"cpu": 1 << 21, "cuda": 1 << 27}, 512
MAX_WHOLE_BYTES = 2 << 30  # maximum bytes of scores that a compiled graph computes at once
# Multiplications up to which call overhead dominates in a single chunk, so the kernel with its few calls is faster.
SMALL_MATMUL = 1 << 25


# whole    the formula over all rows, with its gradient by autograd
# chunks   a few rows at a time, with the gradient in closed form
# library  torch.nn.functional.linear_cross_entropy, available in PyTorch 2.13 and later; for measurements
Form = Literal["whole", "chunks", "library"]
_forced_form: Form | None = None
# Options of "library", created here since a compiled graph cannot create them. Without `allow_retain_graph` a warning
# would break the graph. Older versions of PyTorch lack these options; the dict that replaces them there is not used.
_LIBRARY_OPTIONS: Any = getattr(torch.nn, "LinearCrossEntropyOptions", dict)(allow_retain_graph=True)


def negative_log_likelihood(
    hidden: Float[Tensor, "*B D"], unembedding: Unembedding, targets: Int[Tensor, "*B"], *, smoothing: float = 0.0
) -> Loss:
    """Return the loss of `targets` as float32 sums. Targets with IGNORE_INDEX do not count.

    Args:
        hidden: Hidden state from which each target is predicted.
        unembedding: Layer that computes the scores.
        targets: Target ids.
        smoothing: ε, the share of each target that is spread over the whole vocabulary.
    """
    flat, labels = hidden.flatten(0, -2), targets.flatten()
    forms = {"whole": _whole, "chunks": _chunked, "library": _library}
    work = forms[choose_form(len(flat), len(unembedding.weight), multiplied_dtype(flat), flat.device.type)]
    total, plain = work(flat, unembedding, labels, smoothing)
    return Loss(total, plain.detach(), (targets != IGNORE_INDEX).sum())


def choose_form(n_rows: int, width: int, dtype: torch.dtype, device: str) -> Form:
    """Return the form in which the loss of `n_rows` targets is computed.

    Args:
        n_rows: Number of targets.
        width: Number of scores of each target.
        dtype: Dtype of the matrix product that computes the scores.
        device: Type of the device, such as "cuda".
    """
    if _forced_form is not None:
        return _forced_form
    if device == "cpu" or not torch.compiler.is_compiling():  # kernels, or operations that are not fused
        return "chunks"
    return "whole" if n_rows * width * dtype.itemsize <= MAX_WHOLE_BYTES else "chunks"


@contextmanager
def use_form(form: Form) -> Generator[None]:
    """Compute the loss in the given form in this context, for benchmarks and tests."""
    global _forced_form
    previous, _forced_form = _forced_form, form
    try:
        yield
    finally:
        _forced_form = previous


def bytes_of_graph(n_rows: int, width: int, dtype: torch.dtype) -> int:
    """Return the maximum bytes of scores and their gradient that a graph compiled for a GPU holds at once."""
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
        raise ValueError("linear_cross_entropy supports neither a softcap nor label smoothing")
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
    )  # gradients are disabled in forward
    return _LinearCrossEntropy.apply(
        hidden, weight, bias, unembedding.vocab_size, targets, smoothing, unembedding.softcap, dtype, needs_grad
    )


def rows_per_chunk(width: int, dtype: torch.dtype, device: str) -> int:
    """Return the number of rows whose scores are computed together."""
    if device == "cuda" and torch.compiler.is_compiling():  # fused operations make no copies of larger chunks
        return max(1, MAX_WHOLE_BYTES // (width * dtype.itemsize))
    return max(MIN_CHUNK_ROWS * 4 // dtype.itemsize, CHUNK_ELEMENTS.get(device, 1 << 24) // width)


class _LinearCrossEntropy(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        vocab_size: int,  # rows of the weight that are tokens; the rest is padding
        targets: Tensor,
        smoothing: float,
        softcap: float | None,
        dtype: torch.dtype,  # dtype of the products
        needs_grad: bool,
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(hidden, weight, bias)
        ctx.dtypes = [None if tensor is None else tensor.dtype for tensor in (hidden, weight, bias)]
        n_rows = rows_per_chunk(len(weight), dtype, hidden.device.type)
        is_small = bias is None and len(hidden) <= n_rows and len(hidden) * weight.numel() <= SMALL_MATMUL
        use_kernel = (is_small or is_thread_independent()) and supports_training_linear(hidden, weight, padded=True)
        hidden = hidden.to(dtype).contiguous()
        weight = weight if use_kernel else weight.to(dtype)
        bias = None if bias is None else bias.to(dtype)
        d_hidden, d_weight, d_bias = torch.empty_like(hidden), None, None
        _, weight_needs_grad, bias_needs_grad = ctx.needs_input_grad[
            :3
        ]  # skipping the gradient of a frozen unembedding saves a third of the work
        total = plain = torch.zeros((), device=hidden.device)
        for chunk in range(-(-len(hidden) // n_rows)):  # a compiled graph has this number of chunks for any length
            rows = slice(chunk * n_rows, (chunk + 1) * n_rows)
            if use_kernel:  # its output is padded with zeros to a multiple of 16 columns
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
                gradient = scores  # computed in place
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
            raise RuntimeError("the gradient of this loss was already used; compute the loss again")
        # Scaling in place saves a copy of the size of the unembedding, so the gradients can be used only once.
        gradients, ctx.gradients = zip(ctx.gradients, ctx.dtypes, strict=True), None
        with torch.no_grad():
            scaled_gradients = [
                None if gradient is None else gradient.to(dtype).mul_(grad_outputs[0]) for gradient, dtype in gradients
            ]
        if torch.is_grad_enabled():  # enabled only for second derivatives
            scaled_gradients = reject_second_derivative(
                "the likelihood", scaled_gradients, (*ctx.saved_tensors, grad_outputs[0])
            )
        return (*scaled_gradients, *[None] * 6)


def _add_product(total: Tensor | None, gradient: Float[Tensor, "N V"], hidden: Float[Tensor, "N D"]) -> Tensor:
    """Add the weight gradient of a chunk, (V, D), to the total, in float32 if there are several chunks."""
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
    """Return the loss of each row with and without smoothing.

    If `needs_grad`, the logits are overwritten by their gradient.
    """
    scores, cap_gradient = logits.float(), None
    if softcap is not None:
        tanh = torch.tanh(scores.div_(softcap))
        scores, cap_gradient = tanh * softcap, 1 - tanh.square()
    counts = (targets != IGNORE_INDEX)[:, None]  # (N, 1)
    target = targets[:, None].clamp(min=0)
    mean = scores.mean(-1, keepdim=True) if smoothing else 0.0
    likely = scores.gather(-1, target)
    largest = scores.amax(-1, keepdim=True)
    # From here on `scores` is overwritten by the softmax and then by the gradient.
    sums = scores.sub_(largest).exp_().sum(-1, keepdim=True)
    lse = sums.log() + largest
    nll = lse - likely
    totals, unsmoothed = ((1 - smoothing) * nll + smoothing * (lse - mean)) * counts, nll * counts
    if needs_grad:
        gradient = scores.mul_(counts / sums)
        if smoothing:
            gradient.sub_(counts * (smoothing / scores.shape[1]))
        target_gradient = counts * (smoothing - 1)
        if torch.compiler.is_compiling():  # a comparison is fused; a scatter would write all scores in float32
            gradient.add_((torch.arange(scores.shape[1], device=target.device) == target) * target_gradient)
        else:
            gradient.scatter_add_(-1, target, target_gradient)
        if cap_gradient is not None:
            gradient.mul_(cap_gradient)
        logits.copy_(gradient)
    return totals[:, 0], unsmoothed[:, 0]
