"""Architectures of llama.cpp to which models are exported, and the features that they support."""

from dataclasses import replace
from typing import Literal

from tercet.checkpoint.foreign.bert import bert_support
from tercet.checkpoint.foreign.eurobert import eurobert_support
from tercet.checkpoint.foreign.features import Support, features_of_layers
from tercet.checkpoint.foreign.gguf_rotation import features_of_rotation
from tercet.checkpoint.foreign.gpt2 import gpt2_support
from tercet.checkpoint.foreign.llama import llama_support
from tercet.checkpoint.foreign.modernbert import is_modernbert, modernbert_support
from tercet.models import AnySpec, DecoderOnlySpec, EncoderOnlySpec
from tercet.nn import Rotary
from tercet.nn.specs import Activation

Architecture = Literal["llama", "qwen3", "arcee", "gpt2"]
EncoderArchitecture = Literal["eurobert", "modern-bert", "bert"]

ACTIVATION: dict[Architecture, Activation] = {
    "llama": "silu",
    "qwen3": "silu",
    "arcee": "relu_squared",
    "gpt2": "gelu_tanh",
}
TITLES = {"llama": "Llama", "qwen3": "Qwen3", "arcee": "Arcee", "gpt2": "GPT-2"}
INTERLEAVED = ("llama", "arcee")  # architectures whose queries and keys rotate in pairs (2i, 2i + 1)
WITHOUT_BIASES = ("qwen3", "arcee")  # llama.cpp reads no biases of their linear layers


def gguf_support(spec: AnySpec) -> Support:
    """Return the features of a model with the values that the GGUF export supports."""
    if isinstance(spec, EncoderOnlySpec):
        return _encoder_support(without_heads(spec))
    if not isinstance(spec, DecoderOnlySpec):
        return Support("GGUF export", [("family", spec.family, ["decoder-only", "encoder-only"])])
    kind, stack = nearest_architecture(spec), spec.stack
    base = gpt2_support(spec) if kind == "gpt2" else llama_support(spec, kind)
    biases = ("qkv", "out", "feedforward") if kind in WITHOUT_BIASES else ()
    return Support(
        f"{TITLES[kind]} of llama.cpp",
        [
            *base.features,
            ("stack.activation", stack.activation, [ACTIVATION[kind]]),
            ("stack.gated", stack.gated, [kind in ("llama", "qwen3")]),
            *((f"stack.bias.{part}", getattr(stack.biases, part), [False]) for part in biases),
            *features_of_layers("stack", stack),
            *features_of_rotation(stack, has_divisors=kind in INTERLEAVED),
        ],
    )


def nearest_architecture(spec: DecoderOnlySpec) -> Architecture:
    """Return the architecture as which a model is exported.

    A model with rotary positions is a Qwen3 if queries and keys are normalized, an Arcee if the feed-forward network
    has no gate, otherwise a Llama; any other model is a GPT-2.
    """
    if not isinstance(spec.stack.position, Rotary):
        return "gpt2"
    if spec.stack.qk_norm:
        return "qwen3"
    return "llama" if spec.stack.gated else "arcee"


def _encoder_support(spec: EncoderOnlySpec) -> Support:
    kind, stack = nearest_encoder_architecture(spec), spec.stack
    biases = [(f"stack.bias.{part}", getattr(stack.biases, part), [False]) for part in ("qkv", "out", "feedforward")]
    if kind == "bert":  # llama.cpp computes GELU by tanh for both
        activations = ("stack.activation", stack.activation, ["gelu_tanh", "gelu"])
        return Support("BERT of llama.cpp", [*bert_support(spec).features, activations])
    if kind == "modern-bert":
        return Support(
            "ModernBERT of llama.cpp",
            [
                *modernbert_support(spec).features,
                ("stack.activation", stack.activation, ["gelu", "gelu_tanh", "silu"]),
                ("stack.norm_bias", stack.norm_bias, [False]),
                *biases,
            ],
        )
    return Support(
        "EuroBERT of llama.cpp",
        [
            *eurobert_support(spec).features,
            *features_of_layers("stack", stack),
            ("stack.position.scaling", stack.position.scaling if isinstance(stack.position, Rotary) else None, [None]),
            ("stack.activation", stack.activation, ["silu"]),
            ("stack.d_head", stack.head_width, [stack.d_model // stack.n_heads]),
            *biases,
        ],
    )


def nearest_encoder_architecture(spec: EncoderOnlySpec) -> EncoderArchitecture:
    """Return the architecture as which an encoder is exported.

    A model with rotary positions is a EuroBERT if its norms are RMS norms, otherwise a ModernBERT. Any other model, and
    one with the placement `post`, is a BERT.
    """
    if is_modernbert(spec):
        return "modern-bert"
    return "eurobert" if isinstance(spec.stack.position, Rotary) and spec.stack.placement != "post" else "bert"


def without_heads(spec: EncoderOnlySpec) -> EncoderOnlySpec:
    """Return the spec of the encoder without the heads, which are not exported."""
    return replace(spec, masked_head=None, pooler=False, next_sentence=False, classifier=None)
