"""All layers of a stack for few tokens in one call: `fused_step.h` works off a list of steps, written once a model.

A decode step passes through some twenty operations a layer, each of them short; called one by one from Python they take
longer to call than to do.
"""

import ctypes
import struct
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import NamedTuple

import torch
from torch import Tensor

from tercet.kernel.activations import activation_numbers
from tercet.kernel.build import kernels, library
from tercet.kernel.contract import Contract, describe, has_memory, is_plain, is_transforming
from tercet.kernel.signatures import pack_integers
from tercet.kernel.threads import kernel_threads

# As `fused_step.h` counts them.
NORM, LINEAR, ADD, MULTIPLY, ROTATE, WRITE_KV, SELF_ATTEND, CROSS_ATTEND = range(8)
INTEGERS = 12  # of a step: its kind, whether to wait, source, target, rows, width, and what only its kind has
STREAM = -1  # the buffer that is handed in and comes back; others are named by the numbers a token has before them
LANES = 8  # numbers that a head's width is a multiple of
MAX_TOKENS = 8  # of a row, up to which its attention is the faster way
MIN_PARALLEL_WORK = 1 << 20  # multiplications from which threads are worth their meetings

Pair = tuple[Tensor, Tensor]  # keys and values (B, G, S, K), the last axis without gaps
NO_TABLE = (0,) * 8
TOKENS = Contract(
    "fused_step", x="float32[B T D]", columns="int64[B T]", cosines="float32[B T R]?", sines="float32[B T R]?",
    source_mask="bool[Q C]?",
)  # fmt: skip
_DTYPE, _KIND = attrgetter("dtype"), attrgetter("__class__", "dtype", "is_cpu")


class Step(NamedTuple):
    """One operation of a program on buffers of each token."""

    kind: int
    source: int
    target: int
    rows: int = 1  # vectors of a token
    width: int = 0
    operands: tuple[int | Tensor | None, ...] = ()
    wait: bool = True  # for all threads, before the next step

    @classmethod
    def norm(
        cls,
        source: int,
        target: int,
        rows: int,
        weight: Tensor,
        bias: Tensor | None,
        *,
        eps: float,
        rms: bool,
        wait: bool = True,
    ) -> "Step":
        """Layer norm or RMS norm of `rows` vectors, each as wide as the weight."""
        bits = struct.unpack("q", struct.pack("d", eps))[0]
        return cls(NORM, source, target, rows, len(weight), (weight, bias, int(rms), bits), wait)

    @classmethod
    def linear(
        cls,
        source: int,
        target: int,
        weight: Tensor,
        scale: Tensor | None,
        bias: Tensor | None,
        *,
        activation: str = "none",
        add: bool = False,
        wait: bool = True,
    ) -> "Step":
        """The activation of (x @ weight.T) * scale + bias, added to the target or stored there."""
        rows, width = weight.shape
        operands = weight, weight.element_size(), scale, bias, activation_numbers()[activation], int(add)
        return cls(LINEAR, source, target, rows, width, operands, wait)

    @classmethod
    def add(cls, source: int, target: int, width: int) -> "Step":
        """The sum of source and target, in the target."""
        return cls(ADD, source, target, 1, width)

    @classmethod
    def multiply(cls, source: int, target: int, width: int) -> "Step":
        """The elementwise product of source and target, in the target."""
        return cls(MULTIPLY, source, target, 1, width)

    @classmethod
    def rotate(cls, target: int, heads: int, width: int, *, wait: bool) -> "Step":
        """Rotary positions, in place."""
        return cls(ROTATE, target, target, heads, width, (), wait)

    @classmethod
    def write_kv(cls, keys: int, values: int, layer: int, groups: int, width: int) -> "Step":
        """New keys and values, in their columns of the layer's KV cache."""
        return cls(WRITE_KV, keys, keys, 0, 0, (layer, 0, groups, width, values))

    @classmethod
    def attend(
        cls, queries: int, target: int, layer: int, *, heads: int, groups: int, width: int, cross: bool
    ) -> "Step":
        """Self-attention to the KV cache, or cross-attention to the source's."""
        return cls(CROSS_ATTEND if cross else SELF_ATTEND, queries, target, 0, 0, (layer, heads, groups, width))


def supports_program(x: Tensor) -> bool:
    """Return whether a program may take the place of modules for this input: on a CPU, in float32, without gradients,
    if there are kernels and nobody follows the operations."""
    return (
        x.is_cpu
        and x.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and library() is not None
        and not is_transforming()
    )


def supports_weights(tensors: Iterable[Tensor]) -> bool:
    """Return whether a program can read these: their numbers are in memory, without gaps."""
    return all(tensor.is_contiguous() and has_memory(tensor) for tensor in tensors)


