"""Selection of the best continuations of a beam on a CPU.

The kernel reads each row of scores three times while it is in the cache. PyTorch makes about twelve passes over all
scores.
"""

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
    """Return whether the kernel supports these scores: float32 rows on a CPU, without gradients."""
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
    """Return the `count` best continuations of each of N sentences, which have H hypotheses each.

    The value of token v after hypothesis h of sentence n is totals[n, h] + log_softmax(scores[n H + h])[v]. Requires
    `supports_scores`.

    Args:
        scores: (N H, V) float32 scores of all tokens after each hypothesis.
        totals: (N, H) float32 log-probability of each hypothesis.
        count: Number of continuations per sentence.
        forbidden: (I) int64 ids that are never selected.
        eos_id: Id of the end token.
        is_early: (N) bool, True if the end token is forbidden too.

    Returns:
        Values, hypotheses and tokens of the continuations, (N, count) each, in descending order of the value. In case
        of ties the lowest (h, v) is first. Values are -inf if a sentence has fewer than `count` continuations, and NaN
        if one of its scores is NaN.
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
        raise ValueError(
            f"top_tokens requires a row of scores for each of the totals, and count of at least 1: {sizes['R']} rows, "
            f"totals of shape {list(totals.shape)}, count={count}"
        )
    values, parents, tokens = results = _fake(scores, totals, count, forbidden, eos_id, is_early)
    kernels().top_tokens(
        scores, totals, sentences, hypotheses, sizes["V"], scores.stride(0), count, forbidden, sizes["I"], eos_id,
        is_early, values, parents, tokens, kernel_threads(),
    )  # fmt: skip
    return results
