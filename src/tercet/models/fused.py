"""Run all layers of a stack in one call, for the few tokens of a decode step on a CPU.

The result is the same as that of `Stack.forward`, up to rounding. The program, a list of steps, is compiled from the
modules. It stores raw pointers, so before each decode step it is compared with the modules and recompiled if any of
them changed. If a stack has hooks, replaced methods or modules of types that no step supports, `Stack.forward` runs its
layers separately.
"""

import logging
import math
from collections.abc import Iterable
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import Tensor, nn

from tercet.kernel import (
    LANES,
    activation_numbers,
    describe_memory,
    supports_program,
    supports_tables,
    supports_weights,
)
from tercet.models.fused_program import (
    ACTIVATION_NAMES,
    BIASED,
    FusibleStack,
    score_biases,
    sizes_of,
    write_program,
)
from tercet.models.specs import StackSpec
from tercet.nn.attention import Attention
from tercet.nn.block import Block
from tercet.nn.cache import LayerCache, StackCache
from tercet.nn.feedforward import FeedForward
from tercet.nn.linear import Linear
from tercet.nn.norm import JointRMSNorm, RMSNorm
from tercet.nn.positions import PositionScheme, Rotation
from tercet.nn.residual import Residual

MODULE_TYPES = {
    Block,
    Residual,
    Attention,
    FeedForward,
    Linear,
    nn.LayerNorm,
    RMSNorm,
    JointRMSNorm,
    nn.Identity,
    nn.Dropout,
    nn.ModuleList,
}
# In addition to modules and tensors, a program depends on these methods and on these attributes of the modules.
METHODS = [
    (kind, name) for kind in MODULE_TYPES for name in ("forward", "attend", "keys_values") if hasattr(kind, name)
]
ORIGINAL_METHODS = [getattr(kind, name) for kind, name in METHODS]
WATCHED_ATTRIBUTES = ("eps", "n_heads", "n_kv_heads", "d_head", "softcap", "activation", "parallel", "spec")

log = logging.getLogger(__name__)


def fused_layers(stack: FusibleStack, x: Tensor, cache: StackCache) -> "FusedLayers | None":
    """Return the layers of this stack as one call; None if they cannot be fused or fusing would not be faster.

    Args:
        stack: Stack to run.
        x: (B, T, D) Input of the first block.
        cache: KV cache of the previous tokens.
    """
    if torch.compiler.is_compiling():
        return None
    if not x.is_cpu:
        _cache.pop(stack, None)  # else the program would keep the memory of weights that moved to another device
        return None
    if stack.training or not supports_program(x):
        return None
    if stack.window is not None and cache.capacity > stack.window:  # no step hides keys before a window
        return None
    layers = _cache.get(stack)
    if layers is not None and layers.has_hooks():
        return None
    if layers is None or cache.capacity >= layers.distances or layers.is_outdated():
        had_program = layers is not None and layers.program is not None
        layers = _cache[stack] = FusedLayers(stack, capacity=cache.capacity)
        if layers.has_hooks():
            return None
        if had_program and layers.program is None:
            _warn_once(stack, "a module has changed to a type or size that fused layers do not support")
    if layers.program is None or not layers.program.supports(x):
        return None
    first = cache.layers[0]
    if first.self_kv.keys.dtype != torch.float32 or (layers.has_cross and first.cross_kv.pair is None):
        return None
    if not layers.matches(cache, x):
        _warn_once(stack, "the KV cache does not have the shapes, dtype or memory that fused layers require")
        return None
    return layers


