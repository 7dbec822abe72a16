"""Known architectures by name. A preset is a whole spec, at a small size; a recipe lays its own keys over it."""

from collections.abc import Mapping
from typing import Any

from tercet.config import UserError, merge, parse, suggest, to_plain
from tercet.messages import show
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
from tercet.nn.specs import Rotary, Sinusoidal, Xavier, ZeroProjections


def _original(*, d_model: int, n_layers: int, n_heads: int, d_ff: int, dropout: float) -> EncoderDecoderSpec:
    """Vaswani et al. (2017), section 3, at the sizes given; dropout where they have it (5.4)."""
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
    """Devlin et al. (2019), heads of 64; next sentences, which Liu et al. (2019, RoBERTa) do without, if wanted."""
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
    position=Rotary(),
    norm="rms",
    norm_bias=False,
    bias=False,
    activation="silu",
    gated=True,
    qk_norm=True,
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
    # Ours: what the record runs on small models showed to carry over. Each ingredient's worth is in
    # benchmarks/log/language-models.md.
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
    # Vaswani et al. (2017), table 3: base and big.
    "transformer-base": _original(d_model=512, n_layers=6, n_heads=8, d_ff=2048, dropout=0.1),
    "transformer-big": _original(d_model=1024, n_layers=6, n_heads=16, d_ff=4096, dropout=0.3),
    # Wu et al. (2021): what some 30,000 pairs can feed.
    "transformer-tiny": _original(d_model=128, n_layers=4, n_heads=4, d_ff=256, dropout=0.3),
    # Ours: today's parts in the same places.
    "modern-translator": EncoderDecoderSpec(
        vocab_size=8_000, max_len=256, embedding_norm=True, encoder=_MODERN_TRANSLATOR, decoder=_MODERN_TRANSLATOR
    ),
    # Devlin et al. (2019): base; Turc et al. (2019): the small ones.
    "bert-base": _bert(d_model=768, n_layers=12),
    "bert-small": _bert(d_model=512, n_layers=4),
    "bert-mini": _bert(d_model=256, n_layers=4),
    "bert-tiny": _bert(d_model=128, n_layers=2),
    # All that the published weights of BERT have, pooler and next sentences too.
    "bert-original": _bert(d_model=128, n_layers=2, all_heads=True),
    # Geiping and Goldstein (2022). They divide positions by sqrt(d_model) where we multiply tokens by it, which is the
    # same under the norm that follows. Their norms have biases.
    "cramming": EncoderOnlySpec(
        vocab_size=32_768,
        max_len=128,
        scale_embedding=True,
        embedding_norm=True,
        stack=StackSpec(
            d_model=768,
            n_layers=16,
            n_heads=12,
            d_ff=1536,  # their 3072, split in two by the gate
            position=Sinusoidal(),
            norm_eps=1e-12,
            norm_bias=False,
            bias=False,
            gated=True,
        ),
    ),
    # Ours: what Warner et al. (2024, ModernBERT) showed, at the size of "modern". d_ff is 8/3 d_model: as many numbers
    # in three matrices as 4 d_model has in two.
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
            norm_bias=False,
            bias=False,
            gated=True,
        ),
    ),
}

# Where a family starts from if no preset is named, as in the recipe that a run writes down.
DEFAULT_PRESETS = {"decoder-only": "modern", "encoder-decoder": "modern-translator", "encoder-only": "modern-encoder"}


def model_spec(data: Mapping[str, Any], *, name: str = "model") -> AnySpec:
    """A spec from a recipe's mapping: `preset` names where to start from, the other keys are laid over it.

    Raises:
        UserError: for an unknown preset or key, with the nearest known one.
    """
    changes = dict(data)
    family = changes.get("family")
    preset = changes.pop("preset", DEFAULT_PRESETS.get(family, "modern") if isinstance(family, str) else "modern")
    if not isinstance(preset, str) or preset not in PRESETS:
        raise UserError(f"{name}.preset: unknown preset {show(preset)}{suggest(preset, PRESETS)}")
    base = to_plain(PRESETS[preset])
    return parse(SPECS[base["family"]], merge(base, changes), name=name)
