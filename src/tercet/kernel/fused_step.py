"""Run all layers of a stack for a few tokens in one call.

`fused_step.h` executes a program, which is a list of steps that is built once per model.

A decode step has about twenty short operations per layer. Calling them one by one from Python takes longer than
computing them.
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

# The same numbers as in `fused_step.h`.
NORM, LINEAR, ADD, MULTIPLY, ROTATE, WRITE_KV, SELF_ATTEND, CROSS_ATTEND = range(8)
INTEGERS = 12  # integers per step: kind, whether to wait, source, target, rows, width, and operands of the kind
STREAM = -1  # the buffer of the residual stream (input and output); other buffers have an offset per token instead
LANES = 8  # the width of a head must be a multiple of this
MAX_TOKENS = 8  # maximum number of tokens per row for which the program is faster
MIN_PARALLEL_WORK = 1 << 20  # multiplications from which several threads pay

Pair = tuple[Tensor, Tensor]  # keys and values (B, G, S, K), each with a contiguous last axis
Bias = tuple[Tensor, Tensor]  # numbers (N, H) to add to scores, and their row for each distance, int32
NO_TABLE = (0,) * 8
TOKENS = Contract(
    "fused_step", x="float32[B T D]", columns="int64[B T]", cosines="float32[B T R]?", sines="float32[B T R]?",
    source_mask="bool[Q C]?",
)  # fmt: skip
_DTYPE, _KIND = attrgetter("dtype"), attrgetter("__class__", "dtype", "is_cpu")


class Step(NamedTuple):
    """One operation of a program, on the buffers `source` and `target` of each token.

    The class methods return a step and do not compute anything.
    """

    kind: int
    source: int
    target: int
    rows: int = 1  # vectors per token; of LINEAR, the number of outputs
    width: int = 0
    operands: tuple[int | Tensor | None, ...] = ()
    wait: bool = True  # whether all threads synchronize before the next step

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
        """Return the step that applies a layer norm, or an RMS norm if `rms`, to `rows` vectors of each token.

        The vectors are as wide as the weight.
        """
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
        """Return the step that stores activation((x @ weight.T) * scale + bias) in the target.

        With `add`, the product is added to the target before the activation.
        """
        rows, width = weight.shape
        operands = weight, weight.element_size(), scale, bias, activation_numbers()[activation], int(add)
        return cls(LINEAR, source, target, rows, width, operands, wait)

    @classmethod
    def add(cls, source: int, target: int, width: int) -> "Step":
        """Return the step that adds the source to the target."""
        return cls(ADD, source, target, 1, width)

    @classmethod
    def multiply(cls, source: int, target: int, width: int) -> "Step":
        """Return the step that multiplies the target elementwise by the source."""
        return cls(MULTIPLY, source, target, 1, width)

    @classmethod
    def rotate(cls, target: int, heads: int, width: int, *, wait: bool) -> "Step":
        """Return the step that applies rotary positions to the heads of each token, in place."""
        return cls(ROTATE, target, target, heads, width, (), wait)

    @classmethod
    def write_kv(cls, keys: int, values: int, layer: int, groups: int, width: int) -> "Step":
        """Return the step that writes new keys and values to their columns of the layer's KV cache."""
        return cls(WRITE_KV, keys, keys, 0, 0, (layer, groups, width, values))

    @classmethod
    def attend(
        cls,
        queries: int,
        target: int,
        layer: int,
        *,
        heads: int,
        groups: int,
        width: int,
        cross: bool,
        bias: Bias | None = None,
    ) -> "Step":
        """Return the step that attends to the KV cache of the layer, or with `cross` to the keys of the source.

        Args:
            queries, target: Buffers of the queries and the result.
            layer: Number of the layer.
            heads, groups, width: Numbers of query heads and of key/value heads, and the width of a head.
            cross: If True, the step attends to the source.
            bias: Bias of self-attention by distance, for more distances than the cache has columns; None for no bias.
        """
        operands = (layer, heads, groups, width, *(bias or ()))
        distances = 0 if bias is None else len(bias[1])
        return cls(CROSS_ATTEND if cross else SELF_ATTEND, queries, target, distances, 0, operands)


def supports_program(x: Tensor) -> bool:
    """Return whether a program can replace modules for this input.

    A program requires kernels and float32 on a CPU. Gradients, autocast and transforms must be disabled.
    """
    return (
        x.is_cpu
        and x.dtype == torch.float32
        and not torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and library() is not None
        and not is_transforming()
    )


def supports_weights(tensors: Iterable[Tensor]) -> bool:
    """Return whether a program can read these tensors, which must be contiguous in ordinary memory."""
    return all(tensor.is_contiguous() and has_memory(tensor) for tensor in tensors)


