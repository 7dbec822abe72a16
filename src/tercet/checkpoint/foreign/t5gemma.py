"""Import and export of T5Gemma models (Zhang et al. 2025) of the `transformers` library.

A T5Gemma is an encoder-decoder model with the blocks of Gemma 2: a rotation of queries and keys in self-attention, RMS
norms before and after each sublayer that multiply by 1 + weight, gated feed-forward networks, and embeddings that are
multiplied by sqrt(D). Encoder and decoder have a config and an embedding each; the logits can share the decoder's.

Attention scores are divided by the square root of `query_pre_attn_scalar` instead of the width of a head, so Tercet's
queries are those of T5Gemma times sqrt(width / scalar). A sliding window that is shorter than the maximum length
reduces the maximum length.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any, cast

from torch import Tensor

from tercet.checkpoint.foreign.config_keys import (
    ACTIVATION_NAMES,
    name_in_errors,
    raise_config_errors,
    read_activation,
    read_bool,
    read_model_type,
    read_value,
    with_ids,
)
from tercet.checkpoint.foreign.features import (
    Feature,
    Support,
    feature_of_width,
    features_of_stack,
    fold_embedding_norm,
    gate_squared_relu,
    rewrite_model,
)
from tercet.checkpoint.foreign.rotary_config import read_rotary
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name, strip_names
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.messages import print_note, show
from tercet.models import Biases, Dropout, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import Rotary

KIND, MODEL_TYPE, SIDES = "T5Gemma", "t5gemma", ("encoder", "decoder")
NAMES = {
    "source_embedding": "encoder.embed_tokens",
    "embedding": "decoder.embed_tokens",
    "unembedding": "lm_head.out_proj",
    **{f"{side}.final_norm": f"{side}.norm" for side in SIDES},
    **{
        f"{side}.blocks.N.{native}": f"{side}.layers.N.{foreign}"
        for side in SIDES
        for native, foreign in {
            **{
                f"{kind}_attention.{part}": f"{kind}_attn.{letter}_proj"
                for kind in ("self", "cross")
                for part, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))
            },
            **{
                f"{kind}_residual.{place}": f"{prefix}_{sublayer}_layernorm"
                for kind, sublayer in (("self", "self_attn"), ("cross", "cross_attn"), ("feedforward", "feedforward"))
                for place, prefix in (("before", "pre"), ("branch", "post"))
            },
            **{f"feedforward.{part}": f"mlp.{part}_proj" for part in ("gate", "up", "down")},
        }.items()
    },
}
NORMS = ("before.weight", "branch.weight", "final_norm.weight")  # suffixes of norms, which multiply by 1 + weight
QUERIES = ("query.weight", "query.bias")
# Defaults of transformers.
CONTEXT, WINDOW, SCALAR, SCORE_CAP, LOGIT_CAP = 8192, 4096, 256, 50.0, 30.0
ACTIVATION, HEAD_WIDTH, KV_HEADS, EPS = "gelu_pytorch_tanh", 256, 4, 1e-6


def from_t5gemma(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderDecoder:
    """Build the equivalent of a T5GemmaForConditionalGeneration, or a T5GemmaModel with tied output, in eval mode.

    A note is printed if a sliding window reduces the maximum length.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    spec = t5gemma_spec(config, state, n_ids=n_ids)
    tensors = strip_names(state, prefix="model.", no_weight=lambda name: False)
    source = partial(t5gemma_source, query_scales=query_scales(config, spec))
    tied = ("lm_head.out_proj.weight", "decoder.embed_tokens.weight")
    model = build_model(EncoderDecoder, spec, tensors, source, kind=KIND, tied=tied)
    context = min(_context(_module(config, side)) for side in SIDES)
    if spec.max_len != context:
        print_note(
            f"tercet: max_len is {spec.max_len}, the sliding_window of this {KIND}, instead of {context}: "
            "Tercet does not support sliding-window attention"
        )
    return model


