"""Every number of a preset is that of its paper or of the model's reference library.

Sizes and losses do not reveal a wrong number: a BERT with another eps trains as well, but it is not BERT. Numbers that
neither the paper nor the library defines are written out here, with their source.
"""

import inspect
from dataclasses import replace
from math import ceil
from typing import Any

import pytest
import transformers
from torch import nn

from tercet.models import PRESETS, DecoderOnlySpec, Dropout, EncoderDecoderSpec, EncoderOnlySpec, StackSpec
from tercet.models.specs import Biases
from tercet.nn.specs import Learned, Normal, RelativeBias, Rotary, Sinusoidal, Xavier

ALL_BIASES = Biases(qkv=True, out=True, feedforward=True)
NO_BIASES = Biases(qkv=False, out=False, feedforward=False)
ACTIVATIONS = {"gelu": "gelu", "gelu_new": "gelu_tanh", "relu": "relu", "silu": "silu"}  # in transformers and here


def numbers(stack: StackSpec) -> dict[str, Any]:
    """Return everything that defines a stack, including derived sizes."""
    properties = ("kv_heads", "head_width", "inner_width", "biases", "has_final_norm")
    fields = {name: value for name, value in vars(stack).items() if value is not None and name != "bias"}
    return {name: value for name, value in fields.items() if name not in ("n_kv_heads", "d_head", "d_ff")} | {
        name: getattr(stack, name) for name in properties
    }


def plain_stack(d_model: int, n_layers: int, n_heads: int, d_ff: int, **options: Any) -> dict[str, Any]:
    """Return the numbers of a stack without the additions of later papers."""
    sizes = {"d_model": d_model, "n_layers": n_layers, "n_heads": n_heads, "kv_heads": n_heads, "inner_width": d_ff}
    rest = {"head_width": d_model // n_heads, "norm": "layer", "norm_bias": True, "gated": False, "parallel": False}
    return {
        **sizes,
        **rest,
        "qk_norm": False,
        "first_norm": True,
        "biases": ALL_BIASES,
        "dropout": Dropout(),
        **options,
    }


def same_stack(stack: StackSpec, expected: dict[str, Any]) -> None:
    final = stack.final_norm  # None: depends on the placement
    assert numbers(replace(stack, final_norm=None)) == expected
    assert final in (None, expected["has_final_norm"])


def test_gpt2_matches_its_reference() -> None:
    """Radford et al. (2019), without their dropout of 0.1, as usual today for large corpora."""
    theirs, spec = transformers.GPT2Config(), PRESETS["gpt2"]
    assert isinstance(spec, DecoderOnlySpec)
    same_stack(
        spec.stack,
        plain_stack(
            theirs.n_embd, theirs.n_layer, theirs.n_head, theirs.n_inner or 4 * theirs.n_embd,
            norm_eps=theirs.layer_norm_epsilon, activation=ACTIVATIONS[theirs.activation_function], placement="pre",
            has_final_norm=True, position=Learned(),
        ),
    )  # fmt: skip
    stack = spec.stack
    assert spec == DecoderOnlySpec(
        vocab_size=theirs.vocab_size, max_len=theirs.n_positions, tie_embeddings=theirs.tie_word_embeddings,
        init=Normal(std=theirs.initializer_range), stack=stack,
    )  # fmt: skip


def test_llama_matches_its_reference() -> None:
    """Touvron et al. (2023), at other sizes. The eps is from Meta's model.py; the library's default is 1e-6."""
    theirs, spec = transformers.LlamaConfig(), PRESETS["llama"]
    assert isinstance(spec, DecoderOnlySpec)
    biases = Biases(qkv=theirs.attention_bias, out=theirs.attention_bias, feedforward=theirs.mlp_bias)
    same_stack(
        spec.stack,
        plain_stack(
            512, 8, 8, 128 * ceil(8 / 3 * 512 / 128),  # 8/3 d_model, rounded up
            norm="rms", norm_eps=1e-5, norm_bias=False, activation=ACTIVATIONS[theirs.hidden_act], gated=True,
            placement="pre", has_final_norm=True, biases=biases, position=Rotary(base=10_000.0),
            dropout=Dropout(attention=theirs.attention_dropout),
        ),
    )  # fmt: skip
    assert biases == NO_BIASES
    assert spec == DecoderOnlySpec(
        vocab_size=theirs.vocab_size, max_len=theirs.max_position_embeddings,
        tie_embeddings=theirs.tie_word_embeddings, init=Normal(std=theirs.initializer_range), stack=spec.stack,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "d_model", "n_layers", "all_heads"),
    [
        ("bert-base", 768, 12, False),  # Devlin et al. (2019), section 3
        ("bert-small", 512, 4, False),  # Turc et al. (2019)
        ("bert-mini", 256, 4, False),
        ("bert-tiny", 128, 2, False),
        ("bert-original", 128, 2, True),
    ],
)
def test_berts_match_their_references(preset: str, d_model: int, n_layers: int, all_heads: bool) -> None:
    theirs, spec = transformers.BertConfig(), PRESETS[preset]
    assert isinstance(spec, EncoderOnlySpec)
    hidden = theirs.hidden_dropout_prob
    same_stack(
        spec.stack,
        plain_stack(
            d_model, n_layers, d_model // 64, 4 * d_model, norm_eps=theirs.layer_norm_eps,
            activation=ACTIVATIONS[theirs.hidden_act], placement="post", has_final_norm=False, position=Learned(),
            dropout=Dropout(embedding=hidden, residual=hidden, attention=theirs.attention_probs_dropout_prob),
        ),
    )  # fmt: skip
    if preset == "bert-base":
        sizes = (theirs.hidden_size, theirs.num_hidden_layers, theirs.num_attention_heads, theirs.intermediate_size)
        assert sizes == (768, 12, 12, 3072)
    assert spec.masked_head is not None
    assert (spec.masked_head.transform, spec.masked_head.bias) == (True, True)
    assert spec == EncoderOnlySpec(
        vocab_size=theirs.vocab_size, max_len=theirs.max_position_embeddings, n_segments=theirs.type_vocab_size,
        tie_embeddings=theirs.tie_word_embeddings, init=Normal(std=theirs.initializer_range), embedding_norm=True,
        masked_head=spec.masked_head, pooler=all_heads, next_sentence=all_heads, stack=spec.stack,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("preset", "d_model", "n_layers", "n_heads", "d_ff", "dropout"),
    [
        ("transformer-base", 512, 6, 8, 2048, 0.1),  # Vaswani et al. (2017), table 3
        ("transformer-big", 1024, 6, 16, 4096, 0.3),
        ("transformer-tiny", 128, 4, 4, 256, 0.3),  # Wu et al. (2021)
        ("transformer-decoder", 512, 6, 8, 2048, 0.0),
    ],
)
def test_transformer_presets_match_the_paper(
    preset: str, d_model: int, n_layers: int, n_heads: int, d_ff: int, dropout: float
) -> None:
    """The paper defines no eps; PyTorch's is used."""
    theirs = {name: parameter.default for name, parameter in inspect.signature(nn.Transformer).parameters.items()}
    expected = plain_stack(
        d_model, n_layers, n_heads, d_ff, norm_eps=theirs["layer_norm_eps"], activation="relu",
        placement="pre" if theirs["norm_first"] else "post", has_final_norm=False, position=Sinusoidal(),
        dropout=Dropout(embedding=dropout, residual=dropout),
    )  # fmt: skip
    spec = PRESETS[preset]
    common: dict[str, Any] = {"vocab_size": 37_000, "max_len": 512, "scale_embedding": True, "init": Xavier()}
    if isinstance(spec, EncoderDecoderSpec):
        same_stack(spec.encoder, expected)
        same_stack(spec.decoder, expected)
        assert spec == EncoderDecoderSpec(**common, encoder=spec.encoder, decoder=spec.decoder)
    else:
        assert isinstance(spec, DecoderOnlySpec)
        same_stack(spec.stack, expected)
        assert spec == DecoderOnlySpec(**common, stack=spec.stack)
    if preset == "transformer-base":
        names = ("d_model", "num_encoder_layers", "nhead", "dim_feedforward", "dropout")
        assert tuple(theirs[name] for name in names) == (d_model, n_layers, n_heads, d_ff, dropout)


