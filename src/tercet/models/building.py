"""From a spec of any family to its model."""

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from tercet.messages import shorten
from tercet.models.decoder_only import DecoderOnly
from tercet.models.encoder_decoder import EncoderDecoder
from tercet.models.encoder_only import EncoderOnly
from tercet.models.specs import AnySpec, DecoderOnlySpec, EncoderOnlySpec, stack_specs
from tercet.models.stack import Stack
from tercet.nn.block import Block

AnyModel = DecoderOnly | EncoderDecoder | EncoderOnly


def build(spec: AnySpec, *, seed: int = 0) -> AnyModel:
    """The model that `spec` describes, its weights drawn from `seed`.

    Raises:
        ValueError: for sizes that do not fit together.
    """
    if isinstance(spec, DecoderOnlySpec):
        return DecoderOnly(spec, seed=seed)
    if isinstance(spec, EncoderOnlySpec):
        return EncoderOnly(spec, seed=seed)
    return EncoderDecoder(spec, seed=seed)


def build_meta(spec: AnySpec, *, n_tensors: int) -> AnyModel:
    """`build` on the meta device: every name and shape, and no memory for the numbers.

    Args:
        n_tensors: how many tensors the model's weights are: a layer has several, and to build many takes long.

    Raises:
        ValueError: for sizes that do not fit together, into any memory, or into so many tensors.
    """
    if (n_layers := sum(stack.n_layers for stack in stack_specs(spec))) > n_tensors:
        raise ValueError(f"{n_layers} layers, and the weights are {n_tensors} tensors")
    try:
        with torch.device("meta"), _SkipInitialization():
            return build(spec)
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"its sizes make no model: {shorten(error)}") from None


class _SkipInitialization(TorchFunctionMode):
    """The parts of `torch.nn` draw no numbers: on the meta device PyTorch would import its compiler for that, which
    takes as long as all the rest of it."""

    DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func in self.DRAWS else func(*args, **(kwargs or {}))


def blocks_of(model: AnyModel) -> Iterator[Block]:
    """Every block: the unit of sharding."""
    return (part for part in model.modules() if isinstance(part, Block))


def stacks_of(model: AnyModel) -> Iterator[Stack]:
    """Every stack of blocks: a decoder's, an encoder's, or both."""
    return (part for part in model.modules() if isinstance(part, Stack))
