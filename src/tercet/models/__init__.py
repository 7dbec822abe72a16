"""The models: a frozen spec each, and the modules it makes from the parts in `nn`."""

from tercet.models.decoder_only import DecoderOnly as DecoderOnly
from tercet.models.presets import PRESETS as PRESETS
from tercet.models.presets import model_spec as model_spec
from tercet.models.specs import DecoderOnlySpec as DecoderOnlySpec
from tercet.models.specs import Dropout as Dropout
from tercet.models.specs import StackSpec as StackSpec
from tercet.models.stack import Stack as Stack
