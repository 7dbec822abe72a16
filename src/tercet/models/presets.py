"""Known architectures by name.

A preset is a complete spec. The keys of a recipe override it.
"""

from collections.abc import Mapping
from typing import Any

from tercet.config import UserError, merge, parse, suggest, to_plain
from tercet.messages import show
from tercet.models.sizes import size_keys
from tercet.models.specs import (
    SPECS,
    AnySpec,
    DecoderOnlySpec,
    Dropout,
    EncoderDecoderSpec,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.nn.specs import RelativeBias, Rotary, Sinusoidal, Xavier, ZeroProjections


def _original(*, d_model: int, n_layers: int, n_heads: int, d_ff: int, dropout: float) -> EncoderDecoderSpec:
    """Return the model of Vaswani et al. (2017), section 3, with these sizes and dropout at the places of 5.4."""
    stack = StackSpec(
        d_model=d_model,
        n_layers=n_layers,
        n_heads=n_heads,
        d_ff=d_ff,
        position=Sinusoidal(),
        placement="post",
        activation="relu",
        dropout=Dropout(embedding=dropout, residual=dropout),
    )
    return EncoderDecoderSpec(
        vocab_size=37_000, max_len=512, scale_embedding=True, init=Xavier(), encoder=stack, decoder=stack
    )


def _bert(*, d_model: int, n_layers: int, all_heads: bool = False) -> EncoderOnlySpec:
    """Return BERT (Devlin et al. 2019) with attention heads of width 64.

    The pooler and the next-sentence head are included only with `all_heads`, since Liu et al. (2019, RoBERTa) do
    without next-sentence prediction.
    """
    return EncoderOnlySpec(
        vocab_size=30_522,
        max_len=512,
        n_segments=2,
        embedding_norm=True,
        masked_head=MaskedHead(transform=True, bias=True),
        pooler=all_heads,
        next_sentence=all_heads,
        stack=StackSpec(
            d_model=d_model,
            n_layers=n_layers,
            n_heads=d_model // 64,
            norm_eps=1e-12,
            placement="post",
            dropout=Dropout(embedding=0.1, attention=0.1, residual=0.1),
        ),
    )


_MODERN_TRANSLATOR = StackSpec(
    d_model=256,
    n_layers=4,
    n_heads=4,
    d_ff=768,
    position=RelativeBias(per_layer=True, alibi_init=True),
    norm="rms",
    norm_bias=False,
    bias=False,
    activation="silu",
    gated=True,
    dropout=Dropout(embedding=0.1, residual=0.1),
)

PRESETS: dict[str, AnySpec] = {
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
    "transformer-decoder": DecoderOnlySpec(
        vocab_size=37_000,
        max_len=512,
        scale_embedding=True,
        init=Xavier(),
        stack=StackSpec(d_model=512, n_layers=6, n_heads=8, position=Sinusoidal(), placement="post", activation="relu"),
    ),
    # Tercet's own: the architecture of Qwen3 (Yang et al. 2025), so that other programs can run the models, with a norm
    # of the embeddings and another initialization. The effect of each part is measured in
    # benchmarks/log/language-models.md.
    "modern": DecoderOnlySpec(
        vocab_size=8_192,
        max_len=512,
        tie_embeddings=False,
        embedding_norm=True,
        init=ZeroProjections(),
        stack=StackSpec(
            d_model=384,
            n_layers=6,
            n_heads=6,
            position=Rotary(),
            norm="rms",
            norm_eps=1e-6,
            norm_bias=False,
            bias=False,
            activation="silu",
            gated=True,
            qk_norm=True,
        ),
    ),
    # Vaswani et al. (2017), table 3: base and big.
    "transformer-base": _original(d_model=512, n_layers=6, n_heads=8, d_ff=2048, dropout=0.1),
    "transformer-big": _original(d_model=1024, n_layers=6, n_heads=16, d_ff=4096, dropout=0.3),
    # Wu et al. (2021): a size for about 30,000 sentence pairs.
    "transformer-tiny": _original(d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3),
    # Tercet's own: the architecture of umT5 (Chung et al. 2023) with SiLU, so that other programs can run the models,
    # and with a norm of the embeddings. Other forms are compared in benchmarks/log/translation.md.
    "modern-translator": EncoderDecoderSpec(
        vocab_size=8_000, max_len=256, embedding_norm=True, encoder=_MODERN_TRANSLATOR, decoder=_MODERN_TRANSLATOR
    ),
    # Devlin et al. (2019): base; Turc et al. (2019): the small ones.
    "bert-base": _bert(d_model=768, n_layers=12),
    "bert-small": _bert(d_model=512, n_layers=4),
    "bert-mini": _bert(d_model=256, n_layers=4),
    "bert-tiny": _bert(d_model=128, n_layers=2),
    # All parts of BERT's published weights, with pooler and next-sentence head.
    "bert-original": _bert(d_model=128, n_layers=2, all_heads=True),
    # Geiping and Goldstein (2022). They divide positions by sqrt(d_model), while this spec multiplies tokens by it,
    # which is equivalent because a norm follows. Unlike here, their norms have biases.
    "cramming": EncoderOnlySpec(
        vocab_size=32_768,
        max_len=128,
        scale_embedding=True,
        embedding_norm=True,
        stack=StackSpec(
            d_model=768,
            n_layers=16,
            n_heads=12,
            d_ff=1536,  # their 3072, which the gate halves
            position=Sinusoidal(),
            norm_eps=1e-12,
            norm_bias=False,
            bias=False,
            gated=True,
        ),
    ),
    # Tercet's own: the architecture of ModernBERT (Warner et al. 2024) with full attention, at the size of "modern", so
    # that other programs can run the models. d_ff is 8/3 d_model, so that three matrices have as many weights as two
    # with 4 d_model. No dense layer before the unembedding: see benchmarks/log/encoders.md.
    "modern-encoder": EncoderOnlySpec(
        vocab_size=8_192,
        max_len=512,
        embedding_norm=True,
        stack=StackSpec(
            d_model=384,
            n_layers=6,
            n_heads=6,
            d_ff=1024,
            position=Rotary(),
            first_norm=False,
            norm_eps=1e-6,
            norm_bias=False,
            bias=False,
            gated=True,
        ),
    ),
}

# Preset of a family, for a `model` section without the key `preset`, such as in the recipe of a run folder.
DEFAULT_PRESETS = {"decoder-only": "modern", "encoder-decoder": "modern-translator", "encoder-only": "modern-encoder"}


def model_spec(data: Mapping[str, Any], *, name: str = "model") -> AnySpec:
    """Return the spec for the `model` section of a recipe: a preset, with the other keys as overrides.

    Args:
        data: Keys of the section. Without `preset`, the preset of the family is used (default: "modern"). `size`
            replaces the sizes of the preset (see `sizes.py`), and other keys override both.
        name: Name of the section in error messages.

    Raises:
        UserError: If the preset or a key is unknown, or if a value is invalid. For an unknown name, the message
            suggests the nearest known one.
    """
    changes = dict(data)
    family = changes.get("family")
    size = changes.pop("size", None)
    preset = changes.pop("preset", DEFAULT_PRESETS.get(family, "modern") if isinstance(family, str) else "modern")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UserError(f"{name}.preset: unknown preset {show(preset)}{suggest(preset, PRESETS)}")
    base = to_plain(PRESETS[preset])
    if size is not None:
        base = merge(base, size_keys(base, size, name=f"{name}.size"))
    return parse(SPECS[base["family"]], merge(base, changes), name=name)
