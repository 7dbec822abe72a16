"""Import and export of Llama and related models of the `transformers` library.

Their architecture is that of the preset "llama"; `FAMILIES` in `llama_families.py` contains their differences.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
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
    Feature,
    Support,
    feature_of_width,
    features_of_stack,
    features_of_vocabulary,
    fold_embedding_norm,
    gate_squared_relu,
    rewrite_model,
)
from tercet.checkpoint.foreign.llama_families import FAMILIES, Family
from tercet.checkpoint.foreign.llama_layers import (
    features_of_family_layers,
    read_positions,
    read_window,
    write_layers,
)
from tercet.checkpoint.foreign.rotary_config import read_context, write_rotary
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name, strip_names
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.models import Biases, DecoderOnly, DecoderOnlySpec, Dropout, StackSpec
from tercet.nn import Rotary
from tercet.nn.attention import QK_EPS

NAMES = {
    "embedding": "embed_tokens",
    "stack.final_norm": "norm",
    "unembedding": "lm_head",
    "stack.blocks.N.self_attention.query": "layers.N.self_attn.q_proj",
    "stack.blocks.N.self_attention.key": "layers.N.self_attn.k_proj",
    "stack.blocks.N.self_attention.value": "layers.N.self_attn.v_proj",
    "stack.blocks.N.self_attention.out": "layers.N.self_attn.o_proj",
    "stack.blocks.N.self_attention.query_norm": "layers.N.self_attn.q_norm",
    "stack.blocks.N.self_attention.key_norm": "layers.N.self_attn.k_norm",
    "stack.blocks.N.self_residual.before": "layers.N.input_layernorm",
    "stack.blocks.N.feedforward.gate": "layers.N.mlp.gate_proj",
    "stack.blocks.N.feedforward.up": "layers.N.mlp.up_proj",
    "stack.blocks.N.feedforward.down": "layers.N.mlp.down_proj",
    "stack.blocks.N.feedforward_residual.before": "layers.N.post_attention_layernorm",
}
BRANCH_NORMS = {  # names of norms that differ with the placements "sandwich" and "branch"
    "stack.blocks.N.self_residual.branch": "layers.N.post_attention_layernorm",
    "stack.blocks.N.feedforward_residual.before": "layers.N.pre_feedforward_layernorm",
    "stack.blocks.N.feedforward_residual.branch": "layers.N.post_feedforward_layernorm",
}
NORMS = ("before.weight", "branch.weight", "final_norm.weight")  # suffixes of norms, except those on queries and keys
QK_NORMS = ("query_norm.weight", "key_norm.weight")
QUERIES_KEYS = ("query.weight", "query.bias", "key.weight", "key.bias")
ATTENTION_CAP, LOGIT_CAP = "attn_logit_softcapping", "final_logit_softcapping"
REQUIRED_SETTINGS = {"use_bidirectional_attention": False}
MIN_EPS = 1e-12  # minimum epsilon of norms on queries and keys, since `llama_source` divides by it


def from_llama(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnly:
    """Build the equivalent of a LlamaForCausalLM, a LlamaModel with tied output, or a related class, in eval mode.

    Args:
        config: Content of config.json.
        state: Tensors by their names in `transformers`.
        n_ids: Number of the tokenizer's ids (default: all rows of the embedding). Further rows only pad the vocabulary.

    Raises:
        UserError: If the config and the tensors do not match, or a feature is not supported.
    """
    family = FAMILIES[read_model_type(config, *FAMILIES)]
    # Old files contain the frequencies of the rotation, which are computed from its base instead.
    tensors = strip_names(state, prefix="model.", no_weight=lambda name: name.endswith("rotary_emb.inv_freq"))
    spec = llama_spec(config, state, n_ids=n_ids)
    scale = query_scale(config, family, spec.stack.head_width)
    source = partial(llama_source, family=family, norm_eps=spec.stack.norm_eps, query_scale=scale)
    tied = ("lm_head.weight", "embed_tokens.weight")
    return build_model(DecoderOnly, spec, tensors, source, kind=family.kind, tied=tied)


def llama_spec(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnlySpec:
    """Return the spec of the model that `from_llama` would build, from the config only; `state` is ignored.

    Raises:
        UserError: If the config is invalid, or a feature is not supported.
    """
    family = FAMILIES[read_model_type(config, *FAMILIES)]
    with raise_config_errors(family.kind):
        return with_ids(_spec(config, family), n_ids)


def llama_support(spec: DecoderOnlySpec, model_type: str | None = None) -> Support:
    """Return the features of a model with the values that `to_llama` with the same arguments supports."""
    spec = fold_embedding_norm(spec)
    family = FAMILIES[_nearest(spec) if model_type is None else model_type]
    tied = spec.tie_embeddings and not family.scale_embedding
    stack = gate_squared_relu(spec.stack) if family.gated else spec.stack
    softcap = family.logit_softcap
    features = [
        *features_of_family(stack, family),
        *features_of_vocabulary(spec, embedding_norm=False, tied=tied, softcap=softcap),
    ]
    if family.scale_embedding and spec.tie_embeddings:
        features.append(("scale_embedding", spec.scale_embedding, [True]))
    return Support(f"{family.kind} of transformers", features)


def to_llama(model: DecoderOnly, model_type: str | None = None) -> tuple[Plain, dict[str, Tensor]]:
    """Return config and tensors of a LlamaForCausalLM or a related class; the inverse of `from_llama`.

    Args:
        model: The model.
        model_type: Key of `FAMILIES`; by default the one that fits the model's features best.

    Raises:
        UserError: If the type does not support a feature of the model; the feature is named.
    """
    llama_support(model.spec, model_type).check()
    spec = fold_embedding_norm(model.spec)
    model_type = _nearest(spec) if model_type is None else model_type
    family = FAMILIES[model_type]
    stack = gate_squared_relu(spec.stack) if family.gated else spec.stack
    biases = write_biases(stack.biases, family)
    stack = replace(stack, bias=biases)
    spec = replace(spec, pad_vocab_to=1, scale_embedding=family.scale_embedding, stack=stack)
    equivalent = rewrite_model(model, spec)
    source = partial(llama_source, family=family, norm_eps=stack.norm_eps)
    state = export_state(own_tensors(equivalent), source, prefix="model.", unprefixed=("lm_head.",))
    return _config(equivalent.spec, model_type), state


def _nearest(spec: DecoderOnlySpec) -> str:
    """Return the model_type that fits a model best."""
    stack, biases = spec.stack, spec.stack.biases
    if stack.placement == "sandwich":
        return "gemma3_text" if stack.qk_norm else "gemma2"
    if stack.placement == "branch" or stack.qk_norm == "all_heads":
        return "olmo2"
    if isinstance(stack.position, Rotary) and stack.position.skip_layers:
        return "smollm3"
    if stack.qk_norm:
        return "qwen3"
    if not stack.gated:
        return "arcee"
    if spec.scale_embedding and spec.tie_embeddings:
        return "gemma"
    if stack.window is not None:
        return "qwen2" if biases.qkv or stack.window.global_layers else "mistral"
    only_qkv = biases.qkv and not biases.out and not biases.feedforward
    return "qwen2" if only_qkv and stack.d_model == stack.n_heads * stack.head_width else "llama"


def features_of_family(stack: StackSpec, family: Family) -> list[Feature]:
    """Return features of a stack, each with the values that a family supports."""
    position = stack.position if isinstance(stack.position, Rotary) else Rotary()
    activations = [native for native, foreign in ACTIVATION_NAMES.items() if foreign not in family.renamed_activations]
    if family.activation_key == "hidden_activation":
        activations = ["gelu_tanh"]
    biases = [kind for kind, switch in family.switches.items() if switch is False]
    known_eps = [max(stack.norm_eps, MIN_EPS)] if family.qk_norm else [stack.norm_eps]
    return [
        *features_of_stack(
            "stack",
            stack,
            placement=family.placement,
            positions=["rotary"],
            norm="rms",
            gated=family.gated,
            qk_norm=family.qk_norm,
            layers_differ=True,
            softcap=family.attention_softcap,
        ),
        ("stack.position.share", position.share, [1.0]),
        *features_of_family_layers(stack, family),
        *([feature_of_width("stack", stack)] if family.divisible_width else []),
        ("stack.norm_eps", stack.norm_eps, known_eps),
        ("stack.activation", stack.activation, activations),
        *((f"stack.bias.{kind}", getattr(stack.biases, kind), [False]) for kind in biases),
    ]


def write_biases(biases: Biases, family: Family) -> Biases:
    """Return the biases for export: layers with the same config key all get biases if one of them has them."""
    switches = family.switches
    has_bias = {switch: any(getattr(biases, kind) for kind in switches if switches[kind] == switch) for switch in
             switches.values() if isinstance(switch, str)}  # fmt: skip
    return Biases(
        **{kind: has_bias[switch] if isinstance(switch, str) else switch for kind, switch in switches.items()}
    )


def _config(spec: DecoderOnlySpec, model_type: str) -> Plain:
    family = FAMILIES[model_type]
    return {
        "architectures": [f"{family.kind}ForCausalLM"],
        "model_type": model_type,
        "vocab_size": spec.vocab_size,
        "max_position_embeddings": spec.max_len,
        "tie_word_embeddings": spec.tie_embeddings,
        **write_stack(spec.stack, family),
        **({LOGIT_CAP: spec.logit_softcap} if family.logit_softcap else {}),
    }


def write_stack(stack: StackSpec, family: Family) -> Plain:
    """Return the keys of config.json that describe a stack with rotary positions; the inverse of `read_stack`.

    With dynamic scaling, `max_position_embeddings` is among them.
    """
    assert isinstance(stack.position, Rotary)
    switches = family.switches.items()
    return {
        **write_rotary(stack.position, by_kind=family.local_base is not None),
        **write_layers(stack, family),
        "hidden_size": stack.d_model,
        "intermediate_size": stack.inner_width,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "num_key_value_heads": stack.kv_heads,
        "head_dim": stack.head_width,
        family.activation_key: ACTIVATION_NAMES[stack.activation],
        "rms_norm_eps": stack.norm_eps,
        "attention_dropout": stack.dropout.attention,
        **({ATTENTION_CAP: stack.attention_softcap} if family.attention_softcap else {}),
        **({"query_pre_attn_scalar": stack.head_width} if family.scales_queries else {}),
        **{switch: getattr(stack.biases, kind) for kind, switch in switches if isinstance(switch, str)},
    }


def _spec(config: Mapping[str, Any], family: Family) -> DecoderOnlySpec:
    check_settings(config, REQUIRED_SETTINGS, family.kind)
    if config.get(ATTENTION_CAP) is not None and not family.attention_softcap:
        raise UserError(f"{ATTENTION_CAP} is set, which Tercet does not support for {family.kind}")
    stack = read_stack(config, family)
    return DecoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=read_context(config, stack.position),
        tie_embeddings=read_bool(config, "tie_word_embeddings", family.tie_embeddings),
        scale_embedding=family.scale_embedding,
        logit_softcap=_read_softcap(config, family, LOGIT_CAP) if family.logit_softcap else None,
        stack=stack,
    )


def read_stack(config: Mapping[str, Any], family: Family) -> StackSpec:
    """Return the spec of the stack in the config of a Llama, or in another config with the same keys.

    Raises:
        UserError: If a value is missing or invalid, or the rotation is scaled in an unknown way.
    """
    heads, norm_eps = read_value(config, "num_attention_heads", int), read_value(config, "rms_norm_eps", float)
    position, activation = read_positions(config, family), read_value(config, family.activation_key, str)
    if family.qk_norm and norm_eps < MIN_EPS:
        raise UserError(f"rms_norm_eps is {norm_eps}; for {family.kind} it must be at least {MIN_EPS}")
    return StackSpec(
        d_model=read_value(config, "hidden_size", int),
        n_layers=read_value(config, "num_hidden_layers", int),
        n_heads=heads,
        n_kv_heads=read_value(config, "num_key_value_heads", int, heads),
        d_head=family.head_dim if config.get("head_dim") is None else read_value(config, "head_dim", int),
        d_ff=read_value(config, "intermediate_size", int),
        position=position,
        window=read_window(config, family, read_context(config, position), keep=position.local_base is not None),
        placement=family.placement,
        norm="rms",
        norm_eps=norm_eps,
        norm_bias=False,
        activation=read_activation(
            {"hidden_act": family.renamed_activations.get(activation, activation)}, "hidden_act"
        ),
        gated=family.gated,
        bias=_read_biases(config, family),
        qk_norm=family.qk_norm,
        attention_softcap=_read_softcap(config, family, ATTENTION_CAP) if family.attention_softcap else None,
        dropout=Dropout(attention=read_value(config, "attention_dropout", float, 0.0)),
    )


def _read_softcap(config: Mapping[str, Any], family: Family, key: str) -> float | None:
    keys = {**family.softcaps, **config}
    return None if keys.get(key) is None else read_value(keys, key, float)


def query_scale(config: Mapping[str, Any], family: Family, head_width: int) -> float:
    """Return the number that queries are multiplied by if scores are divided by the root of another width.

    Raises:
        UserError: If the width is not positive.
    """
    if not family.scales_queries:
        return 1.0
    if (width := read_value(config, "query_pre_attn_scalar", float, 256.0)) <= 0:
        raise UserError(f"query_pre_attn_scalar is {width}; it must be above 0")
    return math.sqrt(head_width / width)


def _read_biases(config: Mapping[str, Any], family: Family) -> bool | Biases:
    biases = Biases(
        **{
            kind: read_bool(config, switch, False) if isinstance(switch, str) else switch
            for kind, switch in family.switches.items()
        }
    )
    return biases.qkv if biases.qkv == biases.out == biases.feedforward else biases


def llama_source(native_name: str, family: Family, norm_eps: float, query_scale: float = 1.0) -> Source:
    """Return the tensor in `transformers` that corresponds to the tensor `native_name` of Tercet.

    Args:
        native_name: Name of the tensor in Tercet.
        family: Family of the model in `transformers`.
        norm_eps: Epsilon of the norms.
        query_scale: Number that queries are multiplied by.
    """
    names = NAMES if family.placement == "pre" else NAMES | BRANCH_NORMS
    scale = 1.0
    if native_name.endswith(QUERIES_KEYS):
        # In `transformers`, norms on queries and keys have the epsilon e of the other norms; in Tercet it is `QK_EPS`.
        # x / sqrt(mean(x^2) + e) does not change if x is multiplied by c and e by c^2, so the weights are multiplied
        # by c. The scale of the queries is that of the norm, if there is one.
        scale = math.sqrt(QK_EPS / norm_eps) if family.qk_norm else query_scale if ".query." in native_name else 1.0
    elif native_name.endswith("query_norm.weight"):
        scale = query_scale
    is_norm = native_name.endswith(NORMS) or native_name.endswith(QK_NORMS)
    offset = family.norm_offset * scale if is_norm else 0.0
    return Source(name=foreign_name(native_name, names), scale=scale, offset=offset)