class FusedLayers:
    """The program of a stack, and a snapshot of the modules and tensors from which it was compiled.

    Args:
        stack: Stack to compile.
        capacity: Number of columns of the KV cache.

    Attributes:
        program: The program; None if a module has a type that no step supports.
        has_cross: True if the stack has cross-attention.
        distances: Number of columns from which on the program is too short for the biases of attention scores.
    """

    def __init__(self, stack: FusibleStack, *, capacity: int) -> None:
        layers = [*stack.blocks.modules(), stack.final_norm]
        parts = [*layers, *stack.position.modules()]
        modules = [stack, *parts]
        attributes = [vars(part) for part in modules]
        self._attentions = [vars(part) for part in parts if isinstance(part, Attention)]
        # Live dictionaries and a snapshot of them. Whole lists are compared, because this is done at each decode step.
        self._parts, self._attributes = parts, attributes
        self._children = [names["_modules"] for names in attributes if names["_modules"]]
        self._numbers = [(names, name) for names in attributes for name in WATCHED_ATTRIBUTES if name in names]
        self._hooks = [vars(part)[kind] for part in parts for kind in ("_forward_hooks", "_forward_pre_hooks")]
        self._holders = [vars(part)[kind] for part in parts for kind in ("_parameters", "_buffers") if vars(part)[kind]]
        self._tensors = [x for holder in self._holders for x in holder.values() if x is not None]
        self._memory = [x.detach() for x in self._tensors]  # keeps the memory alive while the program has its addresses
        self._snapshot = [dict(children) for children in self._children], *self._read_modules(), *self._read_tensors()
        self.has_cross = any(block.cross_attention is not None for block in stack.blocks if isinstance(block, Block))
        self._table = (len(stack.blocks), stack.spec.kv_heads, stack.spec.head_width)
        self.distances, self.program = math.inf, None
        if _is_possible(stack, layers) and not _is_patched(modules):
            biases = score_biases(stack, 1 << capacity.bit_length())
            self.distances = len(biases[0][1]) if biases else math.inf
            self._memory += chain.from_iterable(biases)
            self.program = write_program(stack, biases)

    def is_outdated(self) -> bool:
        """Return whether a module was replaced or patched, or its weights changed in address or layout."""
        return (self._children, *self._read_modules(), *self._read_tensors()) != self._snapshot

    def has_hooks(self) -> bool:
        """Return whether a module has hooks or a replaced `attend`, which the program would not call."""
        return any(self._hooks) or any("attend" in names for names in self._attentions)

    def matches(self, cache: StackCache, x: Tensor) -> bool:
        """Return whether the tables of the cache fit these layers and rows."""
        n_layers, groups, width = self._table
        shape = (len(x), groups, cache.capacity + 1, width)
        tables = [table for layer in cache.layers for table in (layer.self_kv.keys, layer.self_kv.values)]
        if len(cache.layers) != n_layers or not supports_tables(tables, shape):
            return False
        if not self.has_cross:
            return True
        tables = [table for layer in cache.layers for table in layer.cross_kv.pair or ()]
        sources, _, columns, _ = tables[0].shape
        return (
            len(x) % sources == 0
            and len(tables) == 2 * n_layers
            and supports_tables(tables, (sources, groups, columns, width))
        )

    def __call__(
        self, x: Tensor, rotation: Rotation | None, cache: StackCache, memory_token_mask: Tensor | None
    ) -> Tensor:
        """Compute `Stack.forward` from the first block to the last norm."""
        assert self.program is not None
        x = x.clone(memory_format=torch.contiguous_format)
        pair = cache.layers[0].cross_kv.pair
        self.program.run(
            x,
            cache.positions(x.shape[1]),
            cache.capacity,
            rotation,
            list(map(_tables, cache.layers)),
            sources=1 if pair is None else pair[0].shape[0],
            source_columns=0 if pair is None else pair[0].shape[2],
            source_mask=None if pair is None else memory_token_mask,
        )
        return x

    def _read_modules(self) -> tuple[list[Any], ...]:
        """Return type, number of attributes and watched attributes of each module, and the methods of the classes.

        The number of attributes changes if a method is added to an instance.
        """
        return (
            list(map(type, self._parts)),
            list(map(len, self._attributes)),
            [names.get(name) for names, name in self._numbers],
            [getattr(kind, name) for kind, name in METHODS],
        )

    def _read_tensors(self) -> tuple[list[Any], ...]:
        """Return the identities of the current tensors, and the addresses and layouts of those in the snapshot."""
        return (
            list(map(id, chain.from_iterable(map(dict.values, self._holders)))),
            *describe_memory(self._tensors),
        )


