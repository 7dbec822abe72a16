"""The three model families, built from the same parts, and their presets."""

from typing import TYPE_CHECKING

from tercet.lazy_exports import export_lazily

if TYPE_CHECKING:
    from tercet.models.building import AnyModel as AnyModel
    from tercet.models.building import blocks_of as blocks_of
    from tercet.models.building import build as build
    from tercet.models.building import build_meta as build_meta
    from tercet.models.building import stacks_of as stacks_of
    from tercet.models.decoder_only import DecoderOnly as DecoderOnly
    from tercet.models.encoder_decoder import EncoderDecoder as EncoderDecoder
    from tercet.models.encoder_only import EncoderOnly as EncoderOnly
    from tercet.models.presets import PRESETS as PRESETS
    from tercet.models.presets import model_spec as model_spec
    from tercet.models.record import Edit as Edit
    from tercet.models.record import names as names
    from tercet.models.record import record as record
    from tercet.models.specs import SPECS as SPECS
    from tercet.models.specs import AnySpec as AnySpec
    from tercet.models.specs import Biases as Biases
    from tercet.models.specs import BranchDropout as BranchDropout
    from tercet.models.specs import Classifier as Classifier
    from tercet.models.specs import DecoderOnlySpec as DecoderOnlySpec
    from tercet.models.specs import Dropout as Dropout
    from tercet.models.specs import EncoderDecoderSpec as EncoderDecoderSpec
    from tercet.models.specs import EncoderOnlySpec as EncoderOnlySpec
    from tercet.models.specs import MaskedHead as MaskedHead
    from tercet.models.specs import StackSpec as StackSpec
    from tercet.models.specs import stack_specs as stack_specs
    from tercet.models.stack import Stack as Stack
else:
    export_lazily(__name__)
