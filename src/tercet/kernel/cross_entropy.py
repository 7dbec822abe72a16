"""Cross-entropy over a large vocabulary on a CPU, with the gradient written over the scores.

One call reads each row three times while it is in the cache. PyTorch's operations read and write all rows about twelve
times.
"""

import ctypes

import torch
from torch import Tensor

from tercet.kernel.build import kernel_of, supports_elements
from tercet.kernel.contract import Contract
from tercet.kernel.operators import operator
from tercet.kernel.threads import kernel_threads

MIN_WORK = 1 << 15  # minimum number of scores for which compiling the kernel pays
SCORES = "float32|bfloat16[N V%1] rows"
INPUT = Contract("cross_entropy", scores=SCORES)
ROWS = Contract("cross_entropy", scores=SCORES, targets="int64[N]")


def supports_logits(scores: Tensor) -> bool:
    """Return whether the kernel supports these scores."""
    return (
        not scores.requires_grad
        and supports_elements(scores, MIN_WORK)
        and INPUT.fits(scores)
        and not _overlaps(scores)
    )


def cross_entropy_(
    scores: Tensor, targets: Tensor, *, smoothing: float, softcap: float | None, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    """Return the loss of each row with and without smoothing. Requires `supports_logits`.

    Args:
        scores: (N, V) float32 or bfloat16 before any softcap. If `needs_grad`, the gradient of the loss overwrites
            them.
        targets: (N) int64 in 0..V-1, or -100, PyTorch's `ignore_index`, for a row that does not count.
        smoothing: Share of the target's probability that is spread evenly over the vocabulary (label smoothing).
        softcap: If not None, scores are replaced by softcap tanh(score / softcap).
        needs_grad: If True, compute the gradient.

    Returns:
        The loss of each row with smoothing, and without, (N) float32 each. Both are 0 for a row that does not count.

    Raises:
        IndexError: If a target is outside the vocabulary. The scores are unchanged in this case.
        ValueError: If smoothing is not from 0 to 1, or if softcap is not positive.
    """
    return _forward(scores, targets.contiguous(), smoothing, softcap, needs_grad)


def _fake(
    scores: Tensor, targets: Tensor, smoothing: float, softcap: float | None, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    return (
        scores.new_empty(scores.shape[0], dtype=torch.float32),
        scores.new_empty(scores.shape[0], dtype=torch.float32),
    )


@operator("cross_entropy_", _fake, mutates=("scores",))
def _forward(
    scores: Tensor, targets: Tensor, smoothing: float, softcap: float | None, needs_grad: bool
) -> tuple[Tensor, Tensor]:
    sizes = ROWS.sizes(scores, targets)
    rows, vocabulary = sizes["N"], sizes["V"]
    if needs_grad and _overlaps(scores):
        raise ValueError(f"cross_entropy overwrites the scores, whose rows must not overlap: strides {scores.stride()}")
    if not 0 <= smoothing <= 1 or (softcap is not None and not softcap > 0):
        raise ValueError(
            f"cross_entropy: smoothing must be from 0 to 1 and softcap above 0 or None, got smoothing={smoothing} and "
            f"softcap={softcap}"
        )
    totals, unsmoothed = (torch.empty(rows, dtype=torch.float32) for _ in range(2))
    invalid = ctypes.c_int64(-1)
    kernel_of("cross_entropy", scores.dtype)(
        scores, rows, vocabulary, scores.stride(0), targets, smoothing, softcap or 0.0, needs_grad, totals, unsmoothed,
        ctypes.byref(invalid), kernel_threads(),
    )  # fmt: skip
    if invalid.value >= 0:
        raise IndexError(
            f"target {int(targets[invalid.value])} of row {invalid.value} is not in a vocabulary of {vocabulary}"
        )
    return totals, unsmoothed


def _overlaps(scores: Tensor) -> bool:
    return len(scores) > 1 and scores.stride(0) < scores.shape[1]
