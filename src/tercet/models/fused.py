"""A stack's layers as one call, for the few tokens of a decoding step on a CPU; `Stack.forward` has them one by one.

What is worked out is the same, up to rounding. The list of steps is written from the modules as they are, and written
anew when they change, for it holds addresses. Whoever listens to a module, or put another kind in its place, gets the
plain way.
"""

from collections.abc import Iterable
from itertools import chain
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from tercet.kernel import library
from tercet.kernel.fused_step import (
    LANES,
    NO_TABLE,
    STREAM,
    Program,
    Step,
    linear,
    look,
    norm,
    plus,
    remember,
    table_of,
    times,
    turn,
)
from tercet.models.specs import StackSpec
from tercet.nn.attention import Attention
from tercet.nn.block import Block
from tercet.nn.cache import Cache, LayerCache
from tercet.nn.feedforward import ACTIVATIONS, FeedForward
from tercet.nn.linear import Linear
from tercet.nn.norm import RMSNorm
from tercet.nn.positions import ALiBiPositions, RotaryPositions, Rotation
from tercet.nn.residual import Residual

if TYPE_CHECKING:
    from tercet.models.stack import Stack

KINDS = {Block, Residual, Attention, FeedForward, Linear, nn.LayerNorm, RMSNorm, nn.Identity, nn.Dropout, nn.ModuleList}
NAMES = {function: name for name, function in ACTIVATIONS.items()}


def fused(stack: "Stack", x: Tensor, cache: Cache) -> "Fused | None":
    """The layers of this stack as one call; None where that can't be, or does not pay."""
    first = cache.layers[0]
    if (
        torch.compiler.is_compiling()
        or x.device.type != "cpu"
        or not x.dtype == first.own.keys.dtype == torch.float32
        or torch.is_grad_enabled()
        or torch.is_autocast_enabled("cpu")
        or stack.training
        or library() is None
    ):
        return None
    found = _written.get(stack)
    if found is None or found.outdated():
        found = _written[stack] = Fused(stack)
    if (
        found.program is None
        or not found.program.takes(*x.shape[:2])
        or found.heard()
        or (found.across and first.cross.pair is None)
    ):
        return None
    return found


class Fused:
    """The list of steps of a stack, and what it was written from.

    Attributes:
        program: None where a part is of a kind that there is no step for.
        across: whether it looks at a source.
    """

    def __init__(self, stack: "Stack") -> None:
        parts = [*stack.blocks.modules(), stack.final_norm]
        self._attentions = [part for part in parts if isinstance(part, Attention)]
        self._children = [(vars(part)["_modules"], list(vars(part)["_modules"].values())) for part in parts]
        self._activations = [(part, part.activation) for part in parts if isinstance(part, FeedForward)]
        self._hooks = [vars(part)[kind] for part in parts for kind in ("_forward_hooks", "_forward_pre_hooks")]
        self._places = [
            (place, name)
            for part in parts
            for place in (vars(part)["_parameters"], vars(part)["_buffers"])
            for name in place
        ]
        self._addresses = self._where()
        self.across = any(block.cross_attention is not None for block in stack.blocks if isinstance(block, Block))
        self.program = _write(stack) if _possible(stack, parts) else None

    def outdated(self) -> bool:
        """Whether a part has been exchanged, or its weights lie elsewhere."""
        return (
            any(list(now.values()) != then for now, then in self._children)
            or any(part.activation is not then for part, then in self._activations)
            or self._where() != self._addresses
        )

    def heard(self) -> bool:
        """Whether somebody listens to a part, who would hear nothing."""
        return any(self._hooks) or any("attend" in vars(part) for part in self._attentions)

    def __call__(self, x: Tensor, rotation: Rotation | None, cache: Cache, memory_padding: Tensor | None) -> Tensor:
        """As `Stack.forward`, from the first block to the last norm."""
        assert self.program is not None
        x = x.clone(memory_format=torch.contiguous_format)
        pair = cache.layers[0].cross.pair
        self.program.run(
            x,
            cache.positions(x.shape[1]),
            cache.capacity,
            rotation,
            list(chain.from_iterable(map(_tables, cache.layers))),
            sources=1 if pair is None else pair[0].shape[0],
            source_columns=0 if pair is None else pair[0].shape[2],
            real=memory_padding,
        )
        return x

    def _where(self) -> list[int]:
        tensors = (place.get(name) for place, name in self._places)
        return [0 if tensor is None else tensor.data_ptr() for tensor in tensors]


_written: "WeakKeyDictionary[Stack, Fused]" = WeakKeyDictionary()


def _tables(layer: LayerCache) -> tuple[tuple[int, ...], tuple[int, ...]]:
    pair = layer.cross.pair
    return table_of(layer.own.keys, layer.own.values), NO_TABLE if pair is None else table_of(*pair)


def _possible(stack: "Stack", parts: Iterable[nn.Module]) -> bool:
    """Whether there are steps for all parts: of known kinds, and of the sizes that the spec says."""
    tensors = [tensor for part in parts for tensor in (*part.parameters(), *part.buffers())]
    return (
        all(type(part) in KINDS for part in parts)
        and all(_fits(stack.spec, part) for part in parts)
        and not isinstance(stack.position, ALiBiPositions)
        # Parallel sublayers read one vector, which must lie apart from the stream and stay.
        and (not stack.spec.parallel or stack.spec.placement == "pre")
        and stack.spec.head_width % LANES == 0
        and all(tensor.is_contiguous() and tensor.device.type == "cpu" for tensor in tensors)
    )


