"""For how much work each kernel is used on this very machine, measured when somebody asks for it, where otherwise the
table that comes with the package holds (`tuned.py`).

Each kernel does a ladder of work there and back, and so does what PyTorch would do in its place. It is used for the
longest part of the ladder on which it is nowhere slower. What was measured is kept for this CPU, these kernels, threads
and PyTorch, and holds for every process that starts afterwards; a run that goes on under another table says so.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import groupby
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.kernel.activations import activate
from tercet.kernel.build import has_kernels, multiplies_bfloat16
from tercet.kernel.flash_attention import flash_attention
from tercet.kernel.measurement_cache import PAIRS, median_ratio
from tercet.kernel.short_attention import short_attention, supports_short_attention
from tercet.kernel.training_linear import training_linear
from tercet.kernel.tuned import NEVER, TUNED, WorkRange, autotune_cache

FEWEST_MEASUREMENTS = 2  # one alone may have been a lucky moment
SLOWER = 1.03  # of PyTorch's time: with more of it a kernel is not used
LARGEST_WORK, FEWEST_PAIRS = 1 << 24, 7  # of more work fewer pairs are timed
# The shapes of small and of common models; of each kernel in the order of its work.
LINEAR = (  # rows, K, N
    (768, 128, 128), (768, 128, 512), (2048, 256, 256), (4096, 256, 256), (4096, 256, 1024), (1024, 768, 3072),
)  # fmt: skip
ATTENTION = ((12, 4, 64, 32), (32, 4, 128, 64), (16, 6, 256, 64), (2, 12, 512, 64), (1, 12, 1024, 64))  # B, H, T, K
ACTIVATION = (1 << 18, 1 << 20, 1 << 22)


class Measurement(NamedTuple):
    """So much work of a kernel's, and what it takes beside PyTorch."""

    name: str  # as in `TUNED`
    work: int
    share: float


def autotune(note: Callable[[str], None]) -> dict[str, WorkRange]:
    """Measure, and keep in the cache, for how much work each kernel is used; it takes up to a minute.

    Args:
        note: gets a line for each kernel and amount of work.

    Returns:
        what it is for each name of `TUNED`.

    Raises:
        UserError, OSError: where the cache cannot be written to.
    """
    measured = list[Measurement]()
    for one in _measure():
        note(f"{one.name}, {one.work:,} of work: {one.share:.2f} of PyTorch's time")
        measured.append(one)
    table = {name: longest_range([one for one in measured if one.name == name]) for name in TUNED}
    fields = WorkRange._fields
    autotune_cache().write({f"{name} {field}": getattr(table[name], field) for name in TUNED for field in fields})
    return table


def longest_range(measured: Sequence[Measurement]) -> WorkRange:
    """The most amounts of work next to each other, two at least, at none of which a kernel is slower; of equally many
    the larger ones."""
    ladder = sorted(measured, key=lambda one: one.work)
    parts = [list(part) for is_slower, part in groupby(ladder, lambda one: one.share > SLOWER) if not is_slower]
    best = max(reversed(parts), key=len, default=[])
    if len(best) < FEWEST_MEASUREMENTS:
        return NEVER
    least = 0 if best[0] is ladder[0] else best[0].work
    return WorkRange(least, math.inf if best[-1] is ladder[-1] else best[-1].work)


def _measure() -> Iterator[Measurement]:
    if not has_kernels():
        return
    for dtype in (torch.float32, *([torch.bfloat16] if multiplies_bfloat16() else [])):
        numbers = str(dtype).removeprefix("torch.")
        # Narrowed weights are not kept: a step narrows each anew.
        with torch.autocast("cpu", torch.bfloat16, enabled=dtype == torch.bfloat16, cache_enabled=False):
            for kernel, work, own, theirs, inputs in _cases(dtype):
                pairs = max(FEWEST_PAIRS, PAIRS * LARGEST_WORK // max(LARGEST_WORK, work))
                ways = (partial(_there_and_back, way, inputs) for way in (own, theirs))
                yield Measurement(f"{kernel} {numbers}", work, median_ratio(*ways, pairs=pairs))


Way = Callable[..., Tensor]


def _cases(dtype: torch.dtype) -> Iterator[tuple[str, int, Way, Way, list[Tensor]]]:
    """A kernel, how much work, it, what PyTorch has, and what both are given, activations in this type."""
    generator = torch.Generator().manual_seed(0)

    def random(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).requires_grad_()

    for rows, width, out in LINEAR:
        parameters = random(out, width, dtype=torch.float32), random(out, dtype=torch.float32)
        yield "linear", rows * width * out, training_linear, F.linear, [random(rows, width), *parameters]
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