def describe_memory(tensors: Iterable[Tensor]) -> tuple[list[object], ...]:
    """Return the addresses, strides, sizes and dtypes of the tensors, on which a program depends."""
    tensors = list(tensors)
    return (
        list(map(Tensor.data_ptr, tensors)),
        list(map(Tensor.stride, tensors)),
        list(map(Tensor.numel, tensors)),
        list(map(_DTYPE, tensors)),
    )


def supports_tables(tables: Sequence[Tensor], shape: tuple[int, ...]) -> bool:
    """Return whether a program can read these tables of keys or values, and all have this shape.

    This is called at each decode step, so it has no Python loop.
    """
    return (
        list(map(Tensor.size, tables)) == [shape] * len(tables)
        and {strides[-1] for strides in map(Tensor.stride, tables)} == {1}
        and set(map(_KIND, tables)) == {(Tensor, torch.float32, True)}
        and 0 not in map(Tensor.data_ptr, tables)
        and not any(map(Tensor.is_neg, tables))
    )


class Program:
    """The steps of a stack's layers in order.

    It stores raw pointers. The owner must keep the tensors alive, and build a new program if `describe_memory` changes.

    Args:
        steps: Steps of all layers.
        d_model: Width of the residual stream.
        scratch: Number of elements per token in the other buffers.

    Raises:
        ValueError: If an operand is not contiguous in ordinary memory.
    """

    def __init__(self, steps: Sequence[Step], *, d_model: int, scratch: int) -> None:
        self.count, self.d_model, self.scratch = len(steps), d_model, scratch
        self.steps = pack_integers([number for step in steps for number in _pack(step)])
        self.weights = sum(step.rows * step.width for step in steps if step.kind == LINEAR)
        self.rotary_width = max((step.width for step in steps if step.kind == ROTATE), default=0)
        self.distances = min((step.rows for step in steps if step.kind == SELF_ATTEND and step.rows), default=None)

    def supports(self, x: Tensor) -> bool:
        """Return whether the program supports these tokens, (B, T, D), and is faster than separate layers."""
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
        """Replace x (B, T, D) by the output of the layers.

        Args:
            x: Input, overwritten by the output.
            columns: (B, T) int64, column of each token's keys and values. A token attends to this column and to all
                columns before it.
            capacity: Number of columns that can be attended to. Each table has one more.
            rotation: (B or 1, T, R) cosines and sines; None if no step rotates.
            tables: Keys and values of self-attention and of cross-attention for each layer; None for the latter without
                cross-attention.
            sources, source_columns: Number of sources for cross-attention, and number of columns of each.
            source_mask: (sources, source_columns) bool, True at real tokens (default: all tokens are real).

        Raises:
            ValueError: If the tensors do not agree with each other.
            IndexError: If a column does not exist. Nothing is changed in this case.
        """
        rows, tokens_per_row, _ = x.shape
        tokens = rows * tokens_per_row
        shape = rows, tokens_per_row, -1  # one rotation may be shared by all rows
        columns = columns.contiguous()
        threads = kernel_threads() if tokens * self.weights >= MIN_PARALLEL_WORK else 1
        cosines, sines = (None, None) if rotation is None else (table.expand(shape).contiguous() for table in rotation)
        source_mask = None if source_mask is None else source_mask.contiguous()
        sizes = TOKENS.sizes(x, columns, cosines, sines, source_mask)
        n_angles = sizes.get("R", 0)
        if rows % sources or sizes.get("Q", sources) != sources or sizes.get("C", source_columns) != source_columns:
            raise ValueError(
                f"{rows} rows cannot share {sources} sources of {source_columns} columns "
                f"with a mask of shape {None if source_mask is None else list(source_mask.shape)}"
            )
        if self.distances is not None and capacity >= self.distances:
            raise ValueError(f"a bias for {self.distances} distances does not suffice for {capacity} columns")
        if 2 * n_angles > self.rotary_width:
            raise ValueError(
                f"a head of width {self.rotary_width} cannot have more angles than pairs of elements: {n_angles} angles"
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
            raise IndexError(f"column {column} does not exist in a cache of {capacity} columns and a spare one")


def _pack(step: Step) -> tuple[int, ...]:
    operands = [_address(x) if isinstance(x, Tensor) else x or 0 for x in step.operands]
    numbers = step.kind, int(step.wait), step.source, step.target, step.rows, step.width, *operands
    return numbers + (0,) * (INTEGERS - len(numbers))


def _address(tensor: Tensor) -> int:
    if not supports_weights([tensor]):
        raise ValueError(f"a program requires contiguous weights in memory; got {describe(tensor)}")
    return tensor.data_ptr()


def kv_table(keys: Tensor, values: Tensor) -> tuple[int, ...]:
    """Return addresses and strides of keys and values (B, G, S, K) with a contiguous last axis."""
    return (keys.data_ptr(), values.data_ptr(), *keys.stride()[:3], *values.stride()[:3])
