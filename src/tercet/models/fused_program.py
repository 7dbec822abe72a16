"""The program of a stack: its layers as a list of steps, which a kernel runs in one call.

`fused.py` decides when the program replaces the layers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from tercet.kernel import STREAM, Bias, Program, Step
from tercet.models.specs import StackSpec
from tercet.nn.attention import Attention
from tercet.nn.block import Block
from tercet.nn.feedforward import ACTIVATIONS, FeedForward
from tercet.nn.linear import Linear
from tercet.nn.norm import JointRMSNorm, RMSNorm
from tercet.nn.positions import ALiBiPositions, PositionScheme, RelativeBiasPositions, alibi_slopes
from tercet.nn.residual import Residual

BIASED = (ALiBiPositions, RelativeBiasPositions)  # schemes whose biases depend only on the distance
ACTIVATION_NAMES = {function: name for name, function in ACTIVATIONS.items()}


class FusibleStack(nn.Module):
    """Base class of a stack, with the attributes that the program is compiled from."""

    spec: StackSpec
    blocks: nn.ModuleList
    position: PositionScheme
    window: int | None
    final_norm: nn.Module


def score_biases(stack: FusibleStack, distances: int) -> list[Bias]:
    """Return the bias of self-attention in each layer, as `Step.attend` reads it; empty if there is none."""
    distance = torch.arange(distances)
    match stack.position:
        case RelativeBiasPositions() as scheme:
            # The tables themselves, whose numbers may change during training.
            tables = [table.weight for table in scheme.tables if isinstance(table, nn.Embedding)]
            rows = scheme.buckets(distance[None, :, None]).flatten()
        case ALiBiPositions() as scheme:
            tables, rows = [-alibi_slopes(scheme.n_heads) * distance[:, None]], distance
        case _:
            return []
    n_layers = len(stack.blocks)
    return [(table, rows.int()) for table in (tables if len(tables) == n_layers else tables * n_layers)]


def sizes_of(spec: StackSpec) -> tuple[int, int, int, int, int]:
    """Return d_model, d_ff, the width of a head, and the numbers of query heads and key/value heads."""
    return spec.d_model, spec.inner_width, spec.head_width, spec.n_heads, spec.kv_heads


class _Writer:
    """Compiler of a stack to steps. Buffers are offsets in the scratch memory that the program has for each token."""

    def __init__(self, stack: FusibleStack, biases: Sequence[Bias]) -> None:
        self.biases = biases
        d_model, self.d_ff, self.width, self.heads, self.groups = sizes_of(stack.spec)
        self.rotary = type(stack.position).rotation is not PositionScheme.rotation
        self.d_model, self.parallel = d_model, stack.spec.parallel
        self.has_separate_norms = self.parallel == "separate_norms"
        self.normed = 0  # each buffer starts at the end of the previous one
        self.queries = self.normed + d_model * (3 if self.has_separate_norms else 1)  # one for each sublayer
        self.keys = self.queries + self.heads * self.width
        self.values = self.keys + self.groups * self.width
        self.mixed = self.values + self.groups * self.width
        self.hidden = self.mixed + self.heads * self.width
        self.gated = self.hidden + self.d_ff
        self.scratch = self.gated + self.d_ff
        self.steps: list[Step] = []

    def normalize(self, part: nn.Module, source: int, target: int, rows: int = 1, *, wait: bool = True) -> None:
        if isinstance(part, nn.LayerNorm | RMSNorm):
            assert part.eps is not None
            rows = 1 if isinstance(part, JointRMSNorm) else rows  # all heads are one vector
            rms, bias = isinstance(part, RMSNorm), part.bias if isinstance(part, nn.LayerNorm) else None
            self.steps.append(Step.norm(source, target, rows, part.weight, bias, eps=part.eps, rms=rms, wait=wait))

    def product(self, part: Linear, source: int, target: int, **options: Any) -> None:
        self.steps.append(Step.linear(source, target, part.weight, part.scale, part.bias, **options))

    def attention(self, part: Attention, layer: int, source: int, target: int, *, add: bool, cross: bool) -> None:
        heads, groups, width = self.heads, self.groups, self.width
        self.product(part.query, source, self.queries, wait=cross)
        if not cross:
            self.product(part.key, source, self.keys, wait=False)
            self.product(part.value, source, self.values)
            self.normalize(part.key_norm, self.keys, self.keys, groups, wait=False)
        self.normalize(part.query_norm, self.queries, self.queries, heads)
        if not cross:
            if self.rotary:
                self.steps.append(Step.rotate(self.queries, heads, width, wait=False))
                self.steps.append(Step.rotate(self.keys, groups, width, wait=True))
            self.steps.append(Step.write_kv(self.keys, self.values, layer, groups, width))
        step = Step.attend(
            self.queries, self.mixed, layer, heads=heads, groups=groups, width=width, cross=cross,
            bias=self.biases[layer] if self.biases and not cross else None,
        )  # fmt: skip
        self.steps.append(step)
        self.product(part.out, self.mixed, target, add=add)

    def feedforward(self, part: FeedForward, source: int, target: int, *, add: bool) -> None:
        activation = ACTIVATION_NAMES[part.activation]
        if part.gate is None:
            self.product(part.up, source, self.hidden, activation=activation)
        else:
            self.product(part.gate, source, self.hidden, activation=activation, wait=False)
            self.product(part.up, source, self.gated)
            self.steps.append(Step.multiply(self.gated, self.hidden, self.d_ff))
        self.product(part.down, self.hidden, target, add=add)

    def block(self, block: Block, layer: int) -> None:
        sublayers: list[tuple[Residual, nn.Module]] = [(block.self_residual, block.self_attention)]
        if block.cross_attention is not None and block.cross_residual is not None:
            sublayers.append((block.cross_residual, block.cross_attention))
        sublayers.append((block.feedforward_residual, block.feedforward))
        buffers = [self.normed + number * self.d_model for number in range(3 if self.has_separate_norms else 0)]
        for buffer, (part, _) in zip(buffers, sublayers, strict=False):  # before a sublayer adds to the stream
            self.normalize(part.before, STREAM, buffer)
        for number, (part, sublayer) in enumerate(sublayers):
            source = buffers[number] if buffers else self.read(part)
            self.residual(part, layer, sublayer, source, cross=sublayer is block.cross_attention)

    def read(self, part: Residual) -> int:
        self.normalize(part.before, STREAM, self.normed)
        return STREAM if isinstance(part.before, nn.Identity) and not self.parallel else self.normed

    def residual(self, part: Residual, layer: int, sublayer: nn.Module, source: int, *, cross: bool) -> None:
        direct = isinstance(part.branch, nn.Identity)
        target = STREAM if direct else self.normed
        if isinstance(sublayer, Attention):
            self.attention(sublayer, layer, source, target, add=direct, cross=cross)
        elif isinstance(sublayer, FeedForward):
            self.feedforward(sublayer, source, target, add=direct)
        if not direct:
            self.normalize(part.branch, self.normed, self.normed)
            self.steps.append(Step.add(self.normed, STREAM, self.d_model))
        self.normalize(part.after, STREAM, STREAM)


def write_program(stack: FusibleStack, biases: Sequence[Bias]) -> Program:
    """Return the program with the steps of all layers in order, and the biases of self-attention."""
    writer = _Writer(stack, biases)
    for layer, block in enumerate(stack.blocks):
        assert isinstance(block, Block)
        writer.block(block, layer)
    writer.normalize(stack.final_norm, STREAM, STREAM)
    return Program(writer.steps, d_model=writer.d_model, scratch=writer.scratch)
