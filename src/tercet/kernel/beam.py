"""Selection of the best continuations of a beam on a CPU.

The kernel makes two passes over the scores, where PyTorch needs about twelve.
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
    """Return whether the kernel supports these scores."""
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
    """Return the `count` largest values of totals[n, h] + log softmax(scores[n h])[v].

    Requires `supports_scores`.

    Args:
        scores: (N H, V) float32.
        totals: (N, H) float32.
        count: Number of continuations per sentence.
        forbidden: (any) int64 ids that are never selected.
        eos_id, is_early: Id of the end token, and (N) bool, True if it is forbidden too.

    Returns:
        Sums, h and v, (N, count) each, the largest first, and in case of ties the lowest (h, v). The sums are -inf if
        there are fewer than `count`, and NaN if a score of the sentence is NaN.
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
            f"top_tokens: count={count}, {sizes['R']} rows of scores and totals {list(totals.shape)} do not fit"
        )
    values, parents, tokens = results = _fake(scores, totals, count, forbidden, eos_id, is_early)
    kernels().top_tokens(
        scores, totals, sentences, hypotheses, sizes["V"], scores.stride(0), count, forbidden, sizes["I"], eos_id,
        is_early, values, parents, tokens, kernel_threads(),
    )  # fmt: skip
    return results
