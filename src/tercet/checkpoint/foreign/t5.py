"""Import and export of T5 and related models of the `transformers` library.

They are encoder-decoder models that add a learned bias to attention scores, by bucket of distances:

    T5        Raffel et al. (2020); ReLU, one matrix for all embeddings and the logits, logits divided by sqrt(D)
    T5 1.1    Shazeer (2020), FLAN-T5 (Chung et al. 2022); a gated GELU, and a separate matrix for the logits
    mT5       Xue et al. (2021); as T5 1.1
    umT5      Chung et al. (2023); each layer has its own bias

With heads of width K, T5 does not divide attention scores by sqrt(K); the initialization of its queries compensates
for this. Therefore Tercet's query weights are those of T5 times sqrt(K). This is exact if K is a power of four, since
sqrt(K) is then a power of two. If the embedding E is tied and the logits are divided by sqrt(D), Tercet's embedding is
E / sqrt(D) with `scale_embedding`: then the input is E, and the logits are divided.

A norm of the embeddings becomes a table of normalized embeddings for each side, and a separate matrix for the logits.
Sides with separate embeddings have a table each, too. Version 5 of `transformers` reads two tables if both are in the
file; earlier versions keep only one of them. Version 5 also divides the logits of every umT5, so a separate matrix of
the logits is multiplied by sqrt(D).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tercet.checkpoint.foreign.config_keys import (
    ACTIVATION_NAMES,
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
    features_of_stack,
    features_of_vocabulary,
    fold_embedding_norm,
    rewrite_model,
)
from tercet.checkpoint.foreign.state_dict import (
    Source,
    build_model,
    export_state,
    foreign_name,
    merge_tied,
    strip_names,
)
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.models import Dropout, EncoderDecoder, EncoderDecoderSpec, StackSpec
from tercet.nn import RelativeBias
from tercet.nn.specs import Activation

SIDES = ("encoder", "decoder")
# Names of the feed-forward network, which follows self-attention, or cross-attention in a decoder.
NETWORKS = {"encoder": "layer.1", "decoder": "layer.2"}
NAMES = {
    "source_embedding": "shared",
    "embedding": "shared",
    "unembedding": "lm_head",
    "decoder.blocks.N.cross_residual.before": "decoder.block.N.layer.1.layer_norm",
    **{
        f"{side}.blocks.N.{kind}_attention.{native}": f"{side}.block.N.{foreign}.{letter}"
        for side in SIDES
        for kind, foreign in (("self", "layer.0.SelfAttention"), ("cross", "layer.1.EncDecAttention"))
        for native, letter in (("query", "q"), ("key", "k"), ("value", "v"), ("out", "o"))
    },
    **{
        native.format(side=side): foreign.format(side=side, network=network)
        for side, network in NETWORKS.items()
        for native, foreign in {
            "{side}.position.tables.N": "{side}.block.N.layer.0.SelfAttention.relative_attention_bias",
            "{side}.blocks.N.self_residual.before": "{side}.block.N.layer.0.layer_norm",
            "{side}.blocks.N.feedforward_residual.before": "{side}.block.N.{network}.layer_norm",
            "{side}.blocks.N.feedforward.gate": "{side}.block.N.{network}.DenseReluDense.wi_0",
            "{side}.blocks.N.feedforward.up": "{side}.block.N.{network}.DenseReluDense.wi",
            "{side}.blocks.N.feedforward.down": "{side}.block.N.{network}.DenseReluDense.wo",
            "{side}.final_norm": "{side}.final_layer_norm",
        }.items()
    },
}
SHARED_EMBEDDING, OUTPUT = "shared.weight", "lm_head.weight"
EMBEDDINGS = {side: f"{side}.embed_tokens.weight" for side in SIDES}
TABLES = {"source_embedding.weight": EMBEDDINGS["encoder"], "embedding.weight": EMBEDDINGS["decoder"]}
UNUSED_BIAS = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"  # of old files; it has no effect
CONTEXT = 512  # default length in training; the model itself has no limit


@dataclass(frozen=True, kw_only=True)
class T5Family:
    """Differences between the model types.

    Attributes:
        kind: Name, which is the prefix of the class in `transformers`.
        feed_forward: Default of `feed_forward_proj`, the type of the feed-forward network.
        divides_logits: If True, logits are divided by sqrt(D) if `scale_decoder_outputs` is true (default: the value of
            `tie_word_embeddings`).
        per_layer: If True, each layer has its own bias; otherwise all layers share one.
    """

    kind: str
    feed_forward: str = "gated-gelu"
    divides_logits: bool = True
    per_layer: bool = False


FAMILIES = {
    "t5": T5Family(kind="T5", feed_forward="relu"),
    "mt5": T5Family(kind="MT5", divides_logits=False),
    "umt5": T5Family(kind="UMT5", per_layer=True),
}


def from_t5(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderDecoder:
    """Build the equivalent of a T5ForConditionalGeneration, T5Model with tied output or related class, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    family = FAMILIES[read_model_type(config, *FAMILIES)]
    tensors = _foreign_tensors(state, family.kind)
    spec = t5_spec(config, state, n_ids=n_ids)
    source = partial(t5_source, spec=spec, divide_logits=_divides(config, family))
    return build_model(EncoderDecoder, spec, tensors, source, kind=family.kind, tied=(OUTPUT, SHARED_EMBEDDING))


