"""Build the model of any family from its spec."""

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
    """Return the model that `spec` describes, with weights drawn from `seed`.

    Raises:
        ValueError: If sizes do not fit together, or if vocab_size is 0.
    """
    if isinstance(spec, DecoderOnlySpec):
        return DecoderOnly(spec, seed=seed)
    if isinstance(spec, EncoderOnlySpec):
        return EncoderOnly(spec, seed=seed)
    return EncoderDecoder(spec, seed=seed)


def build_meta(spec: AnySpec, *, n_tensors: int) -> AnyModel:
    """Build the model on the meta device, with names and shapes of all weights but no memory for them.

    Args:
        spec: Spec of the model.
        n_tensors: Number of tensors in the file of weights that the model is built for. A spec with more layers than
            that cannot fit, since each layer has several tensors. It is rejected before it is built, because building
            many layers takes long.

    Raises:
        ValueError: If sizes do not fit together, are too large for PyTorch, or if there are more than `n_tensors`
            layers.
    """
    if (n_layers := sum(stack.n_layers for stack in stack_specs(spec))) > n_tensors:
        raise ValueError(f"too many layers for {n_tensors} tensors of weights: {n_layers}")
    try:
        with torch.device("meta"), _SkipInitialization():
            return build(spec)
    except (RuntimeError, OverflowError) as error:
        raise ValueError(f"invalid sizes: {shorten(error)}") from None


class _SkipInitialization(TorchFunctionMode):
    """Skip the initialization of `torch.nn` modules.

    On the meta device PyTorch would import its compiler for that, which takes as long as the rest of the build.
    """

    DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return None if func in self.DRAWS else func(*args, **(kwargs or {}))


def blocks_of(model: AnyModel) -> Iterator[Block]:
    """Yield every block of a model. The block is the unit of sharding."""
    return (part for part in model.modules() if isinstance(part, Block))


def stacks_of(model: AnyModel) -> Iterator[Stack]:
    """Yield every stack of a model: one, or the encoder and the decoder."""
    return (part for part in model.modules() if isinstance(part, Stack))