def test_cramming_matches_the_paper() -> None:
    """Geiping and Goldstein (2022), except that these norms have no biases."""
    spec = PRESETS["cramming"]
    assert isinstance(spec, EncoderOnlySpec)
    same_stack(
        spec.stack,
        plain_stack(
            768, 16, 12, 3072 // 2, norm_eps=1e-12, norm_bias=False, activation="gelu", gated=True, placement="pre",
            has_final_norm=True, biases=NO_BIASES, position=Sinusoidal(),
        ),
    )  # fmt: skip
    sizes = {"vocab_size": 32_768, "max_len": 128, "scale_embedding": True, "embedding_norm": True}
    assert spec == EncoderOnlySpec(**sizes, masked_head=spec.masked_head, stack=spec.stack)


def test_modern_encoder_has_modernberts_parts() -> None:
    theirs, spec = transformers.ModernBertConfig(), PRESETS["modern-encoder"]
    assert isinstance(spec, EncoderOnlySpec)
    biases = Biases(qkv=theirs.attention_bias, out=theirs.attention_bias, feedforward=theirs.mlp_bias)
    same_stack(
        spec.stack,
        plain_stack(
            384, 6, 6, 8 * 384 // 3, norm_eps=1e-6, first_norm=False, norm_bias=theirs.norm_bias, biases=biases,
            activation=ACTIVATIONS[theirs.hidden_activation], gated=True, placement="pre", has_final_norm=True,
            position=Rotary(), dropout=Dropout(embedding=theirs.embedding_dropout, attention=theirs.attention_dropout),
        ),
    )  # fmt: skip
    assert (spec.embedding_norm, spec.tie_embeddings) == (True, theirs.tie_word_embeddings)


def test_modern_translator_has_umt5s_parts() -> None:
    theirs, spec = transformers.UMT5Config(), PRESETS["modern-translator"]
    assert isinstance(spec, EncoderDecoderSpec)
    positions = RelativeBias(
        n_buckets=theirs.relative_attention_num_buckets,
        max_distance=theirs.relative_attention_max_distance,
        per_layer=True,
        alibi_init=True,
    )
    expected = plain_stack(
        256, 4, 4, 768, norm="rms", norm_eps=1e-5, norm_bias=False, biases=NO_BIASES, activation="silu",
        gated=theirs.is_gated_act, placement="pre", has_final_norm=True, position=positions,
        dropout=Dropout(embedding=theirs.dropout_rate, residual=theirs.dropout_rate),
    )  # fmt: skip
    same_stack(spec.encoder, expected)
    same_stack(spec.decoder, expected)
    assert (spec.embedding_norm, spec.tie_embeddings, spec.scale_embedding) == (True, True, False)


def test_every_preset_with_a_reference_is_tested() -> None:
    presets_with_reference = {"gpt2", "llama", "transformer-decoder", "cramming", "bert-original"}
    presets_with_reference |= {"modern-encoder", "modern-translator"}
    presets_with_reference |= {f"bert-{size}" for size in ("base", "small", "mini", "tiny")}
    presets_with_reference |= {f"transformer-{size}" for size in ("base", "big", "tiny")}
    assert set(PRESETS) - presets_with_reference == {"modern"}, "presets without a paper"
