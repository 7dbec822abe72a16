"""Import and export of GPT-NeoX models (Black et al. 2022) of the `transformers` library, such as Pythia.

Attention and feed-forward network have separate norms and usually run in parallel. A part of each head is rotated. The
queries, keys and values of a head are stored together: its rows of the single matrix are those of its query, its key
and its value. The output matrix is called `embed_out` in files, and `lm_head` in newer versions of the class. Older
files also contain the causal mask and the frequencies of the rotation, which are not weights.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

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
    Support,
    features_of_heads,
    features_of_stack,
    features_of_vocabulary,
    fold_embedding_norm,
    rewrite_model,
)
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name, strip_names
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.models import Biases, DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Rotary
from tercet.nn.specs import Parallel

KIND = "GPT-NeoX"
QKV = "layers.N.attention.query_key_value"
NAMES = {
    "embedding": "embed_in",
    "stack.final_norm": "final_layer_norm",
    "unembedding": "embed_out",
    "stack.blocks.N.self_attention.query": QKV,
    "stack.blocks.N.self_attention.key": QKV,
    "stack.blocks.N.self_attention.value": QKV,
    "stack.blocks.N.self_attention.out": "layers.N.attention.dense",
    "stack.blocks.N.self_residual.before": "layers.N.input_layernorm",
    "stack.blocks.N.feedforward.up": "layers.N.mlp.dense_h_to_4h",
    "stack.blocks.N.feedforward.down": "layers.N.mlp.dense_4h_to_h",
    "stack.blocks.N.feedforward_residual.before": "layers.N.post_attention_layernorm",
}
FUSED_PARTS = ("query", "key", "value")  # in the order of each head
NO_WEIGHT = re.compile(r"layers\.\d+\.attention\.(?:bias|masked_bias|rotary_emb\.inv_freq)")
PARALLEL: tuple[Parallel, ...] = (False, "separate_norms")
SHARE = 0.25  # default of transformers


def from_neox(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnly:
    """Build the equivalent of a GPTNeoXForCausalLM, or of a GPTNeoXModel with tied output, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    tensors = strip_names(
        state,
        prefix="gpt_neox.",
        no_weight=lambda name: NO_WEIGHT.fullmatch(name) is not None,
        rename=lambda name: re.sub(r"^lm_head\.", "embed_out.", name),
    )
    spec = neox_spec(config, state, n_ids=n_ids)
    source = partial(neox_source, n_heads=spec.stack.n_heads)
    return build_model(DecoderOnly, spec, tensors, source, kind=KIND, tied=("embed_out.weight", "embed_in.weight"))


def neox_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnlySpec:
    """Return the spec of the model that `from_neox` would build, from the config only; `state` is ignored.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    with raise_config_errors(KIND):
        return with_ids(_spec(config), n_ids)


def is_neox(spec: DecoderOnlySpec) -> bool:
    """Return whether a model has the norms and positions of a GPT-NeoX."""
    return spec.stack.position.kind == "rotary" and spec.stack.norm == "layer"


def neox_support(spec: DecoderOnlySpec) -> Support:
    """Return the features of a model with the values that `to_neox` supports."""
    spec = fold_embedding_norm(spec)
    stack = _with_separate_norms(spec.stack)
    features = [
        *features_of_stack("stack", stack, placement="pre", positions=["rotary"], gated=False, parallel=PARALLEL),
        *features_of_heads("stack", stack),
        *features_of_vocabulary(spec, embedding_norm=False, tied=spec.tie_embeddings),
    ]
    return Support(f"{KIND} of transformers", features)


def _with_separate_norms(stack: StackSpec) -> StackSpec:
    return replace(stack, parallel="separate_norms" if stack.parallel else False)


def to_neox(model: DecoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of a GPTNeoXForCausalLM; the inverse of `from_neox`.

    Raises:
        UserError: If GPT-NeoX does not support a feature of the model; the feature is named.
    """
    neox_support(model.spec).check()
    spec = fold_embedding_norm(model.spec)
    stack = _with_separate_norms(spec.stack)
    has_bias = stack.biases.qkv or stack.biases.out
    biases = Biases(qkv=has_bias, out=has_bias, feedforward=True)
    stack = replace(stack, bias=biases, norm_bias=True)
    equivalent = rewrite_model(model, replace(spec, pad_vocab_to=1, scale_embedding=False, stack=stack))
    source = partial(neox_source, n_heads=stack.n_heads)
    state = export_state(own_tensors(equivalent), source, prefix="gpt_neox.", unprefixed=("embed_out.",))
    return _config(equivalent.spec), state


