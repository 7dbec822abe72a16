"""Import and export of Marian models (Vaswani et al. 2017) of the `transformers` library.

Marian is described by Junczys-Dowmunt et al. (2018); the Opus-MT models have its format. A position vector of Marian
contains all sines, followed by all cosines; in Tercet sines and cosines alternate. Attention, norms and products do not
depend on the order of the residual stream's columns. Therefore the columns of every weight that reads or writes the
stream are reordered, and Tercet's sinusoidal positions give the same result.
"""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
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
    Feature,
    Support,
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
)
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.models import EncoderDecoder, EncoderDecoderSpec
from tercet.nn import Sinusoidal

KIND = "Marian"
NAMES = {
    "source_embedding": "encoder.embed_tokens",
    "embedding": "decoder.embed_tokens",
    "unembedding": "lm_head",
    **block_names("encoder.blocks.N", "encoder.layers.N"),
    **block_names("decoder.blocks.N", "decoder.layers.N"),
}
REQUIRED_SETTINGS = {
    "normalize_before": False,
    "normalize_embedding": False,
    "add_final_layer_norm": False,
    "static_position_embeddings": True,
    "is_decoder": False,
}

# The dimension of the stream is the last one of matrices that read it, and the first one of those that write it.
INPUT_WEIGHTS = ("query.weight", "key.weight", "value.weight", "up.weight", "embedding.weight")
OUTPUT_WEIGHTS = ("out.weight", "out.bias", "down.weight", "down.bias", "after.weight", "after.bias")


def from_marian(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> EncoderDecoder:
    """Build the equivalent of a MarianMTModel, or of a MarianModel with tied output, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    tensors, shared = translator_names(config, state, KIND)
    tables = {side: tensors.pop(f"{side}.embed_positions.weight", None) for side in SIDES}
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
    """Return the spec of the model that `from_marian` would build. Only the embeddings are read from the tensors.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    tensors, shared = translator_names(config, state, KIND)
    with raise_config_errors(KIND):
        return with_ids(_spec(config, shared=shared, logit_bias=BIAS in tensors), n_ids)


def marian_support(spec: EncoderDecoderSpec) -> Support:
    """Return the features of a model with the values that `to_marian` supports."""
    return Support(f"{KIND} of transformers", _features(spec))


def to_marian(model: EncoderDecoder) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of a MarianMTModel; the inverse of `from_marian`.

    In Marian, both sides share one embedding only if the output is tied to it as well. Otherwise a shared embedding is
    written once per side.

    Raises:
        UserError: If Marian does not support a feature of the model; the feature is named.
    """
    spec = model.spec
    marian_support(spec).check()
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
    return {
        "architectures": ["MarianMTModel"],
        "model_type": "marian",
        "vocab_size": spec.vocab_size if spec.source_vocab_size is None else spec.source_vocab_size,
        "decoder_vocab_size": spec.vocab_size,
        "share_encoder_decoder_embeddings": spec.share_embeddings,
        **config_of_stacks(spec),
        **REQUIRED_SETTINGS,
    }


def interleave_columns(width: int) -> Int[Tensor, " D"]:
    """Return, for each column of the residual stream in Tercet, the number of the same column in Marian (D,).

    Marian's order is all sines, then all cosines; Tercet's is sine 0, cosine 0, sine 1, ...

    Args:
        width: Width of the residual stream, which must be even.
    """
    return torch.arange(width).view(2, -1).T.flatten()


def _spec(config: Mapping[str, Any], *, shared: bool, logit_bias: bool) -> EncoderDecoderSpec:
    read_model_type(config, "marian")
    check_settings(config, REQUIRED_SETTINGS, KIND)
    source_size = read_value(config, "vocab_size", int)
    is_joint = read_bool(config, "share_encoder_decoder_embeddings", True)
    target_size = source_size if is_joint else read_value(config, "decoder_vocab_size", int, source_size)
    encoder, decoder = read_stacks(config, position=Sinusoidal(), placement="post")
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


def marian_source(native_name: str, shared: bool) -> Source:
    """Return the tensor of a Marian in `transformers` that corresponds to the tensor `native_name` of Tercet.

    The order of its columns is that of Marian. If `shared` is True, both sides have the same embedding.
    """
    if shared and native_name in ("source_embedding.weight", "embedding.weight"):
        return Source(name=SHARED_EMBEDDING)
    return Source(name=BIAS if native_name == "unembedding.bias" else foreign_name(native_name, NAMES))


def _check_positions(model: EncoderDecoder, side: str, table: Tensor | None, order: Tensor) -> None:
    """Compare the position table of one side, which only some files contain, with the sines and cosines."""
    if table is None:
        return
    expected = getattr(model, side).position.embed(torch.arange(len(table))[None])[0]  # (T, D)
    values = table.float()
    if values.shape != expected.shape or not torch.allclose(
        values[:, order], expected, atol=1e-2
    ):  # tolerance of float16
        raise UserError(f"{side}.embed_positions.weight are not the sines and cosines of this width; remove them")


@torch.no_grad()
def _reorder(model: EncoderDecoder, order: Tensor) -> None:
    for name, parameter in model.named_parameters():  # yields a shared parameter once
        parameter.copy_(_reorder_tensor(name, parameter, order))


def reorder_low_rank(name: str, a: Tensor, b: Tensor, *, inverse: bool = False) -> tuple[Tensor, Tensor]:
    """Return a low-rank update of a Marian weight with the columns of the residual stream in Tercet's order.

    Args:
        name: Tercet's name of the weight.
        a, b: Matrices A (r, K) and B (N, r) of the update.
        inverse: If True, convert from Tercet's order to Marian's instead.
    """
    if name.endswith(INPUT_WEIGHTS):
        order = interleave_columns(a.shape[1])
        return a[:, order.argsort() if inverse else order], b
    if name.endswith(OUTPUT_WEIGHTS):
        order = interleave_columns(len(b))
        return a, b[order.argsort() if inverse else order]
    return a, b


def _reorder_tensor(name: str, tensor: Tensor, order: Tensor) -> Tensor:
    """Return the tensor called `name` with the columns of the residual stream in the given order (D,)."""
    if name.endswith(INPUT_WEIGHTS):
        return tensor[:, order]
    return tensor[order] if name.endswith(OUTPUT_WEIGHTS) else tensor
