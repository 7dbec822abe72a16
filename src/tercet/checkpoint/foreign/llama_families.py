"""Differences between Llama and related models of the `transformers` library.

Llama     Touvron et al. (2023); two settings add biases to attention and to the feed-forward network
Mistral   Jiang et al. (2023); no biases; older models have sliding-window attention
Qwen2     Yang et al. (2024); biases on queries, keys and values
Qwen3     Yang et al. (2025); norms on the queries and keys of each head
Gemma     Mesnard et al. (2024); scaled embeddings, GELU by tanh, and norms that multiply by 1 + weight
Gemma 2   Riviere et al. (2024); norms before and after each sublayer, bounds of attention scores and logits; every
          other layer has a sliding window
Gemma 3   Kamath et al. (2025); norms before and after each sublayer and on queries and keys; most layers have a
          sliding window and another base
SmolLM3   Bakouch et al. (2025); some layers without positions
OLMo 2    OLMo team (2024); norms after each sublayer only, and on the queries and keys of all heads together
Arcee     Arcee AI (2025); ReLU squared without a gate
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tercet.nn.specs import Placement, QKNorm

Switch = bool | str  # a constant, or the key of the config that contains it


@dataclass(frozen=True, kw_only=True)
class Family:
    """Differences between the model types.

    Attributes:
        kind: Name, which is the prefix of the class in `transformers`.
        qkv_bias, out_bias, feedforward_bias: True if these linear layers have biases; or the config key that enables
            them.
        qk_norm: If True, the queries and keys of each head are normalized; with "all_heads", those of all together.
        gated: If True, the feed-forward network has a gate.
        divisible_width: If True, d_model must be a multiple of n_heads, whatever the width of a head.
        head_dim: Default width of a head; None for d_model / n_heads.
        window: True if attention has a sliding window; or the config key that enables it.
        layers: How layers without `layer_types` in the config get their kind: "window" (all have a window), "first"
            (those from `max_window_layers` on have one), "pattern" (all but each n-th one have one) or "no_rope"
            (those without a rotation have one).
        base: Default base of the rotation.
        local_base: Default base in layers with a window; None if it is that of the other layers.
        placement: Placement of the norms.
        pattern: With layers "pattern", the default of n: every n-th layer has no window.
        logit_softcap, attention_softcap: If True, the logits or the attention scores may be bounded.
        softcaps: Default bounds by config key.
        scales_queries: If True, scores are divided by the root of `query_pre_attn_scalar`.
        activation_key: Config key of the activation function.
        norm_offset: Number that is added to the stored weights of norms.
        scale_embedding: If True, embeddings are multiplied by sqrt(d_model).
        tie_embeddings: Default of tie_word_embeddings.
        renamed_activations: Names in the config that mean another activation, with the name of the latter.
    """

    kind: str
    qkv_bias: Switch = False
    out_bias: Switch = False
    feedforward_bias: Switch = False
    qk_norm: QKNorm = False
    gated: bool = True
    divisible_width: bool = False
    head_dim: int | None = None
    window: Switch = False
    layers: Literal["window", "first", "pattern", "no_rope"] = "window"
    base: float = 10_000.0
    local_base: float | None = None
    placement: Placement = "pre"
    pattern: int = 6
    logit_softcap: bool = False
    attention_softcap: bool = False
    softcaps: Mapping[str, float] = field(default_factory=dict[str, float])
    scales_queries: bool = False
    activation_key: str = "hidden_act"
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
    "qwen2": Family(kind="Qwen2", qkv_bias=True, window="use_sliding_window", layers="first"),
    "qwen3": Family(
        kind="Qwen3", qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, head_dim=128,
        window="use_sliding_window", layers="first",
    ),
    "smollm3": Family(
        kind="SmolLM3", qkv_bias="attention_bias", out_bias="attention_bias", feedforward_bias="mlp_bias",
        window="use_sliding_window", layers="no_rope", base=2_000_000.0, tie_embeddings=True,
    ),
    "gemma": Family(
        kind="Gemma", qkv_bias="attention_bias", out_bias="attention_bias", head_dim=256, norm_offset=1.0,
        scale_embedding=True, tie_embeddings=True, renamed_activations={"gelu": "gelu_pytorch_tanh"},
    ),
    "gemma2": Family(
        kind="Gemma2", qkv_bias="attention_bias", out_bias="attention_bias", head_dim=256, window=True,
        layers="pattern", pattern=2, placement="sandwich", norm_offset=1.0, scale_embedding=True, tie_embeddings=True,
        logit_softcap=True, attention_softcap=True, scales_queries=True, divisible_width=True,
        softcaps={"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0},
        activation_key="hidden_activation",
    ),
    "gemma3_text": Family(
        kind="Gemma3", qkv_bias="attention_bias", out_bias="attention_bias", qk_norm=True, head_dim=256,
        window=True, layers="pattern", base=1_000_000.0, local_base=10_000.0, placement="sandwich", norm_offset=1.0,
        scale_embedding=True, tie_embeddings=True, logit_softcap=True, scales_queries=True, divisible_width=True,
        activation_key="hidden_activation",
    ),
    "olmo2": Family(
        kind="Olmo2", qkv_bias="attention_bias", out_bias="attention_bias", qk_norm="all_heads", placement="branch",
    ),
    "arcee": Family(
        kind="Arcee", qkv_bias="attention_bias", out_bias="attention_bias", feedforward_bias="mlp_bias", gated=False,
        divisible_width=True,
    ),
}  # fmt: skip