def t5gemma_spec(
    config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None
) -> EncoderDecoderSpec:
    """Return the spec of the model that `from_t5gemma` would build, from the config only; `state` is ignored.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    read_model_type(config, MODEL_TYPE)
    with raise_config_errors(KIND):
        return with_ids(_spec(config), n_ids)


def is_t5gemma(spec: EncoderDecoderSpec) -> bool:
    """Return whether a translator has the position scheme of T5Gemma."""
    return isinstance(spec.encoder.position, Rotary)


def t5gemma_support(spec: EncoderDecoderSpec) -> Support:
    """Return the features of a model with the values that `to_t5gemma` supports."""
    spec = fold_embedding_norm(spec)
    return Support(f"{KIND} of transformers", _features(spec, _gated_sides(spec)))


def _gated_sides(spec: EncoderDecoderSpec) -> dict[str, StackSpec]:
    return {side: gate_squared_relu(getattr(spec, side)) for side in SIDES}


def to_t5gemma(model: EncoderDecoder) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of a T5GemmaForConditionalGeneration; the inverse of `from_t5gemma`.

    A shared embedding is written once per side. The logits only share the decoder's embedding if it is scaled and has
    no norm.

    Raises:
        UserError: If T5Gemma does not support a feature of the model; the feature is named.
    """
    t5gemma_support(model.spec).check()
    spec = fold_embedding_norm(model.spec)
    sides = {side: replace(stack, bias=_write_biases(stack.biases)) for side, stack in _gated_sides(spec).items()}
    tied = spec.tie_embeddings and spec.scale_embedding
    equivalent = rewrite_model(
        model,
        replace(spec, pad_vocab_to=1, share_embeddings=False, tie_embeddings=tied, scale_embedding=True, **sides),
    )
    state = export_state(own_tensors(equivalent), t5gemma_source, prefix="model.", unprefixed=("lm_head.",))
    return _config(equivalent.spec), state


def query_scales(config: Mapping[str, Any], spec: EncoderDecoderSpec) -> dict[str, float]:
    """Return the factor of Tercet's queries on each side: sqrt(width / scalar), or 1 if the folder is not a T5Gemma's.

    Args:
        config: Content of config.json of the folder that the model was read from.
        spec: Spec of the model in Tercet.
    """
    if config.get("model_type") != MODEL_TYPE:
        return {}
    scalars = {side: read_value(_module(config, side), "query_pre_attn_scalar", int, SCALAR) for side in SIDES}
    return {side: math.sqrt(getattr(spec, side).head_width / scalar) for side, scalar in scalars.items()}


def t5gemma_source(native_name: str, query_scales: Mapping[str, float] | None = None) -> Source:
    """Return the tensor of a T5Gemma in `transformers` that corresponds to the tensor `native_name` of Tercet.

    Args:
        native_name: Name of the tensor in Tercet.
        query_scales: Factor of the queries by side (default: 1); see the function `query_scales`.
    """
    scale = (query_scales or {}).get(native_name.partition(".")[0], 1.0) if native_name.endswith(QUERIES) else 1.0
    offset = 1.0 if native_name.endswith(NORMS) else 0.0
    return Source(name=foreign_name(native_name, NAMES), scale=scale, offset=offset)


def _features(spec: EncoderDecoderSpec, sides: Mapping[str, StackSpec]) -> list[Feature]:
    features: list[Feature] = []
    for side, stack in sides.items():
        share = stack.position.share if isinstance(stack.position, Rotary) else 1.0
        features += [
            *features_of_stack(
                side, stack, placement="sandwich", positions=["rotary"], norm="rms", gated=True, softcap=True
            ),
            (f"{side}.position.share", share, [1.0]),
            feature_of_width(side, stack),
            (f"{side}.bias.feedforward", stack.biases.feedforward, [False]),
        ]
    return [*features, ("logit_bias", spec.logit_bias, [False])]


def _write_biases(biases: Biases) -> bool | Biases:
    """Return the biases for export: all linear layers of attention have one if any has."""
    return Biases(qkv=True, out=True, feedforward=False) if biases.qkv or biases.out else False


def _config(spec: EncoderDecoderSpec) -> Plain:
    dropout = spec.decoder.dropout
    source_size = spec.vocab_size if spec.source_vocab_size is None else spec.source_vocab_size
    sizes = {"encoder": source_size, "decoder": spec.vocab_size}
    return {
        "architectures": [f"{KIND}ForConditionalGeneration"],
        "model_type": MODEL_TYPE,
        "is_encoder_decoder": True,
        "vocab_size": spec.vocab_size,
        "tie_word_embeddings": spec.tie_embeddings,
        "dropout_rate": dropout.branches.feedforward,
        "attention_dropout": dropout.attention,
        **{side: _module_config(spec, getattr(spec, side), vocab_size) for side, vocab_size in sizes.items()},
    }