def t5_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderDecoderSpec:
    """Return the spec of the model that `from_t5` would build. Only the embeddings are read from the tensors.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    family = FAMILIES[read_model_type(config, *FAMILIES)]
    tensors = _foreign_tensors(state, family.kind)
    tied = OUTPUT not in tensors or (
        SHARED_EMBEDDING in tensors and torch.equal(tensors[OUTPUT], tensors[SHARED_EMBEDDING])
    )
    shared = not tensors.keys() >= {*EMBEDDINGS.values()}
    with raise_config_errors(family.kind):
        return with_ids(_spec(config, family, tied=tied and shared, shared=shared), n_ids)


def is_t5(spec: EncoderDecoderSpec) -> bool:
    """Return whether a translator has the position scheme of T5."""
    return isinstance(spec.encoder.position, RelativeBias)


def t5_support(spec: EncoderDecoderSpec) -> Support:
    """Return the features of a model with the values that `to_t5` supports."""
    position = _position(spec)
    return Support(f"{FAMILIES[_model_type(position)].kind} of transformers", _features(spec, position))


def _position(spec: EncoderDecoderSpec) -> RelativeBias:
    position = spec.encoder.position
    return position if isinstance(position, RelativeBias) else RelativeBias()


def _model_type(position: RelativeBias) -> str:
    return "umt5" if position.per_layer else "t5"


def to_t5(model: EncoderDecoder) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of a T5ForConditionalGeneration or UMT5...; the inverse of `from_t5`.

    A model with a tied and scaled embedding is written as an original T5. Otherwise the logits get a separate matrix,
    as in T5 1.1. Separate embeddings, or a norm of the embeddings, become a table for each side.

    Raises:
        UserError: If T5 does not support a feature of the model; the feature is named.
    """
    spec = model.spec
    t5_support(spec).check()
    folded, position = fold_embedding_norm(spec), _position(spec)
    tied = _ties_logits(spec)
    equivalent = rewrite_model(model, replace(folded, pad_vocab_to=1, tie_embeddings=tied, scale_embedding=tied))
    divide_logits = divides_logits(spec)
    source = partial(t5_source, spec=equivalent.spec, divide_logits=divide_logits)
    config = _config(equivalent.spec, _model_type(position), position, divide_logits=divide_logits)
    return config, export_state(own_tensors(equivalent), source, prefix="", unprefixed=())


def divides_logits(spec: EncoderDecoderSpec) -> bool:
    """Return whether the T5 in `transformers` that corresponds to a model divides logits by sqrt(D)."""
    return _ties_logits(spec) or _position(spec).per_layer


def _ties_logits(spec: EncoderDecoderSpec) -> bool:
    """Return whether one matrix, in `transformers` too, is the embedding of both sides and computes the logits."""
    folded = fold_embedding_norm(spec)
    return folded.share_embeddings and folded.tie_embeddings and folded.scale_embedding


def t5_source(native_name: str, spec: EncoderDecoderSpec, divide_logits: bool) -> Source:
    """Return the tensor of a T5 in `transformers` that corresponds to the tensor `native_name` of Tercet.

    Args:
        native_name: Name of the tensor in Tercet.
        spec: Spec of the model in Tercet.
        divide_logits: If True, the T5 divides logits by sqrt(D).
    """
    separate = {} if spec.share_embeddings else TABLES
    name = separate.get(native_name) or foreign_name(native_name, NAMES)
    if native_name.endswith(".up.weight") and spec.encoder.gated:
        name = name.replace(".wi.", ".wi_1.")
    scores_tokens = "embedding" in native_name and (spec.tie_embeddings or native_name.startswith("unembedding"))
    if native_name.endswith(".query.weight"):
        return Source(name=name, scale=math.sqrt(spec.encoder.head_width))
    return Source(name=name, scale=spec.encoder.d_model**-0.5 if divide_logits and scores_tokens else 1.0)


def _features(spec: EncoderDecoderSpec, position: RelativeBias) -> list[Feature]:
    features: list[Feature] = []
    encoder, decoder = spec.encoder, spec.decoder
    for side, stack in (("encoder", encoder), ("decoder", decoder)):
        biases = stack.biases
        features += [
            *features_of_stack(
                side, stack, placement="pre", positions=["relative_bias"], norm="rms", gated=encoder.gated
            ),
            *((f"{side}.bias.{kind}", has, [False]) for kind, has in vars(biases).items()),
            (f"{side}.n_kv_heads", stack.kv_heads, [stack.n_heads]),
        ]
    shared_keys = ("n_heads", "head_width", "inner_width", "activation", "norm_eps")
    features += [(f"decoder.{key}", getattr(decoder, key), [getattr(encoder, key)]) for key in shared_keys]
    if isinstance(decoder.position, RelativeBias):
        features += [
            (f"decoder.position.{key}", value, [getattr(position, key)])
            for key, value in vars(decoder.position).items()
        ]
    if encoder.gated:  # in T5, "gated-gelu" is the tanh approximation of GELU
        features.append(("encoder.activation", encoder.activation, [a for a in ACTIVATION_NAMES if a != "gelu"]))
    features += features_of_vocabulary(spec, embedding_norm=spec.embedding_norm, tied=False)
    return [
        *features,
        ("source_vocab_size", spec.source_vocab_size, [None]),
        ("logit_bias", spec.logit_bias, [False]),
    ]


