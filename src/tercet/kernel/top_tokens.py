"""The best continuations of a beam's hypotheses on a CPU: two passes over the scores, where PyTorch needs a dozen."""

import torch
from torch import Tensor

from tercet.kernel.build import kernels, library


def supports_scores(scores: Tensor) -> bool:
    """Whether these scores are ones for the kernel."""
    return (
        not torch.compiler.is_compiling()
        and scores.device.type == "cpu"
        and scores.dtype == torch.float32
        and scores.stride(-1) == 1
        and scores.numel() > 0
        and not scores.requires_grad
        and library() is not None
    )


def top_tokens(
    scores: Tensor, totals: Tensor, count: int, *, never: Tensor, end: int, early: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of all totals[n, h] + log softmax(scores[n h])[v] the `count` largest; ask `supports_scores` before.

    Args:
        scores: (N H, V) float32.
        totals: (N, H) float32.
        never: (any) int64: ids that are not written.
        end, early: an id, and (N) bool: whether it is not written either.

    Returns:
        (N, count) each, the largest first and of equals the lowest (h, v): their sums, their h and their v. -inf where
        there are fewer; NaN where one of the sentence's scores is no number.
    """
    sentences, hypotheses = totals.shape
    values = scores.new_empty(sentences, count)
    parents, tokens = (torch.empty(sentences, count, dtype=torch.long) for _ in range(2))
    kernels().top_tokens(
        scores, totals.contiguous(), sentences, hypotheses, scores.shape[1], scores.stride(0), count,
        never.contiguous(), len(never), end, early.contiguous(), values, parents, tokens, torch.get_num_threads(),
    )  # fmt: skip
    return values, parents, tokens
