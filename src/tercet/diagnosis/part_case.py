"""The small models in which a part is checked."""

import re
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from tercet.config import parse, to_plain
from tercet.models import DecoderOnly, DecoderOnlySpec, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.models.building import build_meta
from tercet.nn.specs import CustomActivation, CustomAttention, CustomFeedForward, CustomNorm, CustomPosition
from tercet.spec import Custom

Model = TypeVar("Model", bound=nn.Module)
VOCABULARY, MAX_LEN, START = 17, 13, 5
STACK = {"d_model": 24, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "position": "rotary"}
DROPOUT = {"attention": 0.3, "activation": 0.3}  # must have no effect in evaluation mode
SHAKE = 0.15  # standard deviation of the noise on initial weights, which are small or zero and would hide errors
PARTS: dict[type[Custom], tuple[str, str]] = {  # setting of a stack and names of its modules, by the base class
    CustomPosition: ("position", r"\.position$"),
    CustomActivation: ("activation", r"\.feedforward\.activation$"),
    CustomNorm: ("norm", r"_residual\.before$|\.final_norm$"),
    CustomFeedForward: ("feedforward", r"\.feedforward$"),
    CustomAttention: ("attention", r"\.self_attention$"),
}


@dataclass(frozen=True, kw_only=True)
class PartCase:
    """Part to check.

    Attributes:
        setting: Key of the part in a stack.
        names: Pattern of the names of its modules.
        model: Model with the part.
        tokens: (B, T) Token ids.
    """

    setting: str
    names: str
    model: DecoderOnly
    tokens: Tensor

    def modules(self, model: nn.Module | None = None) -> dict[str, nn.Module]:
        """Return the modules of the part in `model`, by default that of the case, by their names."""
        modules = (self.model if model is None else model).named_modules()
        return {name: module for name, module in modules if re.search(self.names, name)}

    def weights(self) -> dict[str, nn.Parameter]:
        """Return the parameters of the part by their names."""
        return {name: weight for prefix, module in self.modules().items()
                for name, weight in module.named_parameters(prefix)}  # fmt: skip


def new_case(setting: str, names: str, path: str) -> PartCase:
    """Build a model with a part, and run it once. The code is the user's, and may raise any error."""
    model = build(parse(StackSpec, {**STACK, "dropout": DROPOUT, setting: path}))
    tokens = torch.randint(VOCABULARY, (2, MAX_LEN), generator=torch.Generator().manual_seed(1))
    model(tokens)
    return PartCase(setting=setting, names=names, model=model, tokens=tokens)


def build(stack: StackSpec, *, max_len: int = MAX_LEN) -> DecoderOnly:
    """Return a decoder in evaluation mode, with noise on its initial weights."""
    return _shake(DecoderOnly(DecoderOnlySpec(vocab_size=VOCABULARY, max_len=max_len, stack=stack), seed=1))


def build_translator(stack: StackSpec) -> EncoderDecoder:
    """Return a translator in evaluation mode, with noise on its initial weights."""
    spec = EncoderDecoderSpec(vocab_size=VOCABULARY, max_len=MAX_LEN, encoder=stack, decoder=stack)
    return _shake(EncoderDecoder(spec, seed=1))


@torch.no_grad()
def _shake(model: Model) -> Model:
    generator = torch.Generator().manual_seed(1)
    for weight in model.parameters():
        weight.add_(torch.randn(weight.shape, generator=generator) * SHAKE)
    return model.eval()


def copy_model(model: DecoderOnly) -> DecoderOnly:
    """Return a copy of a model as it is opened from a folder: from settings and weights, created without memory."""
    spec = parse(DecoderOnlySpec, to_plain(model.spec))
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    copy = build_meta(spec, n_tensors=len(weights))
    copy.load_state_dict(weights, assign=True)
    assert isinstance(copy, DecoderOnly)
    return copy.eval()


def close(x: Tensor, y: Tensor) -> bool:
    """Return whether two results are equal except for rounding, and finite."""
    return torch.allclose(x, y, atol=1e-4, rtol=1e-4) and bool(x.isfinite().all())
