"""Import and export of Llama and related models of the `transformers` library.

Their architecture is that of the preset "llama", with these additions:

    Llama     Touvron et al. (2023); two settings add biases to attention and to the feed-forward network
    Mistral   Jiang et al. (2023); no biases; older models have sliding-window attention
    Qwen2     Yang et al. (2024); biases on queries, keys and values
    Qwen3     Yang et al. (2025); norms on the queries and keys of each head
    Gemma     Mesnard et al. (2024); scaled embeddings, GELU by tanh, and norms that multiply by 1 + weight
    Arcee     Arcee AI (2025); ReLU squared without a gate

`FAMILIES` contains their differences, by model_type. If the window is shorter than the maximum length, the maximum
length is reduced to the window, since up to this length each token attends to all previous ones. Scaled rotations
(Llama 3.1) are not supported.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
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
    read_rotation_base,
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
from tercet.checkpoint.foreign.state_dict import Source, build_model, export_state, foreign_name, strip_names
from tercet.checkpoint.weights import own_tensors
from tercet.config import Plain, UserError
from tercet.messages import print_note
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
NORMS = ("before.weight", "final_norm.weight")  # suffixes of norms, except those on queries and keys
QUERIES_KEYS = ("query.weight", "query.bias", "key.weight", "key.bias")
REQUIRED_SETTINGS = {"use_bidirectional_attention": False}
MIN_EPS = 1e-12  # minimum epsilon of norms on queries and keys, since `llama_source` divides by it
WINDOW, FIRST_WINDOW_LAYER = 4096, 28  # defaults of transformers
Switch = bool | str  # a constant, or the key of the config that contains it


@dataclass(frozen=True, kw_only=True)
class Family:
    """Differences between the model types.

    Attributes:
        kind: Name, which is the prefix of the class in `transformers`.
        qkv_bias, out_bias, feedforward_bias: True if these linear layers have biases; or the config key that enables
            them.
        qk_norm: If True, the queries and keys of each head are normalized.
        gated: If True, the feed-forward network has a gate.
        divisible_width: If True, d_model must be a multiple of n_heads, whatever the width of a head.
        head_dim: Default width of a head; None for d_model / n_heads.
        window: True if attention has a sliding window; or the config key that enables it.
        norm_offset: Number that is added to the stored weights of norms, except those on queries and keys.
        scale_embedding: If True, embeddings are multiplied by sqrt(d_model).
        tie_embeddings: Default of tie_word_embeddings.
        renamed_activations: Names in the config that mean another activation, with the name of the latter.
    """

    kind: str
    qkv_bias: Switch = False
    out_bias: Switch = False
    feedforward_bias: Switch = False
    qk_norm: bool = False
    gated: bool = True
    divisible_width: bool = False
    head_dim: int | None = None
    window: Switch = False
    norm_offset: float = 0.0
    scale_embedding: bool = False
    tie_embeddings: bool = False
    renamed_activations: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def switches(self) -> dict[str, Switch]:
        """The three settings of biases by the fields of `Biases`: each is a constant, or the config key for it."""
        return {"qkv": self.qkv_bias, "out": self.out_bias, "feedforward": self.feedforward_bias}


FAMILIES = {
    "llama": Family(
        kind="Llama", qkv_bias="attention_bias", out_bias="attention_bias", feedforward_bias="mlp_bias",
        divisible_width=True,
    ),
    "mistral": Family(kind="Mistral", window=True),
    "qwen2": Family(kind="Qwen2", qkv_bias=True, window="use_sliding_window"),
    "qwen3": Family(
        kind="Qwen3", qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, head_dim=128,
        window="use_sliding_window",
    ),
    "gemma": Family(
        kind="Gemma", qkv_bias="attention_bias", out_bias="attention_bias", head_dim=256, norm_offset=1.0,
        scale_embedding=True, tie_embeddings=True, renamed_activations={"gelu": "gelu_pytorch_tanh"},
    ),
    "arcee": Family(
        kind="Arcee", qkv_bias="attention_bias", out_bias="attention_bias", feedforward_bias="mlp_bias", gated=False,
        divisible_width=True,
    ),
}  # fmt: skip


def from_llama(config: Mapping[str, Any], state: Mapping[str, Tensor], *, n_ids: int | None = None) -> DecoderOnly:
    """Build the equivalent of a LlamaForCausalLM, a LlamaModel with tied output, or a related class, in eval mode.

    A note is printed if a sliding window reduces the maximum length.

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
    source = partial(llama_source, family=family, norm_eps=spec.stack.norm_eps)
    tied = ("lm_head.weight", "embed_tokens.weight")
    model = build_model(DecoderOnly, spec, tensors, source, kind=family.kind, tied=tied)
    if (context := read_value(config, "max_position_embeddings", int)) != spec.max_len:
        print_note(
            f"tercet: max_len is {spec.max_len}, the sliding_window of this {family.kind}, instead of {context}: "
            "Tercet does not support sliding-window attention"
        )
    return model


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
    return Support(
        f"{family.kind} of transformers",
        [*features_of_family(stack, family), *features_of_vocabulary(spec, embedding_norm=False, tied=tied)],
    )


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
    """Return the model_type that fits a model best. "mistral" is not used: without a window it equals "llama"."""
    stack, biases = spec.stack, spec.stack.biases
    if stack.qk_norm:
        return "qwen3"
    if not stack.gated:
        return "arcee"
    if spec.scale_embedding and spec.tie_embeddings:
        return "gemma"
    only_qkv = biases.qkv and not biases.out and not biases.feedforward
    return "qwen2" if only_qkv and stack.d_model == stack.n_heads * stack.head_width else "llama"


