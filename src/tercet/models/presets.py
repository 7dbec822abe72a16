"""Known architectures by name. A preset is a whole spec, at a small size; a recipe lays its own keys over it."""

from collections.abc import Mapping
from typing import Any

from tercet.config import UserError, merge, nearest, parse, plain
from tercet.models.specs import DecoderOnlySpec, StackSpec
from tercet.nn.init import Xavier, ZeroProjections
from tercet.nn.positions import Rotary, Sinusoidal

PRESETS: dict[str, DecoderOnlySpec] = {
    # Radford et al. (2019): the 124M model.
    "gpt2": DecoderOnlySpec(
        vocab_size=50_257,
        max_len=1024,
        stack=StackSpec(d_model=768, n_layers=12, n_heads=12, activation="gelu_tanh"),
    ),
    # Touvron et al. (2023), at the size of the 2017 base model.
    "llama": DecoderOnlySpec(
        vocab_size=32_000,
        max_len=2048,
        tie_embeddings=False,
        stack=StackSpec(
            d_model=512,
            n_layers=8,
            n_heads=8,
            d_ff=1408,
            position=Rotary(),
            norm="rms",
            norm_bias=False,
            bias=False,
            activation="silu",
            gated=True,
        ),
    ),
    # Vaswani et al. (2017): the decoder without cross-attention.
    "original-decoder": DecoderOnlySpec(
        vocab_size=37_000,
        max_len=512,
        scale_embedding=True,
        init=Xavier(),
        stack=StackSpec(d_model=512, n_layers=6, n_heads=8, position=Sinusoidal(), placement="post", activation="relu"),
    ),
    # Ours: what the record runs on small models showed to carry over. docs/log.md has each ingredient's worth.
    "modern": DecoderOnlySpec(
        vocab_size=8_192,
        max_len=512,
        tie_embeddings=False,
        embedding_norm=True,
        logit_softcap=15.0,
        init=ZeroProjections(),
        stack=StackSpec(
            d_model=384,
            n_layers=6,
            n_heads=6,
            position=Rotary(),
            norm="rms",
            norm_bias=False,
            bias=False,
            activation="relu_squared",
            qk_norm=True,
        ),
    ),
}


def model_spec(data: Mapping[str, Any], *, name: str = "model") -> DecoderOnlySpec:
    """A spec from a recipe's mapping: `preset` names where to start from, the other keys are laid over it.

    Raises:
        UserError: for an unknown preset or key, with the nearest known one.
    """
    changes = dict(data)
    preset = changes.pop("preset", "modern")
    if preset not in PRESETS:
        raise UserError(f"{name}.preset: unknown preset {preset!r}{nearest(str(preset), PRESETS)}")
    return parse(DecoderOnlySpec, merge(plain(PRESETS[preset]), changes), name=name)