def _config(spec: DecoderOnlySpec) -> Plain:
    stack, position = spec.stack, spec.stack.position
    assert isinstance(position, Rotary)
    return {
        "architectures": ["GPTNeoXForCausalLM"],
        "model_type": "gpt_neox",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "hidden_size": stack.d_model,
        "intermediate_size": stack.inner_width,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "hidden_act": ACTIVATION_NAMES[stack.activation],
        "layer_norm_eps": stack.norm_eps,
        "rotary_emb_base": position.base,  # read by older versions
        "rotary_pct": position.share,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": position.base, "partial_rotary_factor": position.share,
        },
        "use_parallel_residual": stack.parallel is not False,
        "attention_bias": stack.biases.qkv,
        "attention_dropout": stack.dropout.attention,
        "hidden_dropout": stack.dropout.branches.feedforward,
        "tie_word_embeddings": spec.tie_embeddings,
    }  # fmt: skip


def _spec(config: Mapping[str, Any]) -> DecoderOnlySpec:
    read_model_type(config, "gpt_neox")
    has_bias, rate = read_bool(config, "attention_bias", True), read_value(config, "hidden_dropout", float, 0.0)
    width, heads = read_value(config, "hidden_size", int), read_value(config, "num_attention_heads", int)
    if read_value(config, "head_dim", int, width // max(heads, 1)) * heads != width:
        raise UserError(f"head_dim times num_attention_heads={heads} must be hidden_size={width} in a {KIND}")
    return DecoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "max_position_embeddings", int),
        tie_embeddings=read_bool(config, "tie_word_embeddings", False),
        stack=StackSpec(
            d_model=width,
            n_layers=read_value(config, "num_hidden_layers", int),
            n_heads=heads,
            d_ff=read_value(config, "intermediate_size", int),
            position=_rotation(config),
            norm_eps=read_value(config, "layer_norm_eps", float),
            activation=read_activation(config, "hidden_act"),
            parallel="separate_norms" if read_bool(config, "use_parallel_residual", True) else False,
            bias=has_bias or Biases(qkv=False, out=False, feedforward=True),
            dropout=Dropout(
                embedding=rate, attention=read_value(config, "attention_dropout", float, 0.0), residual=rate
            ),
        ),
    )


def _rotation(config: Mapping[str, Any]) -> Rotary:
    """Return the rotation, which is in `rope_parameters` or, in older files, in two separate keys.

    Raises:
        UserError: If the rotation is scaled.
    """
    key = "rope_scaling" if config.get("rope_scaling") else "rope_parameters"  # as in transformers
    settings: Any = config.get(key) or {}
    if not isinstance(settings, dict):
        raise UserError(f"config.json has {settings!r} as {key}; put back the keys of the trained model")
    old_names = {"rope_theta": "rotary_emb_base", "partial_rotary_factor": "rotary_pct"}
    rope = {name: config.get(old_name) for name, old_name in old_names.items()} | settings
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"the rotation of this {KIND} is scaled by {kind!r}, which Tercet does not support")
    return Rotary(
        base=read_value(rope, "rope_theta", float, 10_000.0),
        share=read_value(rope, "partial_rotary_factor", float, SHARE),
    )


def neox_source(native_name: str, n_heads: int) -> Source:
    """Return the tensor of a GPT-NeoX in `transformers` that corresponds to the tensor `native_name` of Tercet.

    Args:
        native_name: Name of the tensor in Tercet.
        n_heads: Number of heads, by which the rows of the matrix of queries, keys and values are grouped.
    """
    name, part = foreign_name(native_name, NAMES), native_name.split(".")[-2]
    if part in FUSED_PARTS:
        return Source(name=name, part=FUSED_PARTS.index(part), parts=len(FUSED_PARTS), groups=n_heads)
    return Source(name=name)
