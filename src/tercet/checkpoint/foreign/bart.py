"""Import and export of BART (Lewis et al. 2020) and mBART (Liu et al. 2020) models of the `transformers` library.

They are translators with learned positions and a norm of the embeddings. The norms of a block are after each sublayer
in BART, and before it in mBART, whose stacks therefore end with a norm. Positions are counted from the third row of
their table.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from torch import Tensor

from tercet.checkpoint.foreign.config_keys import (
    check_settings,
    raise_config_errors,
    read_bool,
    read_model_type,
    read_value,
    with_ids,
)
from tercet.checkpoint.foreign.fairseq import (
    BIAS,
    EMBEDDINGS,
    SHARED_EMBEDDING,
    SIDES,
    block_names,
    config_of_stacks,
    read_stacks,
    translator_names,
)
from tercet.checkpoint.foreign.features import (
    FIXED_POSITIONS,
    Feature,
    Support,
    features_of_heads,
    features_of_stack,
    features_of_vocabulary,
    rewrite_model,
)
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain
from tercet.models import EncoderDecoder, EncoderDecoderSpec
from tercet.nn import Learned
from tercet.nn.specs import Placement

NAMES = {
    "source_embedding": "encoder.embed_tokens",
    "embedding": "decoder.embed_tokens",
    "unembedding": "lm_head",
    **{
        native: foreign
        for side in SIDES
        for native, foreign in {
            f"{side}.position.table": f"{side}.embed_positions",
            f"{side}.embedding_norm": f"{side}.layernorm_embedding",
            f"{side}.final_norm": f"{side}.layer_norm",
            **block_names(f"{side}.blocks.N", f"{side}.layers.N"),
        }.items()
    },
}
UNUSED_POSITIONS = 2  # rows of a table before that of the first position
NORM_EPS = 1e-5
REQUIRED_SETTINGS = {"is_decoder": False}


@dataclass(frozen=True)
class BartFamily:
    """Differences between the model types: the prefix of the classes in `transformers`, and the placement of norms."""

    kind: str
    placement: Placement


FAMILIES = {"bart": BartFamily("Bart", "post"), "mbart": BartFamily("MBart", "pre")}


def from_bart(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderDecoder:
    """Build the equivalent of a (M)BartForConditionalGeneration, or of a (M)BartModel with tied output, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    kind = FAMILIES[read_model_type(config, *FAMILIES)].kind
    tensors, shared = translator_names(config, state, kind)
    spec = bart_spec(config, state, n_ids=n_ids)
    tied = ("lm_head.weight", SHARED_EMBEDDING if shared else EMBEDDINGS[1])
    return build_model(EncoderDecoder, spec, tensors, partial(bart_source, shared=shared), kind=kind, tied=tied)


def bart_spec(
    config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None
) -> EncoderDecoderSpec:
    """Return the spec of the model that `from_bart` would build. Only the embeddings are read from the tensors.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    family = FAMILIES[read_model_type(config, *FAMILIES)]
    tensors, shared = translator_names(config, state, family.kind)
    with raise_config_errors(family.kind):
        return with_ids(_spec(config, family, shared=shared, logit_bias=BIAS in tensors), n_ids)


def is_bart(spec: EncoderDecoderSpec) -> bool:
    """Return whether a translator has the embeddings of a BART."""
    return spec.embedding_norm


def bart_support(spec: EncoderDecoderSpec) -> Support:
    """Return the features of a model with the values that `to_bart` supports."""
    family = FAMILIES[_nearest(spec)]
    return Support(f"{family.kind} of transformers", _features(spec, family.placement))


def _nearest(spec: EncoderDecoderSpec) -> str:
    return "bart" if spec.decoder.placement == "post" else "mbart"


def to_bart(model: EncoderDecoder) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of a (M)BartForConditionalGeneration; the inverse of `from_bart`.

    Both sides share one embedding if and only if the output is tied to it as well. Otherwise a shared embedding is
    written once per side.

    Raises:
        UserError: If BART does not support a feature of the model; the feature is named.
    """
    spec, model_type = model.spec, _nearest(model.spec)
    bart_support(spec).check()
    shared = spec.share_embeddings and spec.tie_embeddings
    sides = {
        side: replace(getattr(spec, side), position=Learned(), bias=True, norm_bias=True, final_norm=None)
        for side in SIDES
    }
    equivalent = rewrite_model(model, replace(spec, pad_vocab_to=1, logit_bias=True, share_embeddings=shared, **sides))
    state = export_state(
        own_tensors(equivalent), partial(bart_source, shared=shared), prefix="model.", unprefixed=("lm_head.", BIAS)
    )
    state[BIAS] = state[BIAS][None]
    if not shared:  # the classes also have a shared embedding, which no forward pass reads
        state[f"model.{SHARED_EMBEDDING}"] = state[f"model.{EMBEDDINGS[1]}"].clone()
    config = {
        "architectures": [f"{FAMILIES[model_type].kind}ForConditionalGeneration"],
        "model_type": model_type,
        "vocab_size": spec.vocab_size,
        **config_of_stacks(equivalent.spec),
    }
    return config, state


def _features(spec: EncoderDecoderSpec, placement: Placement) -> list[Feature]:
    features: list[Feature] = []
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        features += [
            *features_of_stack(side, stack, placement=placement, positions=FIXED_POSITIONS, gated=False),
            *features_of_heads(side, stack),
            (f"{side}.norm_eps", stack.norm_eps, [NORM_EPS]),
        ]
    return [
        *features,
        *features_of_vocabulary(spec, embedding_norm=True, tied=False),
        ("source_vocab_size", spec.source_vocab_size, [None]),
        ("share_embeddings", spec.share_embeddings, [True] if spec.tie_embeddings else [False, True]),
        ("decoder.activation", spec.decoder.activation, [spec.encoder.activation]),
    ]


def _spec(config: Mapping[str, Any], family: BartFamily, *, shared: bool, logit_bias: bool) -> EncoderDecoderSpec:
    check_settings(config, REQUIRED_SETTINGS, family.kind)
    encoder, decoder = read_stacks(config, position=Learned(), placement=family.placement)
    return EncoderDecoderSpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "max_position_embeddings", int),
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        share_embeddings=shared,
        scale_embedding=read_bool(config, "scale_embedding", False),
        embedding_norm=True,
        logit_bias=logit_bias,
        encoder=encoder,
        decoder=decoder,
    )


def bart_source(native_name: str, shared: bool) -> Source:
    """Return the tensor of a BART in `transformers` that corresponds to the tensor `native_name` of Tercet.

    If `shared` is True, both sides have the same embedding.
    """
    if shared and native_name in ("source_embedding.weight", "embedding.weight"):
        return Source(name=SHARED_EMBEDDING)
    name = BIAS if native_name == "unembedding.bias" else foreign_name(native_name, NAMES)
    return Source(name=name, skipped_rows=UNUSED_POSITIONS if native_name.endswith("position.table.weight") else 0)