def features_of_family(stack: StackSpec, family: Family) -> list[Feature]:
    """Return features of a stack, each with the values that a family supports."""
    position = stack.position if isinstance(stack.position, Rotary) else Rotary()
    activations = [native for native, foreign in ACTIVATION_NAMES.items() if foreign not in family.renamed_activations]
    biases = [kind for kind, switch in family.switches.items() if switch is False]
    known_eps = [max(stack.norm_eps, MIN_EPS)] if family.qk_norm else [stack.norm_eps]
    return [
        *features_of_stack(
            "stack",
            stack,
            placement="pre",
            positions=["rotary"],
            norm="rms",
            gated=family.gated,
            qk_norm=family.qk_norm,
        ),
        ("stack.position.share", position.share, [1.0]),
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
    }


def write_stack(stack: StackSpec, family: Family) -> Plain:
    """Return the keys of config.json that describe a stack with rotary positions; the inverse of `read_stack`."""
    assert isinstance(stack.position, Rotary)
    switches = family.switches.items()
    return {
        "hidden_size": stack.d_model,
        "intermediate_size": stack.inner_width,
        "num_hidden_layers": stack.n_layers,
        "num_attention_heads": stack.n_heads,
        "num_key_value_heads": stack.kv_heads,
        "head_dim": stack.head_width,
        "hidden_act": ACTIVATION_NAMES[stack.activation],
        "rms_norm_eps": stack.norm_eps,
        "rope_theta": stack.position.base,  # read by older versions
        "rope_parameters": {"rope_type": "default", "rope_theta": stack.position.base},
        "attention_dropout": stack.dropout.attention,
        **{switch: getattr(stack.biases, kind) for kind, switch in switches if isinstance(switch, str)},
    }


def _spec(config: Mapping[str, Any], family: Family) -> DecoderOnlySpec:
    check_settings(config, REQUIRED_SETTINGS, family.kind)
    context, window = read_value(config, "max_position_embeddings", int), _window(config, family)
    return DecoderOnlySpec(
        vocab_size=read_value(config, "vocab_size", int),
        max_len=context if window is None else min(context, window),
        tie_embeddings=read_bool(config, "tie_word_embeddings", family.tie_embeddings),
        scale_embedding=family.scale_embedding,
        stack=read_stack(config, family),
    )


def read_stack(config: Mapping[str, Any], family: Family) -> StackSpec:
    """Return the spec of the stack in the config of a Llama, or in another config with the same keys.

    Raises:
        UserError: If a value is missing or invalid, or the rotation is scaled.
    """
    heads, norm_eps = read_value(config, "num_attention_heads", int), read_value(config, "rms_norm_eps", float)
    activation = read_value(config, "hidden_act", str)
    if family.qk_norm and norm_eps < MIN_EPS:
        raise UserError(f"rms_norm_eps is {norm_eps}; for {family.kind} it must be at least {MIN_EPS}")
    return StackSpec(
        d_model=read_value(config, "hidden_size", int),
        n_layers=read_value(config, "num_hidden_layers", int),
        n_heads=heads,
        n_kv_heads=read_value(config, "num_key_value_heads", int, heads),
        d_head=family.head_dim if config.get("head_dim") is None else read_value(config, "head_dim", int),
        d_ff=read_value(config, "intermediate_size", int),
        position=Rotary(base=read_rotation_base(config, family.kind)),
        norm="rms",
        norm_eps=norm_eps,
        norm_bias=False,
        activation=read_activation(
            {"hidden_act": family.renamed_activations.get(activation, activation)}, "hidden_act"
        ),
        gated=family.gated,
        bias=_read_biases(config, family),
        qk_norm=family.qk_norm,
        dropout=Dropout(attention=read_value(config, "attention_dropout", float, 0.0)),
    )


def _window(config: Mapping[str, Any], family: Family) -> int | None:
    """Return the sliding window in tokens, including the current token; None if no layer has one."""
    switch = family.window
    if not (read_bool(config, switch, False) if isinstance(switch, str) else switch):
        return None
    if config.get("sliding_window", WINDOW) is None:
        return None
    if isinstance(switch, str):  # in these families only some layers have a window
        first = read_value(config, "max_window_layers", int, FIRST_WINDOW_LAYER)
        kinds = config.get("layer_types")
        slides = (
            "sliding_attention" in kinds
            if isinstance(kinds, list)
            else first < read_value(config, "num_hidden_layers", int)
        )
        if not slides:
            return None
    return read_value(config, "sliding_window", int, WINDOW)


def _read_biases(config: Mapping[str, Any], family: Family) -> bool | Biases:
    biases = Biases(
        **{
            kind: read_bool(config, switch, False) if isinstance(switch, str) else switch
            for kind, switch in family.switches.items()
        }
    )
    return biases.qkv if biases.qkv == biases.out == biases.feedforward else biases


def llama_source(native_name: str, family: Family, norm_eps: float) -> Source:
    """Return the tensor in `transformers` that corresponds to the tensor `native_name` of Tercet.

    Args:
        native_name: Name of the tensor in Tercet.
        family: Family of the model in `transformers`.
        norm_eps: Epsilon of the norms.
    """
    # In `transformers`, norms on queries and keys have the epsilon e of the other norms; in Tercet it is `QK_EPS`.
    # x / sqrt(mean(x^2) + e) does not change if x is multiplied by c and e by c^2, so the weights are multiplied by c.
    scale = math.sqrt(QK_EPS / norm_eps) if family.qk_norm and native_name.endswith(QUERIES_KEYS) else 1.0
    return Source(
        name=foreign_name(native_name, NAMES),
        scale=scale,
        offset=family.norm_offset if native_name.endswith(NORMS) else 0.0,
    )
