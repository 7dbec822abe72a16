"""Llama as the `transformers` library keeps it: our "llama" preset under other names, with biases if wanted.

Touvron et al. (2023). Two switches give biases to attention and to the feed-forward network. Scaled rotations (Llama
3.1) are another model, and refused.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor

from tercet.checkpoint.foreign.equal import check_equal, features_of_stack, features_of_vocabulary, rewritten
from tercet.checkpoint.foreign.reading import (
    NAMED,
    Source,
    activation,
    check_kind,
    fill,
    fitting,
    plain_names,
    switch,
    take,
    their_name,
    their_state,
    untwin,
    with_ids,
)
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
    tensors = plain_names(state, prefix="model.", no_weight=lambda name: name.endswith("rotary_emb.inv_freq"))
    spec = llama_spec(config, state, n_ids=n_ids)
    with fitting(KIND):
        model = DecoderOnly(spec)
    if model.spec.tie_embeddings:
        untwin(tensors, "lm_head.weight", "embed_tokens.weight", KIND)
    fill(model, tensors, _source, zero=(), kind=KIND)
    return model.eval()


def llama_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnlySpec:
    """The spec of what `from_llama` reads: the config says all of it. Raises as it does."""
    with fitting(KIND):
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
    check_equal(f"{KIND} of transformers", features)
    # Attention's four matrices have biases there, or none of them.
    attention = stack.biases.qkv or stack.biases.out
    biases = Biases(qkv=attention, out=attention, feedforward=stack.biases.feedforward)
    written = replace(spec, pad_vocab_to=1, scale_embedding=False, stack=replace(stack, bias=biases))
    equal = rewritten(model, written)
    state = their_state(own_tensors(equal), _source)
    return _config(equal.spec, position, biases), {
        name if name.startswith("lm_head.") else f"model.{name}": tensor for name, tensor in state.items()
    }


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
        "hidden_act": NAMED[stack.activation],
        "rms_norm_eps": stack.norm_eps,
        "rope_theta": position.base,  # where older versions look
        "rope_parameters": {"rope_type": "default", "rope_theta": position.base},
        "attention_dropout": stack.dropout.attention,
        "tie_word_embeddings": spec.tie_embeddings,
        "attention_bias": biases.qkv,
        "mlp_bias": biases.feedforward,
    }


def _spec(config: Mapping[str, Any]) -> DecoderOnlySpec:
    check_kind(config, "llama")
    heads, width = take(config, "num_attention_heads", int), take(config, "hidden_size", int)
    return DecoderOnlySpec(
        vocab_size=take(config, "vocab_size", int),
        max_len=take(config, "max_position_embeddings", int),
        tie_embeddings=switch(config, "tie_word_embeddings", False),
        stack=StackSpec(
            d_model=width,
            n_layers=take(config, "num_hidden_layers", int),
            n_heads=heads,
            n_kv_heads=take(config, "num_key_value_heads", int, heads),
            d_head=None if config.get("head_dim") is None else take(config, "head_dim", int),
            d_ff=take(config, "intermediate_size", int),
            position=Rotary(base=_base(config)),
            norm="rms",
            norm_eps=take(config, "rms_norm_eps", float),
            norm_bias=False,
            activation=activation(config, "hidden_act"),
            gated=True,
            bias=_biases(config),
            dropout=Dropout(attention=take(config, "attention_dropout", float, 0.0)),
        ),
    )


def _base(config: Mapping[str, Any]) -> float:
    """The rotation's base, which stands in one of three places; 10000 where it stands in none."""
    told: dict[str, Any] = {"rope_theta": config.get("rope_theta")}
    for key in ("rope_scaling", "rope_parameters"):
        settings = config.get(key)
        if settings is not None and not isinstance(settings, dict):
            raise UserError(f"config.json has {settings!r} as {key}; put back the keys of the trained model")
        told |= {name: value for name, value in (settings or {}).items() if value is not None}
    kind = told.get("rope_type", told.get("type", "default"))
    if kind != "default":
        raise UserError(f"the rotation is scaled by {kind!r}, which Tercet does not have; it reads a Llama without")
    if take(told, "partial_rotary_factor", float, 1.0) != 1.0:
        raise UserError("partial_rotary_factor is not 1, which no Llama of transformers follows; leave it out")
    return take(told, "rope_theta", float, 10_000.0)


def _biases(config: Mapping[str, Any]) -> bool | Biases:
    attention, mlp = (switch(config, f"{part}_bias", False) for part in ("attention", "mlp"))
    return attention if attention == mlp else Biases(qkv=attention, out=attention, feedforward=mlp)


def _source(ours: str) -> Source:
    return Source(name=their_name(ours, NAMES))
