"""Small models of every kind, with odd sizes, and weights large enough for every part to matter."""

from dataclasses import replace
from itertools import product
from typing import Any

import torch
from torch import Tensor

from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.nn import ALiBi, Learned, NoPosition, Rotary, Sinusoidal

V, MAX_LEN = 17, 13
POSITIONS = (Learned(), Sinusoidal(), Rotary(), ALiBi(), NoPosition())
GROUPS = {"MHA": 4, "GQA": 2, "MQA": 1}
PLACEMENTS = ("pre", "post", "sandwich", "branch")
STACK = StackSpec(d_model=24, n_layers=2, n_heads=4, d_ff=31)


def model(*, spec: dict[str, Any] | None = None, **stack: Any) -> DecoderOnly:
    made = DecoderOnly(DecoderOnlySpec(vocab_size=V, max_len=MAX_LEN, stack=replace(STACK, **stack), **(spec or {})))
    return shaken(made).eval()


@torch.no_grad()
def shaken(model: DecoderOnly) -> DecoderOnly:
    """Fresh weights are small or zero, and would hide a fault: these let every part speak."""
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


@torch.no_grad()
def generate_greedily(decoder: DecoderOnly, prompt: Tensor, new: int) -> Tensor:
    lengths = torch.full((len(prompt),), prompt.shape[1])
    logits, cache = decoder.start(prompt, lengths, capacity=prompt.shape[1] + new)
    chosen = [logits.argmax(-1)]
    while len(chosen) < new:
        chosen.append(decoder.step(chosen[-1], cache).argmax(-1))
    return torch.stack(chosen, dim=1)


GRID = [
    {"position": position, "n_kv_heads": groups, "placement": placement}
    for position, groups, placement in product(POSITIONS, GROUPS.values(), PLACEMENTS)
]


def name(point: dict[str, Any]) -> str:
    heads = next(heads for heads, groups in GROUPS.items() if groups == point["n_kv_heads"])
    return f"{point['position'].kind}-{heads}-{point['placement']}"
