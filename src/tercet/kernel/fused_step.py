"""All layers of a stack for few tokens in one call: `fused_step.h` works off a list of steps, written once a model.

A decode step passes through some twenty operations a layer, each of them short; called one by one from Python they take
longer to call than to do.
"""

import ctypes
import struct
from collections.abc import Sequence

import torch
from torch import Tensor

from tercet.kernel.activations import activation_numbers
from tercet.kernel.build import kernels
from tercet.kernel.checked import Contract, is_plain
from tercet.kernel.signatures import pack_integers
from tercet.kernel.threads import kernel_threads

# As `fused_step.h` counts them.
NORM, LINEAR, ADD, MULTIPLY, ROTATE, WRITE_KV, SELF_ATTEND, CROSS_ATTEND = range(8)
INTEGERS = 12  # of a step: its kind, whether to wait, source, target, rows, width, and what only its kind has
STREAM = -1  # the buffer that is handed in and comes back; others are named by the numbers a token has before them
LANES = 8  # numbers that a head's width is a multiple of
MAX_TOKENS = 8  # of a row, up to which its attention is the faster way
WORTH_SHARING = 1 << 20  # multiplications from which threads are worth their meetings

Step = tuple[int, ...]
NO_TABLE = (0,) * 8
TOKENS = Contract(
    "fused_step", x="float32[B T D]", columns="int64[B T]", cosines="float32[B T R]?", sines="float32[B T R]?",
    source_mask="bool[Q C]?",
)  # fmt: skip


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
    activation: str = "none",
    add: bool = False,
    wait: bool = True,
) -> Step:
    """The activation of (x @ weight.T) * scale + bias, added to the target or stored there."""
    addresses = weight.data_ptr(), weight.element_size(), _address(scale), _address(bias)
    number = activation_numbers()[activation]
    return _step(LINEAR, source, target, *weight.shape, *addresses, number, int(add), wait=wait)


def add(source: int, target: int, width: int) -> Step:
    """The target becomes its sum with the source."""
    return _step(ADD, source, target, 1, width)


def multiply(source: int, target: int, width: int) -> Step:
    """The target becomes its product with the source, number by number."""
    return _step(MULTIPLY, source, target, 1, width)


def rotate(target: int, heads: int, width: int, *, wait: bool) -> Step:
    """Rotary positions, in place."""
    return _step(ROTATE, target, target, heads, width, wait=wait)


def write_kv(keys: int, values: int, layer: int, groups: int, width: int) -> Step:
    """New keys and values take their columns in the layer's KV cache."""
    return _step(WRITE_KV, keys, keys, 0, 0, layer, 0, groups, width, values)


def attend(queries: int, target: int, layer: int, *, heads: int, groups: int, width: int, cross: bool) -> Step:
    """Self-attention to the KV cache, or cross-attention to the source's."""
    return _step(CROSS_ATTEND if cross else SELF_ATTEND, queries, target, 0, 0, layer, heads, groups, width)


def kv_table(keys: Tensor, values: Tensor) -> tuple[int, ...]:
    """Of (B, G, S, K) each, the last axis without gaps."""
    return (keys.data_ptr(), values.data_ptr(), *keys.stride()[:3], *values.stride()[:3])


class Program:
    """A list of steps, and the numbers that a token has in its buffers beside the stream."""

    def __init__(self, steps: Sequence[Step], *, d_model: int, scratch: int) -> None:
        self.count, self.d_model, self.scratch = len(steps), d_model, scratch
        self.steps = pack_integers([number for step in steps for number in step])
        self.weights = sum(rows * width for kind, _, _, _, rows, width, *_ in steps if kind == LINEAR)
        self.rotated = max((width for kind, _, _, _, _, width, *_ in steps if kind == ROTATE), default=0)

    def supports(self, x: Tensor) -> bool:
        """Whether these tokens, (B, T, D), go through it, and sooner than one layer after the other."""
        rows, tokens, width = x.shape
        return rows > 0 and 0 < tokens <= MAX_TOKENS and width == self.d_model and is_plain(x, torch.float32)

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
        source_mask: Tensor | None = None,
    ) -> None:
        """Change x (B, T, D) to what the layers make of it.

        Args:
            columns: (B, T) int64: where each token's keys and values go; it sees all up to there.
            capacity: the columns that may be seen; each table has one more.
            rotation: (B, T, R) cosines and sines, where there is a step that rotates.
            tables: two for each layer: of self-attention's keys and values, and of cross-attention's.
            sources, source_columns: how many there are for cross-attention, and the columns of each.
            source_mask: (sources, source_columns) bool: which of them are real tokens.

        Raises:
            ValueError: where the tensors do not agree with each other.
            IndexError: where a token would go to a column that is not there. Nothing has changed then.
        """
        rows, each, _ = x.shape
        tokens = rows * each
        shape = rows, each, -1  # one rotation may serve all rows
        columns = columns.contiguous()
        threads = kernel_threads() if tokens * self.weights >= WORTH_SHARING else 1
        cosines, sines = (None, None) if rotation is None else (table.expand(shape).contiguous() for table in rotation)
        source_mask = None if source_mask is None else source_mask.contiguous()
        sizes = TOKENS.sizes(x, columns, cosines, sines, source_mask)
        rotated = sizes.get("R", 0)
        if rows % sources or sizes.get("Q", sources) != sources or sizes.get("C", source_columns) != source_columns:
            raise ValueError(
                f"{rows} rows can't share {sources} sources of {source_columns} columns, "
                f"with a mask of {None if source_mask is None else list(source_mask.shape)}"
            )
        if 2 * rotated > self.rotated:
            raise ValueError(f"{rotated} angles turn pairs of a head's {self.rotated} numbers: at most half as many")
        wrong = ctypes.c_int64(-1)
        kernels().fused_step(
            self.steps, self.count, x, x.new_empty(self.scratch * tokens), columns, cosines, sines, source_mask,
            (rows, each, capacity, rotated, sources, source_columns, len(tables) // 2),
            [number for table in tables for number in table],
            ctypes.byref(wrong), threads,
        )  # fmt: skip
        if wrong.value >= 0:
            column = int(columns.flatten()[wrong.value])
            raise IndexError(f"a token would go to column {column} of a cache of {capacity} and a spare one")


def _step(kind: int, source: int, target: int, rows: int, width: int, *more: int, wait: bool = True) -> Step:
    step = (kind, int(wait), source, target, rows, width, *more)
    return step + (0,) * (INTEGERS - len(step))


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()
