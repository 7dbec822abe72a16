"""Llama as the `transformers` library keeps it: our "llama" preset under other names, with biases if wanted.

Touvron et al. (2023). Two switches give biases to attention and to the feed-forward network. Scaled rotations (Llama
3.1) are another model, and refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tercet.checkpoint.foreign.config_keys import (
    ACTIVATION_NAMES,
    check_model_type,
    raise_config_errors,
    read_activation,
    read_bool,
    read_value,
    with_ids,
)
from tercet.checkpoint.foreign.features import check_features, features_of_stack, features_of_vocabulary, rewrite_model
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, strip_names, their_name
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.models import Biases, DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Rotary

KIND = "Llama"
NAMES = {
    "embedding": "embed_tokens",
    "stack.final_norm": "norm",
    "unembedding": "lm_head",
    "stack.blocks.N.self_attention.query": "layers.N.self_attn.q_proj",
    "stack.blocks.N.self_attention.key": "layers.N.self_attn.k_proj",
    "stack.blocks.N.self_attention.value": "layers.N.self_attn.v_proj",
    "stack.blocks.N.self_attention.out": "layers.N.self_attn.o_proj",
    "stack.blocks.N.self_residual.before": "layers.N.input_layernorm",
    "stack.blocks.N.feedforward.gate": "layers.N.mlp.gate_proj",
    "stack.blocks.N.feedforward.up": "layers.N.mlp.up_proj",
    "stack.blocks.N.feedforward.down": "layers.N.mlp.down_proj",
    "stack.blocks.N.feedforward_residual.before": "layers.N.post_attention_layernorm",
}


def from_llama(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnly:
    """The model, in eval mode, of a LlamaForCausalLM, or of a LlamaModel whose output is its embedding.

    Args:
        config: what its config.json holds.
        state: its tensors by name.
        n_ids: how many ids the tokenizer has, where the embedding may have more rows.

    Raises:
        UserError: where the two do not belong together, or ask for what Tercet does not have.
    """
    # Old files keep the frequencies of the rotation, which follow from its base.
    tensors = strip_names(state, prefix="model.", no_weight=lambda name: name.endswith("rotary_emb.inv_freq"))
    spec = llama_spec(config, state, n_ids=n_ids)
    return build_model(DecoderOnly, spec, tensors, _source, kind=KIND, tied=("lm_head.weight", "embed_tokens.weight"))


def llama_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnlySpec:
    """The spec of what `from_llama` reads: the config says all of it. Raises as it does."""
    with raise_config_errors(KIND):
        return with_ids(_spec(config), n_ids)


def to_llama(model: DecoderOnly) -> tuple[Plain, dict[str, Tensor]]:
    """The inverse of `from_llama`: config and tensors of a LlamaForCausalLM.

    Raises:
        UserError: naming what the model has and no Llama does.
    """
    spec, stack = model.spec, model.spec.stack
    position = stack.position if isinstance(stack.position, Rotary) else Rotary()
    features = [
        *features_of_stack("stack", stack, placement="pre", positions=["rotary"], norm="rms", gated=True),
        ("stack.position.share", position.share, [1.0]),
        *features_of_vocabulary(spec, embedding_norm=False, tied=spec.tie_embeddings),
    ]
    check_features(f"{KIND} of transformers", features)
    # Attention's four matrices have biases there, or none of them.
    attention = stack.biases.qkv or stack.biases.out
    biases = Biases(qkv=attention, out=attention, feedforward=stack.biases.feedforward)
    written = replace(spec, pad_vocab_to=1, scale_embedding=False, stack=replace(stack, bias=biases))
    equal = rewrite_model(model, written)
    state = export_state(own_tensors(equal), _source, prefix="model.", outside=("lm_head.",))
    return _config(equal.spec, position, biases), state


def _config(spec: DecoderOnlySpec, position: Rotary, biases: Biases) -> Plain:
    stack = spec.stack
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "hidden_size": stack.d_model,
        "intermediate_size": stack.inner_width,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "num_key_value_heads": stack.kv_heads,
        "head_dim": stack.head_width,
        "hidden_act": ACTIVATION_NAMES[stack.activation],
        "rms_norm_eps": stack.norm_eps,
        "rope_theta": position.base,  # where older versions look
        "rope_parameters": {"rope_type": "default", "rope_theta": position.base},
        "attention_dropout": stack.dropout.attention,
        "tie_word_embeddings": spec.tie_embeddings,
        "attention_bias": biases.qkv,
        "mlp_bias": biases.feedforward,
    }


def _spec(config: Mapping[str, Any]) -> DecoderOnlySpec:
    check_model_type(config, "llama")
    heads, width = read_value(config, "num_attention_heads", int), read_value(config, "hidden_size", int)
    return DecoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_value(config, "max_position_embeddings", int),
        tie_embeddings=read_bool(config, "tie_word_embeddings", False),
        stack=StackSpec(
            d_model=width,
            n_layers=read_value(config, "num_hidden_layers", int),
            n_heads=heads,
            n_kv_heads=read_value(config, "num_key_value_heads", int, heads),
            d_head=None if config.get("head_dim") is None else read_value(config, "head_dim", int),
            d_ff=read_value(config, "intermediate_size", int),
            position=Rotary(base=_base(config)),
            norm="rms",
            norm_eps=read_value(config, "rms_norm_eps", float),
            norm_bias=False,
            activation=read_activation(config, "hidden_act"),
            gated=True,
            bias=_biases(config),
            dropout=Dropout(attention=read_value(config, "attention_dropout", float, 0.0)),
        ),
    )


def _base(config: Mapping[str, Any]) -> float:
    """The rotation's base, which stands in one of three places; 10000 where it stands in none."""
    rope: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        settings = config.get(key)
        if settings is not None and not isinstance(settings, dict):
            raise UserError(f"config.json has {settings!r} as {key}; put back the keys of the trained model")
        rope |= {name: value for name, value in (settings or {}).items() if value is not None}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise UserError(f"the rotation is scaled by {kind!r}, which Tercet does not have; it reads a Llama without")
    if read_value(rope, "partial_rotary_factor", float, 1.0) != 1.0:
        raise UserError("partial_rotary_factor is not 1, which no Llama of transformers follows; leave it out")
    return read_value(rope, "rope_theta", float, 10_000.0)


def _biases(config: Mapping[str, Any]) -> bool | Biases:
    attention, mlp = (read_bool(config, f"{part}_bias", False) for part in ("attention", "mlp"))
    return attention if attention == mlp else Biases(qkv=attention, out=attention, feedforward=mlp)


def _source(ours: str) -> Source:
    return Source(name=their_name(ours, NAMES))