def _config(spec: EncoderDecoderSpec, model_type: str, position: RelativeBias, *, divide_logits: bool) -> Plain:
    stack = spec.encoder
    return {
        "architectures": [f"{FAMILIES[model_type].kind}ForConditionalGeneration"],
        "model_type": model_type,
        "is_encoder_decoder": True,
        "vocab_size": spec.vocab_size,
        "n_positions": spec.max_len,
        "d_model": stack.d_model,
        "d_kv": stack.head_width,
        "d_ff": stack.inner_width,
        "num_layers": stack.n_layers,
        "num_decoder_layers": spec.decoder.n_layers,
        "num_heads": stack.n_heads,
        "relative_attention_num_buckets": position.n_buckets,
        "relative_attention_max_distance": position.max_distance,
        "feed_forward_proj": _write_network(stack.activation, gated=stack.gated),
        "layer_norm_epsilon": stack.norm_eps,
        "dropout_rate": stack.dropout.branches.feedforward,
        "tie_word_embeddings": spec.tie_embeddings,
        "scale_decoder_outputs": divide_logits,
    }


def _spec(config: Mapping[str, Any], family: T5Family, *, tied: bool, shared: bool) -> EncoderDecoderSpec:
    rate = read_value(config, "dropout_rate", float, 0.1)
    network = read_value(config, "feed_forward_proj", str, family.feed_forward)
    activation, gated = _read_network(network)
    network_settings = {key: config[key] for key in ("dense_act_fn", "is_gated_act") if config.get(key) is not None}
    if network_settings.get("is_gated_act", gated) is not gated or (
        "dense_act_fn" in network_settings and read_activation(network_settings, "dense_act_fn") != activation
    ):
        raise UserError(
            f"feed_forward_proj is {network!r}, which contradicts {network_settings}; put back the trained settings"
        )
    n_layers = read_value(config, "num_layers", int)
    encoder = StackSpec(
        d_model=read_value(config, "d_model", int),
        n_layers=n_layers,
        n_heads=read_value(config, "num_heads", int),
        d_head=read_value(config, "d_kv", int),
        d_ff=read_value(config, "d_ff", int),
        position=RelativeBias(
            n_buckets=read_value(config, "relative_attention_num_buckets", int, 32),
            max_distance=read_value(config, "relative_attention_max_distance", int, 128),
            per_layer=family.per_layer,
        ),
        norm="rms",
        norm_eps=read_value(config, "layer_norm_epsilon", float, 1e-6),
        norm_bias=False,
        activation=activation,
        gated=gated,
        bias=False,
        dropout=Dropout(embedding=rate, attention=rate, activation=rate, residual=rate),
    )
    return EncoderDecoderSpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "n_positions", int, CONTEXT),
        share_embeddings=shared,
        tie_embeddings=tied,
        scale_embedding=tied and _divides(config, family),
        encoder=encoder,
        decoder=replace(encoder, n_layers=read_value(config, "num_decoder_layers", int, n_layers)),
    )


def _divides(config: Mapping[str, Any], family: T5Family) -> bool:
    """Return whether logits are divided by sqrt(D). An older config does so if it ties the embeddings."""
    return family.divides_logits and read_bool(
        config, "scale_decoder_outputs", read_bool(config, "tie_word_embeddings", True)
    )


def _read_network(name: str) -> tuple[Activation, bool]:
    """Return the activation of a `feed_forward_proj`, and whether the network is gated."""
    plain = "gelu_new" if name == "gated-gelu" else name.removeprefix("gated-")
    return read_activation({"feed_forward_proj": plain}, "feed_forward_proj"), name.startswith("gated-")


def _write_network(activation: Activation, *, gated: bool) -> str:
    name = "gelu" if gated and activation == "gelu_tanh" else ACTIVATION_NAMES[activation]
    return f"gated-{name}" if gated else name


def _foreign_tensors(state: Mapping[str, Tensor], kind: str) -> dict[str, Tensor]:
    """Return the tensors, in which an embedding of both sides only has the name `SHARED_EMBEDDING`."""
    tensors = strip_names(state, prefix="", no_weight=lambda name: name == UNUSED_BIAS)
    tables = [tensors[name] for name in EMBEDDINGS.values() if name in tensors]
    if len(tables) == 2 and not torch.equal(*tables):
        tensors.pop(SHARED_EMBEDDING, None)  # unused
        return tensors
    for name in EMBEDDINGS.values():
        merge_tied(tensors, name, SHARED_EMBEDDING, kind)
    return tensors
