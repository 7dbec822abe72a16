"""Import and export of GPT-2 models (Radford et al. 2019) of the `transformers` library.

Matrices are stored as (in, out), and those of queries, keys and values as a single matrix. Old files also contain the
causal mask of each layer, which is not a weight. The output matrix is usually tied to the embedding; then it may be
missing.
"""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

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
    FIXED_POSITIONS,
    Support,
    features_of_heads,
    features_of_stack,
    features_of_vocabulary,
    rewrite_model,
)
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name, strip_names
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain
from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Learned

KIND = "GPT-2"
NAMES = {
    "embedding": "wte",
    "stack.position.table": "wpe",
    "stack.final_norm": "ln_f",
    "unembedding": "lm_head",
    "stack.blocks.N.self_attention.query": "h.N.attn.c_attn",
    "stack.blocks.N.self_attention.key": "h.N.attn.c_attn",
    "stack.blocks.N.self_attention.value": "h.N.attn.c_attn",
    "stack.blocks.N.self_attention.out": "h.N.attn.c_proj",
    "stack.blocks.N.self_residual.before": "h.N.ln_1",
    "stack.blocks.N.feedforward.up": "h.N.mlp.c_fc",
    "stack.blocks.N.feedforward.down": "h.N.mlp.c_proj",
    "stack.blocks.N.feedforward_residual.before": "h.N.ln_2",
}
FUSED_PARTS = ("query", "key", "value")  # in the order of c_attn
MASK = re.compile(r"h\.\d+\.attn\.(?:bias|masked_bias)")
REQUIRED_SETTINGS = {
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
    "reorder_and_upcast_attn": False,
    "add_cross_attention": False,
}


def from_gpt2(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnly:
    """Build the equivalent of a GPT2LMHeadModel, or of a GPT2Model with tied output, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    tensors = strip_names(state, prefix="transformer.", no_weight=lambda name: MASK.fullmatch(name) is not None)
    spec = gpt2_spec(config, state, n_ids=n_ids)
    return build_model(DecoderOnly, spec, tensors, gpt2_source, kind=KIND, tied=("lm_head.weight", "wte.weight"))


def gpt2_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnlySpec:
    """Return the spec of the model that `from_gpt2` would build, from the config only; `state` is ignored.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    with raise_config_errors(KIND):
        return with_ids(_spec(config), n_ids)


def gpt2_support(spec: DecoderOnlySpec) -> Support:
    """Return the features of a model with the values that `to_gpt2` supports."""
    stack = spec.stack
    return Support(
        f"{KIND} of transformers",
        [
            *features_of_stack("stack", stack, placement="pre", positions=FIXED_POSITIONS, gated=False),
            *features_of_heads("stack", stack),
            *features_of_vocabulary(spec, embedding_norm=False, tied=spec.tie_embeddings),
        ],
    )


def to_gpt2(model: DecoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of a GPT2LMHeadModel; the inverse of `from_gpt2`.

    Raises:
        UserError: If GPT-2 does not support a feature of the model; the feature is named.
    """
    spec, stack = model.spec, model.spec.stack
    gpt2_support(spec).check()
    stack = replace(stack, position=Learned(), bias=True, norm_bias=True)
    equivalent = rewrite_model(model, replace(spec, pad_vocab_to=1, scale_embedding=False, stack=stack))
    state = export_state(own_tensors(equivalent), gpt2_source, prefix="transformer.", unprefixed=("lm_head.",))
    return _config(equivalent.spec), state


def _config(spec: DecoderOnlySpec) -> Plain:
    stack = spec.stack
    return {
        "architectures": ["GPT2LMHeadModel"],
        "model_type": "gpt2",
        "vocab_size": spec.vocab_size,
        "n_positions": spec.max_len,
        "n_embd": stack.d_model,
        "n_layer": stack.n_layers,
        "n_head": stack.n_heads,
        "n_inner": stack.d_ff,
        "activation_function": ACTIVATION_NAMES[stack.activation],
        "layer_norm_epsilon": stack.norm_eps,
        "embd_pdrop": stack.dropout.embedding,
        "attn_pdrop": stack.dropout.attention,
        "resid_pdrop": stack.dropout.branches.feedforward,
        "tie_word_embeddings": spec.tie_embeddings,
        **REQUIRED_SETTINGS,
    }


def _spec(config: Mapping[str, Any]) -> DecoderOnlySpec:
    read_model_type(config, "gpt2")
    check_settings(config, REQUIRED_SETTINGS, KIND)
    width = read_value(config, "n_embd", int)
    return DecoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "n_positions", int),
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        stack=StackSpec(
            d_model=width,
            n_layers=read_value(config, "n_layer", int),
            n_heads=read_value(config, "n_head", int),
            d_ff=read_value(config, "n_inner", int, 4 * width),
            position=Learned(),
            norm_eps=read_value(config, "layer_norm_epsilon", float),
            activation=read_activation(config, "activation_function"),
            dropout=Dropout(
                embedding=read_value(config, "embd_pdrop", float),
                attention=read_value(config, "attn_pdrop", float),
                residual=read_value(config, "resid_pdrop", float),
            ),
        ),
    )


def gpt2_source(native_name: str) -> Source:
    """Return the tensor of a GPT-2 in `transformers` that corresponds to the tensor `native_name` of Tercet."""
    name, part = foreign_name(native_name, NAMES), native_name.split(".")[-2]
    if part in FUSED_PARTS:
        return Source(name=name, transposed=True, part=FUSED_PARTS.index(part), parts=len(FUSED_PARTS))
    return Source(name=name, transposed=part in ("out", "up", "down"))
