"""From a spec of any family to its model."""

from collections.abc import Iterator

from tercet.models.decoder_only import DecoderOnly
from tercet.models.encoder_decoder import EncoderDecoder
from tercet.models.encoder_only import EncoderOnly
from tercet.models.specs import AnySpec, DecoderOnlySpec, EncoderOnlySpec
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


def blocks_of(model: AnyModel) -> Iterator[Block]:
    """Every block: the unit of sharding."""
    return (part for part in model.modules() if isinstance(part, Block))


def stacks_of(model: AnyModel) -> Iterator[Stack]:
    """Every stack of blocks: a decoder's, an encoder's, or both."""
    return (part for part in model.modules() if isinstance(part, Stack))
