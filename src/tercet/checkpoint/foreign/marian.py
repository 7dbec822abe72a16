"""Marian as the `transformers` library keeps it: the translator of Vaswani et al. (2017), its numbers in another order.

Junczys-Dowmunt et al., "Marian" (2018); the Opus-MT models are such. Positions stand there as all sines, then all
cosines; ours alternate. Which number stands in which column of the residual stream means nothing to attention, to a
norm or to a product, so every weight that reads the stream or writes to it gets its columns in our order: what comes
out is the same, and no position scheme is added.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from tercet.checkpoint.foreign.config_keys import (
    ACTIVATION_NAMES,
    check_settings,
    raise_config_errors,
    read_activation,
    read_bool,
    read_model_type,
    read_value,
    with_ids,
)
from tercet.checkpoint.foreign.features import (
    Feature,
    check_features,
    features_of_heads,
    features_of_stack,
    features_of_vocabulary,
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
from tercet.nn import Sinusoidal

KIND = "Marian"
SIDES = ("encoder", "decoder")
NAMES = {
    "source_embedding": "encoder.embed_tokens",
    "embedding": "decoder.embed_tokens",
    "unembedding": "lm_head",
    **{
        f"{side}.blocks.N.{ours}": f"{side}.layers.N.{theirs}"
        for side in SIDES
        for ours, theirs in {
            "self_attention.query": "self_attn.q_proj",
            "self_attention.key": "self_attn.k_proj",
            "self_attention.value": "self_attn.v_proj",
            "self_attention.out": "self_attn.out_proj",
            "self_residual.after": "self_attn_layer_norm",
            "cross_attention.query": "encoder_attn.q_proj",
            "cross_attention.key": "encoder_attn.k_proj",
            "cross_attention.value": "encoder_attn.v_proj",
            "cross_attention.out": "encoder_attn.out_proj",
            "cross_residual.after": "encoder_attn_layer_norm",
            "feedforward.up": "fc1",
            "feedforward.down": "fc2",
            "feedforward_residual.after": "final_layer_norm",
        }.items()
    },
}
BIAS = "final_logits_bias"  # (1, V)
SHARED_EMBEDDING, EMBEDDINGS = "shared.weight", tuple(f"{side}.embed_tokens.weight" for side in SIDES)
REQUIRED_SETTINGS = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "is_decoder": False,
}

# Which dimension of a tensor is the stream: what a matrix reads is its last, what it writes its first.
INPUT_WEIGHTS = ("query.weight", "key.weight", "value.weight", "up.weight", "embedding.weight")
OUTPUT_WEIGHTS = ("out.weight", "out.bias", "down.weight", "down.bias", "after.weight", "after.bias")


def from_marian(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderDecoder:
    """The model, in eval mode, of a MarianMTModel, or of a MarianModel whose output is its embedding.

    Args:
        config: what its config.json holds.
        state: its tensors by name.
        n_ids: how many ids the tokenizer has, where the embedding may have more rows.

    Raises:
        UserError: where the two do not belong together, or ask for what Tercet does not have.
    """
    tensors, shared = _foreign_names(config, state)
    tables = {side: tensors.pop(f"{side}.embed_positions.weight", None) for side in SIDES}
    if BIAS in tensors and tensors[BIAS].ndim == 2 and len(tensors[BIAS]) == 1:
        tensors[BIAS] = tensors[BIAS][0]
    spec = marian_spec(config, state, n_ids=n_ids)
    tied = ("lm_head.weight", SHARED_EMBEDDING if shared else EMBEDDINGS[1])
    model = build_model(EncoderDecoder, spec, tensors, partial(marian_source, shared=shared), kind=KIND, tied=tied)
    order = interleave_columns(model.spec.encoder.d_model)
    for side, table in tables.items():
        _check_positions(model, side, table, order)
    _reorder(model, order)
    return model


def marian_spec(
    config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None
) -> EncoderDecoderSpec:
    """The spec of what `from_marian` reads; no tensor but the embeddings is looked into. Raises as it does."""
    tensors, shared = _foreign_names(config, state)
    with raise_config_errors(KIND):
        return with_ids(_spec(config, shared=shared, logit_bias=BIAS in tensors), n_ids)


def to_marian(model: EncoderDecoder) -> tuple[Plain, dict[str, Tensor]]:
    """The inverse of `from_marian`: config and tensors of a MarianMTModel.

    Both sides share one embedding there only if it scores the tokens as well; else it is written once for each side.

    Raises:
        UserError: naming what the model has and no Marian does.
    """
    spec = model.spec
    check_features(f"{KIND} of transformers", _features(spec))
    shared = spec.share_embeddings and spec.tie_embeddings
    sides = {side: replace(getattr(spec, side), bias=True, norm_bias=True) for side in SIDES}
    equivalent = rewrite_model(model, replace(spec, pad_vocab_to=1, logit_bias=True, share_embeddings=shared, **sides))
    inverse_order = interleave_columns(spec.encoder.d_model).argsort()
    tensors = {name: _reorder_tensor(name, tensor, inverse_order) for name, tensor in own_tensors(equivalent).items()}
    state = export_state(tensors, partial(marian_source, shared=shared), prefix="model.", unprefixed=("lm_head.", BIAS))
    state[BIAS] = state[BIAS][None]
    return _config(equivalent.spec), state


def _features(spec: EncoderDecoderSpec) -> list[Feature]:
    features: list[Feature] = []
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        base = stack.position.base if isinstance(stack.position, Sinusoidal) else 10_000.0
        features += [
            *features_of_stack(side, stack, placement="post", positions=["sinusoidal"], gated=False),
            *features_of_heads(side, stack),
            (f"{side}.position.base", base, [10_000.0]),
            (f"{side}.norm_eps", stack.norm_eps, [1e-5]),
        ]
    features += features_of_vocabulary(spec, embedding_norm=False, tied=False)
    return [*features, ("decoder.activation", spec.decoder.activation, [spec.encoder.activation])]


def _config(spec: EncoderDecoderSpec) -> Plain:
    dropout = spec.decoder.dropout
    config: Plain = {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "is_encoder_decoder": True,
        "vocab_size": spec.vocab_size if spec.source_vocab_size is None else spec.source_vocab_size,
        "decoder_vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "d_model": spec.decoder.d_model,
        "activation_function": ACTIVATION_NAMES[spec.decoder.activation],
        "dropout": dropout.branches.feedforward,
        "attention_dropout": dropout.attention,
        "activation_dropout": dropout.activation,
        "scale_embedding": spec.scale_embedding,
        "share_encoder_decoder_embeddings": spec.share_embeddings,
        "tie_word_embeddings": spec.tie_embeddings,
        **REQUIRED_SETTINGS,
    }
    for side, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        config |= {
            f"{side}_layers": stack.n_layers,
            f"{side}_attention_heads": stack.n_heads,
            f"{side}_ffn_dim": stack.inner_width,
        }
    return config


def interleave_columns(width: int) -> Int[Tensor, " D"]:
    """For each column of ours the one of theirs: sine 0, cosine 0, sine 1, ... of all sines, then all cosines."""
    return torch.arange(width).view(2, -1).T.flatten()


def _spec(config: Mapping[str, Any], *, shared: bool, logit_bias: bool) -> EncoderDecoderSpec:
    read_model_type(config, "marian")
    check_settings(config, REQUIRED_SETTINGS, KIND)
    source_size = read_value(config, "vocab_size", int)
    is_joint = read_bool(config, "share_encoder_decoder_embeddings", True)
    target_size = source_size if is_joint else read_value(config, "decoder_vocab_size", int, source_size)
    rate = read_value(config, "dropout", float)
    attention = read_value(config, "attention_dropout", float, 0.0)
    activation_rate = read_value(config, "activation_dropout", float, 0.0)
    encoder, decoder = (
        StackSpec(
            d_model=read_value(config, "d_model", int),
            n_layers=read_value(config, f"{side}_layers", int),
            n_heads=read_value(config, f"{side}_attention_heads", int),
            d_ff=read_value(config, f"{side}_ffn_dim", int),
            position=Sinusoidal(),
            placement="post",
            activation=read_activation(config, "activation_function"),
            dropout=Dropout(embedding=rate, attention=attention, activation=activation_rate, residual=rate),
        )
        for side in SIDES
    )
    return EncoderDecoderSpec(
        vocab_size=target_size,
        source_vocab_size=None if source_size == target_size else source_size,
        max_len=read_value(config, "max_position_embeddings", int),
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        share_embeddings=shared,
        scale_embedding=read_bool(config, "scale_embedding", False),
        logit_bias=logit_bias,
        encoder=encoder,
        decoder=decoder,
    )


def _foreign_names(config: Mapping[str, Any], state: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
    """The tensors without the prefix, and whether both sides have one embedding."""
    tensors = strip_names(state, prefix="model.", no_weight=lambda name: False)
    return tensors, _share(config, tensors)


def _share(config: Mapping[str, Any], tensors: dict[str, Tensor]) -> bool:
    """Whether both sides have one embedding, from then on under `SHARED_EMBEDDING` alone; else each has its own."""
    if not read_bool(config, "share_encoder_decoder_embeddings", True):
        return False
    if not read_bool(
        config, "tie_word_embeddings", True
    ):  # then some versions share nothing, and never read `SHARED_EMBEDDING`
        shared_table = tensors.pop(SHARED_EMBEDDING, None)
        tables = [
            tensors.setdefault(name, shared_table) if shared_table is not None else tensors.get(name)
            for name in EMBEDDINGS
        ]
        if tables[0] is None or tables[1] is None or not torch.equal(tables[0], tables[1]):
            return False
    for name in EMBEDDINGS:
        merge_tied(tensors, name, SHARED_EMBEDDING, KIND)
    return True


def marian_source(ours: str, shared: bool) -> Source:
    if shared and ours in ("source_embedding.weight", "embedding.weight"):
        return Source(name=SHARED_EMBEDDING)
    return Source(name=BIAS if ours == "unembedding.bias" else foreign_name(ours, NAMES))


def _check_positions(model: EncoderDecoder, side: str, table: Tensor | None, order: Tensor) -> None:
    """Some files have the positions as a table, which must be the one that the formula gives."""
    if table is None:
        return
    expected = getattr(model, side).position.embed(torch.arange(len(table))[None])[0]  # (T, D)
    theirs = table.float()
    if theirs.shape != expected.shape or not torch.allclose(theirs[:, order], expected, atol=1e-2):  # as in float16
        raise UserError(f"{side}.embed_positions.weight are not the sines and cosines of this width; leave them out")


@torch.no_grad()
def _reorder(model: EncoderDecoder, order: Tensor) -> None:
    for name, parameter in model.named_parameters():  # a shared one comes once
        parameter.copy_(_reorder_tensor(name, parameter, order))


def reorder_low_rank(name: str, a: Tensor, b: Tensor, *, inverse: bool = False) -> tuple[Tensor, Tensor]:
    """A (r, K) and B (N, r) of an adapter of the weight `name` of ours, read from theirs, or `inverse` from ours."""
    if name.endswith(INPUT_WEIGHTS):
        order = interleave_columns(a.shape[1])
        return a[:, order.argsort() if inverse else order], b
    if name.endswith(OUTPUT_WEIGHTS):
        order = interleave_columns(len(b))
        return a, b[order.argsort() if inverse else order]
    return a, b


def _reorder_tensor(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """The tensor of ours called `name`, where the stream has its columns in another order."""
    if name.endswith(INPUT_WEIGHTS):
        return tensor[:, order]
    return tensor[order] if name.endswith(OUTPUT_WEIGHTS) else tensor
