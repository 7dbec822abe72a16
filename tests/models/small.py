"""Small models of every family, with odd sizes and with weights large enough for every part to matter."""

from dataclasses import replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from tercet.models import (
    AnyModel,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    StackSpec,
)
from tercet.nn import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal

V, MAX_LEN = 17, 13
POSITIONS = (Learned(), Sinusoidal(), Rotary(), ALiBi(), RelativeBias(n_buckets=8, max_distance=11), NoPosition())
GROUPS = {"MHA": 4, "GQA": 2, "MQA": 1}
PLACEMENTS = ("pre", "post", "sandwich", "branch")
Model = TypeVar("Model", bound=AnyModel)
STACK = StackSpec(d_model=24, n_layers=2, n_heads=4, d_ff=31)


def model(*, spec: dict[str, Any] | None = None, **stack: Any) -> DecoderOnly:
    decoder = DecoderOnly(DecoderOnlySpec(vocab_size=V, max_len=MAX_LEN, stack=replace(STACK, **stack), **(spec or {})))
    return shaken(decoder).eval()


def translator(*, spec: dict[str, Any] | None = None, **stack: Any) -> EncoderDecoder:
    """Return a translator with two encoder and three decoder layers."""
    encoder = replace(STACK, **stack)
    sides = {"encoder": encoder, "decoder": replace(encoder, n_layers=3)}
    return shaken(EncoderDecoder(EncoderDecoderSpec(vocab_size=V, max_len=MAX_LEN, **sides | (spec or {})))).eval()


def encoder(*, spec: dict[str, Any] | None = None, **stack: Any) -> EncoderOnly:
    encoder_spec = EncoderOnlySpec(vocab_size=V, max_len=MAX_LEN, stack=replace(STACK, **stack), **(spec or {}))
    return shaken(EncoderOnly(encoder_spec)).eval()


@torch.no_grad()
def shaken(model: Model) -> Model:
    """Add noise to the weights: new weights are small or zero, and would hide errors."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


@torch.no_grad()
def generate_greedily(decoder: DecoderOnly, prompt: Tensor, new: int) -> Tensor:
    lengths = torch.full((len(prompt),), prompt.shape[1])
    logits, cache = decoder.start(prompt, lengths, capacity=prompt.shape[1] + new)
    ids = [logits.argmax(-1)]
    while len(ids) < new:
        ids.append(decoder.step(ids[-1], cache).argmax(-1))
    return torch.stack(ids, dim=1)


def padded(sequences: list[Tensor], side: str, length: int) -> tuple[Tensor, Tensor]:
    """Return one batch and its token mask; padding has random ids, which must not matter."""
    tokens = torch.randint(V, (len(sequences), length))
    token_mask = torch.zeros_like(tokens, dtype=torch.bool)
    for row, sequence in enumerate(sequences):
        if side == "scattered":
            place = torch.randperm(length)[: len(sequence)].sort().values
        else:
            place = torch.arange(len(sequence)) + (length - len(sequence) if side == "left" else 0)
        tokens[row, place] = sequence
        token_mask[row, place] = True
    return tokens, token_mask
