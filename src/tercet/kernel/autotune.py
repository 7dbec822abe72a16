"""From how much work on each kernel is used on this very machine, measured when somebody asks for it, where otherwise
the table that comes with the package holds (`tuned.py`).

Each kernel does a ladder of work there and back, and so does what PyTorch would do in its place. It is used from the
work on from which it is never slower. What was measured is kept for this CPU, these kernels, threads and PyTorch, and
holds for every process that starts afterwards; a run that goes on under another table says so.
"""

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.kernel.activations import activate
from tercet.kernel.build import has_kernels, multiplies_bfloat16
from tercet.kernel.flash_attention import flash_attention
from tercet.kernel.machine_times import median_share
from tercet.kernel.short_attention import short_attention, supports_short_attention
from tercet.kernel.training_linear import training_linear
from tercet.kernel.tuned import TUNED, machine_table

SLOWER = 1.03  # than PyTorch's: from here on the kernel is not used
LARGEST_WORK, FEWEST_PAIRS = 1 << 24, 7  # of more work fewer pairs are timed
# The shapes of small and of common models; of each kernel in the order of its work.
LINEAR = ((768, 128, 128), (768, 128, 512), (4096, 256, 1024), (4096, 384, 1536), (1024, 768, 3072))  # rows, K, N
ATTENTION = ((12, 4, 64, 32), (32, 4, 128, 64), (16, 6, 256, 64), (2, 12, 512, 64), (1, 12, 1024, 64))  # B, H, T, K
ACTIVATION = (1 << 18, 1 << 20, 1 << 22)


class Rung(NamedTuple):
    """So much work of a kernel's, and what it takes beside PyTorch."""

    name: str  # as in `TUNED`
    work: int
    share: float


def autotune(note: Callable[[str], None]) -> dict[str, float]:
    """Measure, and keep in the cache, from how much work on each kernel is used; it takes up to a minute.

    Args:
        note: gets a line for each kernel and amount of work.

    Returns:
        for each name of `TUNED` the least work, infinite where it is never used.

    Raises:
        UserError, OSError: where the cache cannot be written to.
    """
    rungs = list[Rung]()
    for rung in _measure():
        note(f"{rung.name}, {rung.work:,} of work: {rung.share:.2f} of PyTorch's time")
        rungs.append(rung)
    table = {name: first_never_slower([rung for rung in rungs if rung.name == name]) for name in TUNED}
    machine_table().write(table)
    return table


def first_never_slower(rungs: list[Rung]) -> float:
    """The work of the first rung from which on none is slower."""
    least = math.inf
    for rung in sorted(rungs, key=lambda rung: rung.work, reverse=True):
        if rung.share > SLOWER:
            break
        least = rung.work
    return 0.0 if rungs and least == min(rung.work for rung in rungs) else least


def _measure() -> Iterator[Rung]:
    if not has_kernels():
        return
    for dtype in (torch.float32, *([torch.bfloat16] if multiplies_bfloat16() else [])):
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16):
            for kernel, work, own, theirs, inputs in _cases():
                pairs = max(FEWEST_PAIRS, 21 * LARGEST_WORK // max(LARGEST_WORK, work))
                share = median_share(
                    partial(_there_and_back, own, inputs), partial(_there_and_back, theirs, inputs), pairs=pairs
                )
                yield Rung(f"{kernel} {str(dtype).removeprefix('torch.')}", work, share)


Case = tuple[str, int, Callable[..., Tensor], Callable[..., Tensor], list[Tensor]]


def _cases() -> Iterator[Case]:
    """A kernel, its work, it, what PyTorch has, and what both are given."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).requires_grad_()

    for rows, width, out in LINEAR:
        yield (
            "linear",
            rows * width * out,
            training_linear,
            F.linear,
            [random(rows, width), random(out, width), random(out)],
        )
    for shape in ATTENTION:
        heads = [random(*shape) for _ in range(3)]
        yield "flash_attention", shape[0] * shape[1] * shape[2] ** 2, _own_attention, _pytorch_attention, heads
    for numbers in ACTIVATION:
        yield "activate", numbers, _own_gelu, F.gelu, [random(numbers)]


def _there_and_back(function: Callable[..., Tensor], inputs: list[Tensor]) -> None:
    y = function(*inputs)
    torch.autograd.grad(y, inputs, torch.ones_like(y))


def _own_gelu(x: Tensor) -> Tensor:
    return activate(x, "gelu")


def _own_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return flash_attention(q, k, v, mask=None, causal=True)


def _pytorch_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    if supports_short_attention(q, k):
        return short_attention(q, k, v, mask=None, bias=None, causal=True, dropout=0.0)
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)