def _module_config(spec: EncoderDecoderSpec, stack: StackSpec, vocab_size: int) -> Plain:
    base = stack.position.base if isinstance(stack.position, Rotary) else Rotary().base
    return {
        "model_type": "t5_gemma_module",
        "vocab_size": vocab_size,
        "max_position_embeddings": spec.max_len,
        "hidden_size": stack.d_model,
        "intermediate_size": stack.inner_width,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "num_key_value_heads": stack.kv_heads,
        "head_dim": stack.head_width,
        "query_pre_attn_scalar": stack.head_width,
        "hidden_activation": ACTIVATION_NAMES[stack.activation],
        "rms_norm_eps": stack.norm_eps,
        "rope_parameters": {"rope_type": "default", "rope_theta": base},
        "attention_bias": stack.biases.qkv,
        "layer_types": ["full_attention"] * stack.n_layers,
        "sliding_window": spec.max_len,  # `transformers` requires a number although no layer has a window
        "attn_logit_softcapping": stack.attention_softcap,
        "final_logit_softcapping": spec.logit_softcap,
        "tie_word_embeddings": spec.tie_embeddings,
    }


def _spec(config: Mapping[str, Any]) -> EncoderDecoderSpec:
    rate = read_value(config, "dropout_rate", float, 0.0)
    attention = read_value(config, "attention_dropout", float, 0.0)
    dropout = Dropout(embedding=rate, attention=attention, activation=rate, residual=rate)
    stacks, lengths, sizes = dict[str, StackSpec](), list[int](), dict[str, int]()
    for side in SIDES:
        module = _module(config, side)
        with name_in_errors(side):
            stacks[side] = replace(_stack(module), dropout=dropout)
            sizes[side] = read_value(module, "vocab_size", int)
            lengths.append(min(_context(module), _window(module)))
    decoder = _module(config, "decoder")
    has_cap = decoder.get("final_logit_softcapping", LOGIT_CAP) is not None
    return EncoderDecoderSpec(
        vocab_size=sizes["decoder"],
        source_vocab_size=None if sizes["encoder"] == sizes["decoder"] else sizes["encoder"],
        max_len=min(lengths),
        share_embeddings=False,
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        scale_embedding=True,
        logit_softcap=read_value(decoder, "final_logit_softcapping", float, LOGIT_CAP) if has_cap else None,
        encoder=stacks["encoder"],
        decoder=stacks["decoder"],
    )


def _stack(module: Mapping[str, Any]) -> StackSpec:
    """Return the stack of one side, without dropout, from the config of this side."""
    has_cap = module.get("attn_logit_softcapping", SCORE_CAP) is not None
    if (scalar := read_value(module, "query_pre_attn_scalar", int, SCALAR)) < 1:
        raise UserError(f"query_pre_attn_scalar is {scalar}, but must be at least 1")
    bias = read_bool(module, "attention_bias", False)
    return StackSpec(
        d_model=read_value(module, "hidden_size", int),
        n_layers=read_value(module, "num_hidden_layers", int),
        n_heads=read_value(module, "num_attention_heads", int),
        n_kv_heads=read_value(module, "num_key_value_heads", int, KV_HEADS),
        d_head=read_value(module, "head_dim", int, HEAD_WIDTH),
        d_ff=read_value(module, "intermediate_size", int),
        position=_read_rotary(module),
        norm="rms",
        norm_eps=read_value(module, "rms_norm_eps", float, EPS),
        norm_bias=False,
        placement="sandwich",
        activation=read_activation({"hidden_activation": ACTIVATION, **module}, "hidden_activation"),
        gated=True,
        bias=bias and Biases(qkv=True, out=True, feedforward=False),
        attention_softcap=read_value(module, "attn_logit_softcapping", float, SCORE_CAP) if has_cap else None,
    )


def _module(config: Mapping[str, Any], side: str) -> Plain:
    """Return the config of one side."""
    module = config.get(side)
    if not isinstance(module, dict):
        raise UserError(f"config.json has {show(module)} as {side}; put back the config of the {side}")
    return cast("Plain", module)


def _context(module: Mapping[str, Any]) -> int:
    return read_value(module, "max_position_embeddings", int, CONTEXT)


def _read_rotary(module: Mapping[str, Any]) -> Rotary:
    position = read_rotary(module, kind=KIND)
    if position.scaling is not None:
        raise UserError(
            f"the rotation of this {KIND} is scaled by {position.scaling.kind!r}, which Tercet does not support"
        )
    return position


def _window(module: Mapping[str, Any]) -> int:
    """Return the sliding window of one side in tokens, or the maximum length if no layer has a window."""
    kinds = module.get("layer_types")  # by default every other layer has a window, beginning with the first
    if isinstance(kinds, list) and "sliding_attention" not in kinds:
        return _context(module)
    return read_value(module, "sliding_window", int, WINDOW)
