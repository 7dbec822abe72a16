"""All layers of a stack for few tokens in one call: `fused_step.h` works off a list of steps, written once a model.

A token that is written passes through some twenty operations a layer, each of them short; called one by one from
Python they take longer to call than to do.
"""

import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from tercet.kernel.activations import ACTIVATIONS
from tercet.kernel.compiled import library, words

# As `fused_step.h` counts them.
NORM, LINEAR, PLUS, TIMES, ROTATE, REMEMBER, LOOK_BACK, LOOK_ACROSS = range(8)
WORDS = 12  # of a step: its kind, whether to wait, from, to, rows, width, and what only its kind has
STREAM = -1  # the buffer that is handed in and comes back; others are named by the numbers a token has before them
LANES = 8  # numbers that a head's width is a multiple of
FEW_EACH = 8  # tokens of a row up to which its attention is the faster way
WORTH_SHARING = 1 << 20  # multiplications from which threads are worth their meetings

Step = tuple[int, ...]
NO_TABLE = (0,) * 8


def norm(
    source: int,
    target: int,
    rows: int,
    weight: Tensor,
    bias: Tensor | None,
    *,
    eps: float,
    rms: bool,
    wait: bool = True,
) -> Step:
    """`rows` vectors a token, as wide as the weight."""
    bits = struct.unpack("q", struct.pack("d", eps))[0]
    return _step(NORM, source, target, rows, len(weight), weight.data_ptr(), _address(bias), int(rms), bits, wait=wait)


def linear(
    source: int,
    target: int,
    weight: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    *,
    activation: str | None = None,
    add: bool = False,
    wait: bool = True,
) -> Step:
    """(x @ weight.T) * scale + bias, added to the target or stored there, and bent."""
    about = weight.data_ptr(), weight.element_size(), _address(scale), _address(bias)
    return _step(LINEAR, source, target, *weight.shape, *about, ACTIVATIONS.index(activation), int(add), wait=wait)


def plus(source: int, target: int, width: int) -> Step:
    """The target becomes its sum with the source."""
    return _step(PLUS, source, target, 1, width)


def times(source: int, target: int, width: int) -> Step:
    """The target becomes its product with the source, number by number."""
    return _step(TIMES, source, target, 1, width)


def turn(target: int, heads: int, width: int, *, wait: bool) -> Step:
    """Rotary positions, in place."""
    return _step(ROTATE, target, target, heads, width, wait=wait)


def remember(keys: int, values: int, layer: int, groups: int, width: int) -> Step:
    """New keys and values take their columns in the layer's table."""
    return _step(REMEMBER, keys, keys, 0, 0, layer, 0, groups, width, values)


def look(queries: int, target: int, layer: int, *, heads: int, groups: int, width: int, across: bool) -> Step:
    """Attention to what is behind, or to the source."""
    return _step(LOOK_ACROSS if across else LOOK_BACK, queries, target, 0, 0, layer, heads, groups, width)


def table_of(keys: Tensor, values: Tensor) -> tuple[int, ...]:
    """Of (B, G, S, K) each, the last axis without gaps."""
    return (keys.data_ptr(), values.data_ptr(), *keys.stride()[:3], *values.stride()[:3])


class Program:
    """A list of steps, and the numbers that a token has in its buffers beside the stream."""

    def __init__(self, steps: Sequence[Step], scratch: int) -> None:
        self.count, self.scratch = len(steps), scratch
        self.steps = words([word for step in steps for word in step])
        products = [step for step in steps if step[0] == LINEAR]
        self.weights = sum(rows * width for _, _, _, _, rows, width, *_ in products)

    def takes(self, rows: int, each: int) -> bool:
        """Whether so many tokens of so many rows go through it, and sooner than one layer after the other."""
        return rows > 0 and 0 < each <= FEW_EACH

    def run(
        self,
        x: Tensor,
        columns: Tensor,
        capacity: int,
        rotation: tuple[Tensor, Tensor] | None,
        tables: Sequence[tuple[int, ...]],
        *,
        sources: int = 1,
        source_columns: int = 0,
        real: Tensor | None = None,
    ) -> None:
        """Change x (B, T, D) to what the layers make of it.

        Args:
            columns: (B, T) int64: where each token's keys and values go; it sees all up to there.
            capacity: the columns that may be seen; each table has one more.
            rotation: (B, T, R) cosines and sines, where there is a step that turns.
            tables: two for each layer: of what is behind, and of what it looks across at.
            sources, source_columns: how many there are to look across at, and the columns of each.
            real: (sources, source_columns) bool: which of them are real.
        """
        kernels = library()
        assert kernels is not None
        rows, each, _ = x.shape
        tokens = rows * each
        threads = torch.get_num_threads() if tokens * self.weights >= WORTH_SHARING else 1
        cosines, sines = (None, None) if rotation is None else (table.contiguous() for table in rotation)
        turned = 0 if cosines is None else cosines.shape[-1]
        real = None if real is None else real.contiguous()
        sizes = rows, each, capacity, turned, sources, source_columns, len(tables) // 2
        scratch = x.new_empty(self.scratch * tokens)
        flat = [word for table in tables for word in table]
        kernels.fused_step(
            self.steps, self.count, x.data_ptr(), scratch.data_ptr(), columns.contiguous().data_ptr(),
            _address(cosines), _address(sines), _address(real),
            words(sizes), words(flat),
            threads,
        )  # fmt: skip


def _step(kind: int, source: int, target: int, rows: int, width: int, *more: int, wait: bool = True) -> Step:
    words = (kind, int(wait), source, target, rows, width, *more)
    return words + (0,) * (WORDS - len(words))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
