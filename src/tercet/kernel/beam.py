"""The best continuations of a beam's hypotheses on a CPU: two passes over the scores, where PyTorch needs a dozen."""

import torch
from torch import Tensor

from tercet.kernel.build import kernels, library
from tercet.kernel.contract import Contract
from tercet.kernel.operators import operator
from tercet.kernel.threads import kernel_threads

SCORES = "float32[R V%1] rows"
INPUT = Contract("top_tokens", scores=SCORES)
SENTENCES = Contract("top_tokens", scores=SCORES, totals="float32[N H%1]", forbidden="int64[I]", is_early="bool[N]")


def supports_scores(scores: Tensor) -> bool:
    """Whether these scores are ones for the kernel."""
    return (
        not torch.compiler.is_compiling()
        and scores.numel() > 0
        and not scores.requires_grad
        and INPUT.fits(scores)
        and library() is not None
    )


def top_tokens(
    scores: Tensor, totals: Tensor, count: int, *, forbidden: Tensor, eos_id: int, is_early: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Of all totals[n, h] + log softmax(scores[n h])[v] the `count` largest; ask `supports_scores` before.

    Args:
        scores: (N H, V) float32.
        totals: (N, H) float32.
        forbidden: (any) int64: ids that are not written.
        eos_id, is_early: an id, and (N) bool: whether it is not written either.

    Returns:
        (N, count) each, the largest first and of equals the lowest (h, v): their sums, their h and their v. -inf where
        there are fewer; NaN where one of the sentence's scores is no number.
    """
    return _forward(scores, totals.contiguous(), count, forbidden.contiguous(), eos_id, is_early.contiguous())


def _fake(
    scores: Tensor, totals: Tensor, count: int, forbidden: Tensor, eos_id: int, is_early: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    shape = len(totals), count
    return (
        scores.new_empty(shape),
        scores.new_empty(shape, dtype=torch.long),
        scores.new_empty(shape, dtype=torch.long),
    )


@operator("top_tokens", _fake)
def _forward(
    scores: Tensor, totals: Tensor, count: int, forbidden: Tensor, eos_id: int, is_early: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    sizes = SENTENCES.sizes(scores, totals, forbidden, is_early)
    sentences, hypotheses = sizes["N"], sizes["H"]
    if sizes["R"] != sentences * hypotheses or count < 1:
        raise ValueError(f"top_tokens: {count} of {sizes['R']} rows of scores for totals {list(totals.shape)}")
    values, parents, tokens = results = _fake(scores, totals, count, forbidden, eos_id, is_early)
    kernels().top_tokens(
        scores, totals, sentences, hypotheses, sizes["V"], scores.stride(0), count, forbidden, sizes["I"], eos_id,
        is_early, values, parents, tokens, kernel_threads(),
    )  # fmt: skip
    return results