_cache: "WeakKeyDictionary[FusibleStack, FusedLayers]" = WeakKeyDictionary()
_warned: "WeakSet[FusibleStack]" = WeakSet()


def _warn_once(stack: FusibleStack, reason: str) -> None:
    """Warn, once per stack, that decode steps are slower from now on."""
    if stack not in _warned:
        _warned.add(stack)
        log.warning("decode steps run layer by layer from now on: %s", reason)


def _is_patched(parts: Iterable[nn.Module]) -> bool:
    """Return whether a method of a module or of its class was replaced, since the program would not call it."""
    overrides_method = any(callable(getattr(type(part), name, None)) for part in parts for name in vars(part))
    return overrides_method or [getattr(kind, name) for kind, name in METHODS] != ORIGINAL_METHODS


def _tables(layer: LayerCache) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
    return (layer.self_kv.keys, layer.self_kv.values), layer.cross_kv.pair


def _is_possible(stack: FusibleStack, parts: Iterable[nn.Module]) -> bool:
    """Return whether all modules have supported types and the sizes in the spec."""
    tensors = [tensor for part in (*parts, stack.position) for tensor in (*part.parameters(), *part.buffers())]
    scheme = type(stack.position)
    return (
        all(type(part) in MODULE_TYPES for part in parts)
        and all(_fits(stack.spec, part) for part in parts)
        and (scheme in BIASED or (scheme.bias, scheme.biases) == (PositionScheme.bias, PositionScheme.biases))
        and all(tensor.dtype == torch.float32 for tensor in stack.position.parameters())
        and not stack.position.rotations_differ  # all steps that rotate read the same table
        # Parallel sublayers read the same stream. Only norms before them keep it in buffers that no sublayer changes.
        and (not stack.spec.parallel or (stack.spec.placement == "pre" and stack.spec.first_norm))
        and stack.spec.head_width % LANES == 0
        and supports_weights(tensors)
    )


def _fits(spec: StackSpec, part: nn.Module) -> bool:
    """Return whether the sizes of a module agree with the spec. The kernel cannot check them, unlike PyTorch."""
    d_model, d_ff, width, heads, groups = sizes_of(spec)
    match part:
        case Attention():
            norms = [(part.query_norm, heads), (part.key_norm, groups)]
            return (
                part.softcap is None  # no step bounds the scores
                and (part.n_heads, part.n_kv_heads, part.d_head) == (heads, groups, width)
                and _product_fits(part.query, heads * width, d_model)
                and all(_product_fits(linear, groups * width, d_model) for linear in (part.key, part.value))
                and _product_fits(part.out, d_model, heads * width)
                and all(
                    _norm_fits(norm, n * width if isinstance(norm, JointRMSNorm) else width)
                    for norm, n in norms
                    if not isinstance(norm, nn.Identity)
                )
            )
        case FeedForward():
            inputs = [part.up] if part.gate is None else [part.up, part.gate]
            return (
                ACTIVATION_NAMES.get(part.activation) in activation_numbers()
                and all(_product_fits(linear, d_ff, d_model) for linear in inputs)
                and _product_fits(part.down, d_model, d_ff)
            )
        case Residual():
            norms = [norm for norm in (part.before, part.branch, part.after) if not isinstance(norm, nn.Identity)]
            return all(_norm_fits(norm, d_model) for norm in norms)
        case _:
            return True


def _product_fits(part: Linear, rows: int, width: int) -> bool:
    has_kernel = part.weight.dtype == torch.float32 or (
        part.quantized and part.weight.dtype in (torch.bfloat16, torch.int8)
    )
    vectors = [vector for vector in (part.scale, part.bias) if vector is not None]
    return has_kernel and part.weight.shape == (rows, width) and all(_is_vector(vector, rows) for vector in vectors)


def _norm_fits(part: nn.Module, width: int) -> bool:
    has_weight = isinstance(part.weight, Tensor) and isinstance(part.eps, float)
    return has_weight and all(_is_vector(vector, width) for vector in part.parameters())


def _is_vector(tensor: Tensor, width: int) -> bool:
    return tensor.dtype == torch.float32 and tensor.shape == (width,)