def _fits(spec: StackSpec, part: nn.Module) -> bool:
    """An address says nothing of sizes, which PyTorch would check."""
    d_model, d_ff, width, heads, groups = _sizes(spec)
    match part:
        case Attention():
            norms = [norm for norm in (part.query_norm, part.key_norm) if not isinstance(norm, nn.Identity)]
            return (
                (part.n_heads, part.n_kv_heads, part.d_head) == (heads, groups, width)
                and _product_fits(part.query, heads * width, d_model)
                and all(_product_fits(linear, groups * width, d_model) for linear in (part.key, part.value))
                and _product_fits(part.out, d_model, heads * width)
                and all(_norm_fits(norm, width) for norm in norms)
            )
        case FeedForward():
            wide = [part.up] if part.gate is None else [part.up, part.gate]
            return (
                part.activation in NAMES
                and all(_product_fits(linear, d_ff, d_model) for linear in wide)
                and _product_fits(part.down, d_model, d_ff)
            )
        case Residual():
            norms = [norm for norm in (part.before, part.branch, part.after) if not isinstance(norm, nn.Identity)]
            return all(_norm_fits(norm, d_model) for norm in norms)
        case _:
            return True


def _product_fits(part: Linear, rows: int, width: int) -> bool:
    wide = part.weight.dtype == torch.float32 or (part.quantized and part.weight.dtype in (torch.bfloat16, torch.int8))
    vectors = [vector for vector in (part.scale, part.bias) if vector is not None]
    return wide and part.weight.shape == (rows, width) and all(_is_vector(vector, rows) for vector in vectors)


def _norm_fits(part: nn.Module, width: int) -> bool:
    return all(_is_vector(vector, width) for vector in part.parameters())


def _is_vector(tensor: Tensor, width: int) -> bool:
    return tensor.dtype == torch.float32 and tensor.shape == (width,)


def _sizes(spec: StackSpec) -> tuple[int, int, int, int, int]:
    """d_model, d_ff, a head's width, heads, and heads of keys and values."""
    return spec.d_model, spec.inner_width, spec.head_width, spec.n_heads, spec.kv_heads


def _write(stack: "Stack") -> Program:
    """The steps of all layers, in their order."""
    rotary = isinstance(stack.position, RotaryPositions)
    d_model, d_ff, width, heads, groups = _sizes(stack.spec)
    normed = 0  # each buffer is named by what lies before it
    queries = normed + d_model
    keys = queries + heads * width
    values = keys + groups * width
    mixed = values + groups * width
    wide = mixed + heads * width
    gated = wide + d_ff
    steps: list[Step] = []

    def normalise(part: nn.Module, source: int, target: int, rows: int = 1, *, wait: bool = True) -> None:
        if isinstance(part, nn.LayerNorm | RMSNorm):
            assert part.eps is not None
            rms, bias = isinstance(part, RMSNorm), part.bias if isinstance(part, nn.LayerNorm) else None
            steps.append(norm(source, target, rows, part.weight, bias, eps=part.eps, rms=rms, wait=wait))

    def product(part: Linear, source: int, target: int, **how: Any) -> None:
        steps.append(linear(source, target, part.weight, part.scale, part.bias, **how))

    def attention(part: Attention, layer: int, source: int, target: int, add: bool, *, across: bool) -> None:
        product(part.query, source, queries, wait=across)
        if not across:
            product(part.key, source, keys, wait=False)
            product(part.value, source, values)
            normalise(part.key_norm, keys, keys, groups, wait=False)
        normalise(part.query_norm, queries, queries, heads)
        if not across:
            if rotary:
                steps.extend((turn(queries, heads, width, wait=False), turn(keys, groups, width, wait=True)))
            steps.append(remember(keys, values, layer, groups, width))
        steps.append(look(queries, mixed, layer, heads=heads, groups=groups, width=width, across=across))
        product(part.out, mixed, target, add=add)

    def feedforward(part: FeedForward, source: int, target: int, add: bool) -> None:
        bent = NAMES[part.activation]
        if part.gate is None:
            product(part.up, source, wide, activation=bent)
        else:
            product(part.gate, source, wide, activation=bent, wait=False)
            product(part.up, source, gated)
            steps.append(times(gated, wide, d_ff))
        product(part.down, wide, target, add=add)

    def residual(part: Residual, layer: int, sublayer: Attention | FeedForward, *, across: bool = False) -> None:
        normalise(part.before, STREAM, normed)
        source = STREAM if isinstance(part.before, nn.Identity) and not stack.spec.parallel else normed
        direct = isinstance(part.branch, nn.Identity)
        target = STREAM if direct else normed
        if isinstance(sublayer, Attention):
            attention(sublayer, layer, source, target, direct, across=across)
        else:
            feedforward(sublayer, source, target, direct)
        if not direct:
            normalise(part.branch, normed, normed)
            steps.append(plus(normed, STREAM, d_model))
        normalise(part.after, STREAM, STREAM)

    for layer, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        residual(block.self_residual, layer, block.self_attention)
        if block.cross_attention is not None and block.cross_residual is not None:
            residual(block.cross_residual, layer, block.cross_attention, across=True)
        residual(block.feedforward_residual, layer, block.feedforward)
    normalise(stack.final_norm, STREAM, STREAM)
    return Program(steps, scratch=gated + d_ff)
