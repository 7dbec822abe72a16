"""Import and export of OPT models (Zhang et al. 2022) of the `transformers` library.

The architecture is that of GPT-2 with a ReLU, optionally with norms after each sublayer. Positions are counted from the
third row of their table. A model with norms before each sublayer and a norm at the end is exported as a GPT-2.
"""

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
from tercet.checkpoint.foreign.fairseq import block_names
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
from tercet.config import Plain, UserError
from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Learned

KIND = "OPT"
NAMES = {
    "embedding": "decoder.embed_tokens",
    "stack.position.table": "decoder.embed_positions",
    "stack.final_norm": "decoder.final_layer_norm",
    "unembedding": "lm_head",
    **block_names("stack.blocks.N", "decoder.layers.N"),
}
UNUSED_POSITIONS = 2  # rows of the table before that of the first position
NORM_EPS = 1e-5
REQUIRED_SETTINGS = {"layer_norm_elementwise_affine": True}


def from_opt(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnly:
    """Build the equivalent of an OPTForCausalLM, or of an OPTModel with tied output, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    tensors = strip_names(state, prefix="model.", no_weight=lambda name: False)
    spec = opt_spec(config, state, n_ids=n_ids)
    tied = ("lm_head.weight", "decoder.embed_tokens.weight")
    return build_model(DecoderOnly, spec, tensors, opt_source, kind=KIND, tied=tied)


def opt_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnlySpec:
    """Return the spec of the model that `from_opt` would build, from the config only; `state` is ignored.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    with raise_config_errors(KIND):
        return with_ids(_spec(config), n_ids)


def is_opt(spec: DecoderOnlySpec) -> bool:
    """Return whether a model has the norms and positions of an OPT, and not those of a GPT-2."""
    stack = spec.stack
    return stack.position.kind in FIXED_POSITIONS and (stack.placement == "post" or not stack.has_final_norm)


def opt_support(spec: DecoderOnlySpec) -> Support:
    """Return the features of a model with the values that `to_opt` supports."""
    stack, is_post = spec.stack, spec.stack.placement == "post"
    features = [
        *features_of_stack(
            "stack",
            stack if is_post else replace(stack, final_norm=True),  # a final norm is optional
            placement="post" if is_post else "pre",
            positions=FIXED_POSITIONS,
            gated=False,
        ),
        *features_of_heads("stack", stack),
        ("stack.norm_eps", stack.norm_eps, [NORM_EPS]),
        *features_of_vocabulary(spec, embedding_norm=False, tied=spec.tie_embeddings),
    ]
    return Support(f"{KIND} of transformers", features)


def to_opt(model: DecoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of an OPTForCausalLM; the inverse of `from_opt`.

    Raises:
        UserError: If OPT does not support a feature of the model; the feature is named.
    """
    spec, stack = model.spec, model.spec.stack
    opt_support(spec).check()
    has_bias = any(vars(stack.biases).values())
    stack = replace(stack, position=Learned(), bias=has_bias, norm_bias=True)
    equivalent = rewrite_model(model, replace(spec, pad_vocab_to=1, scale_embedding=False, stack=stack))
    state = export_state(own_tensors(equivalent), opt_source, prefix="model.", unprefixed=("lm_head.",))
    return _config(equivalent.spec), state


def _config(spec: DecoderOnlySpec) -> Plain:
    stack = spec.stack
    return {
        "architectures": ["OPTForCausalLM"],
        "model_type": "opt",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "hidden_size": stack.d_model,
        "word_embed_proj_dim": stack.d_model,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "ffn_dim": stack.inner_width,
        "activation_function": ACTIVATION_NAMES[stack.activation],
        "do_layer_norm_before": stack.placement == "pre",
        "_remove_final_layer_norm": stack.placement == "pre" and not stack.has_final_norm,
        "enable_bias": stack.biases.qkv,
        "attention_dropout": stack.dropout.attention,
        "dropout": stack.dropout.branches.feedforward,
        "tie_word_embeddings": spec.tie_embeddings,
        **REQUIRED_SETTINGS,
    }


def _spec(config: Mapping[str, Any]) -> DecoderOnlySpec:
    read_model_type(config, "opt")
    check_settings(config, REQUIRED_SETTINGS, KIND)
    width = read_value(config, "hidden_size", int)
    if (token_width := read_value(config, "word_embed_proj_dim", int, width)) != width:
        raise UserError(
            f"word_embed_proj_dim is {token_width}, but hidden_size is {width}; "
            "Tercet does not support projections of token embeddings"
        )
    is_pre = read_bool(config, "do_layer_norm_before", True)
    return DecoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "max_position_embeddings", int),
        tie_embeddings=read_bool(config, "tie_word_embeddings", True),
        stack=StackSpec(
            d_model=width,
            n_layers=read_value(config, "num_hidden_layers", int),
            n_heads=read_value(config, "num_attention_heads", int),
            d_ff=read_value(config, "ffn_dim", int),
            position=Learned(),
            norm_eps=NORM_EPS,
            placement="pre" if is_pre else "post",
            final_norm=False if is_pre and read_bool(config, "_remove_final_layer_norm", False) else None,
            activation=read_activation(config, "activation_function"),
            bias=read_bool(config, "enable_bias", True),
            dropout=Dropout(
                attention=read_value(config, "attention_dropout", float, 0.0),
                residual=read_value(config, "dropout", float, 0.1),
            ),
        ),
    )


def opt_source(native_name: str) -> Source:
    """Return the tensor of an OPT in `transformers` that corresponds to the tensor `native_name` of Tercet."""
    is_table = native_name == "stack.position.table.weight"
    return Source(name=foreign_name(native_name, NAMES), skipped_rows=UNUSED_POSITIONS if is_table else 0)
