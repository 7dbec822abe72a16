"""Llama as the `transformers` library keeps it: our "llama" preset under other names, with biases if wanted.

Touvron et al. (2023). Two switches give biases to attention and to the feed-forward network; where one alone is on, the
other's biases stand in our model as zeros. Scaled rotations (Llama 3.1) are another model, and refused.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from tercet.checkpoint.foreign import (
    Source,
    activation,
    check_kind,
    fill,
    fitting,
    plain_names,
    switch,
    take,
    their_name,
    untwin,
    with_ids,
)
from tercet.config import UserError
from tercet.models import DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
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
    with fitting(KIND):
        model = DecoderOnly(with_ids(_spec(config), n_ids))
    if model.spec.tie_embeddings:
        untwin(tensors, "lm_head.weight", "embed_tokens.weight", KIND)
    biased = {"self_attention": _biased(config, "attention"), "feedforward": _biased(config, "mlp")}
    biases = [name for name in model.state_dict() if name.endswith(".bias")]
    zero = [name for name in biases if not biased[name.split(".")[3]]]
    fill(model, tensors, lambda name: Source(name=their_name(name, NAMES)), zero=zero, kind=KIND)
    return model.eval()


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
            bias=_biased(config, "attention") or _biased(config, "mlp"),
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


def _biased(config: Mapping[str, Any], part: str) -> bool:
    return switch(config, f"{part}_bias", False)