def describe_memory(tensors: Iterable[Tensor]) -> tuple[list[object], ...]:
    """Return where tensors are in memory, and their strides, sizes and types: what a program depends on."""
    tensors = list(tensors)
    return (
        list(map(Tensor.data_ptr, tensors)),
        list(map(Tensor.stride, tensors)),
        list(map(Tensor.numel, tensors)),
        list(map(_DTYPE, tensors)),
    )


def supports_tables(tables: Sequence[Tensor], shape: tuple[int, ...]) -> bool:
    """Return whether a program reads these keys or values and all are of this shape. It is asked at each step, so it
    has no loop in Python."""
    return (
        list(map(Tensor.size, tables)) == [shape] * len(tables)
        and {strides[-1] for strides in map(Tensor.stride, tables)} == {1}
        and set(map(_KIND, tables)) == {(Tensor, torch.float32, True)}
        and 0 not in map(Tensor.data_ptr, tables)
        and not any(map(Tensor.is_neg, tables))
    )


class Program:
    """The steps of a stack's layers, in their order. It holds addresses: whoever has it keeps the tensors, and writes
    it anew if `describe_memory` of them changes.

    Args:
        d_model: Width of the stream.
        scratch: Numbers of a token in the other buffers.

    Raises:
        ValueError: If the numbers of an operand are not in memory, without gaps.
    """

    def __init__(self, steps: Sequence[Step], *, d_model: int, scratch: int) -> None:
        self.count, self.d_model, self.scratch = len(steps), d_model, scratch
        self.steps = pack_integers([number for step in steps for number in _pack(step)])
        self.weights = sum(step.rows * step.width for step in steps if step.kind == LINEAR)
        self.rotary_width = max((step.width for step in steps if step.kind == ROTATE), default=0)

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
        tables: Sequence[tuple[Pair, Pair | None]],
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
            tables: Of each layer the keys and values of self-attention, and those of cross-attention.
            sources, source_columns: how many there are for cross-attention, and the columns of each.
            source_mask: (sources, source_columns) bool: which of them are real tokens.

        Raises:
            ValueError: where the tensors do not agree with each other.
            IndexError: where a token would go to a column that is not there. Nothing has changed then.
        """
        rows, tokens_per_row, _ = x.shape
        tokens = rows * tokens_per_row
        shape = rows, tokens_per_row, -1  # one rotation may serve all rows
        columns = columns.contiguous()
        threads = kernel_threads() if tokens * self.weights >= MIN_PARALLEL_WORK else 1
        cosines, sines = (None, None) if rotation is None else (table.expand(shape).contiguous() for table in rotation)
        source_mask = None if source_mask is None else source_mask.contiguous()
        sizes = TOKENS.sizes(x, columns, cosines, sines, source_mask)
        n_angles = sizes.get("R", 0)
        if rows % sources or sizes.get("Q", sources) != sources or sizes.get("C", source_columns) != source_columns:
            raise ValueError(
                f"{rows} rows can't share {sources} sources of {source_columns} columns, "
                f"with a mask of {None if source_mask is None else list(source_mask.shape)}"
            )
        if 2 * n_angles > self.rotary_width:
            raise ValueError(
                f"{n_angles} angles turn pairs of a head's {self.rotary_width} numbers: at most half as many"
            )
        invalid_token = ctypes.c_int64(-1)
        kernels().fused_step(
            self.steps, self.count, x, x.new_empty(self.scratch * tokens), columns, cosines, sines, source_mask,
            (rows, tokens_per_row, capacity, n_angles, sources, source_columns, len(tables)),
            [number for layer in tables for pair in layer for number in (kv_table(*pair) if pair else NO_TABLE)],
            ctypes.byref(invalid_token), threads,
        )  # fmt: skip
        if invalid_token.value >= 0:
            column = int(columns.flatten()[invalid_token.value])
            raise IndexError(f"a token would go to column {column} of a cache of {capacity} and a spare one")


def _pack(step: Step) -> tuple[int, ...]:
    operands = [_address(x) if isinstance(x, Tensor) else x or 0 for x in step.operands]
    numbers = step.kind, int(step.wait), step.source, step.target, step.rows, step.width, *operands
    return numbers + (0,) * (INTEGERS - len(numbers))


def _address(tensor: Tensor) -> int:
    if not supports_weights([tensor]):
        raise ValueError(f"a program takes weights without gaps in memory, not {describe(tensor)}")
    return tensor.data_ptr()


def kv_table(keys: Tensor, values: Tensor) -> tuple[int, ...]:
    """Return the addresses of keys and values (B, G, S, K), the last axis without gaps, and their strides."""
    return (keys.data_ptr(), values.data_ptr(), *keys.stride()[:3], *values.stride()[:3])
