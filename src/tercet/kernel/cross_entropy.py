"""Cross-entropy of scores over a large vocabulary, and its gradient in their place, on a CPU: one call, in which a row
is read three times while it is in the cache. PyTorch's operations read and write all rows a dozen times.
"""

import torch
from torch import Tensor

from tercet.kernel.build import kernels, supports_numbers

WORTH = 1 << 15  # scores from which it is worth having the kernel compiled


def supports_logits(scores: Tensor) -> bool:
    """Whether these scores are ones for the kernel."""
    return scores.stride(-1) == 1 and not scores.requires_grad and supports_numbers(scores, WORTH)


def cross_entropy_(
    scores: Tensor, targets: Tensor, *, smoothing: float, softcap: float | None, learns: bool
) -> tuple[Tensor, Tensor]:
    """The loss of each row, and what it is without smoothing; ask `supports_logits` before.

    Args:
        scores: (N, V) float32 or bfloat16, before any cap. Where `learns` they become the gradient of the loss.
        targets: (N) int64 in 0..V-1; below zero: the row costs nothing.
        smoothing: the share of a target that is spread over the vocabulary.
        softcap: scores are capped at +-softcap by tanh.

    Returns:
        (N) float32 each.
    """
    rows, vocabulary = scores.shape
    totals, plains = (torch.empty(rows, dtype=torch.float32) for _ in range(2))
    function = kernels().cross_entropy_float32 if scores.dtype == torch.float32 else kernels().cross_entropy_bfloat16
    function(
        scores, rows, vocabulary, scores.stride(0), targets.contiguous(), smoothing, softcap or 0.0, learns, totals,
        plains, torch.get_num_threads(),
    )  # fmt: skip
    return totals, plains
