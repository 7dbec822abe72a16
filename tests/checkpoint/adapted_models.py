"""Specs of small models, one per family that supports adapters, and random weights for them."""

from typing import Any

import torch

from tercet.models import AnyModel

GPT2: dict[str, Any] = {
    "family": "decoder-only", "max_len": 11,
    "stack": {"d_model": 20, "n_layers": 2, "n_heads": 5, "d_ff": 34, "activation": "gelu_tanh"},
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "family": "decoder-only", "max_len": 11, "tie_embeddings": False,
    "stack": {"d_model": 24, "n_layers": 2, "n_heads": 6, "n_kv_heads": 2, "d_ff": 34, "position": "rotary",
              "norm": "rms", "norm_bias": False, "activation": "silu", "gated": True, "bias": False},
}  # fmt: skip
QWEN3 = {**LLAMA, "stack": {**LLAMA["stack"], "qk_norm": True, "d_head": 6, "norm_eps": 1e-6}}
POST = {"d_model": 20, "n_layers": 2, "n_heads": 5, "d_ff": 34, "placement": "post"}
BERT: dict[str, Any] = {
    "family": "encoder-only", "max_len": 11, "n_segments": 2, "embedding_norm": True, "pooler": True,
    "masked_head": None, "classifier": {"labels": ["a", "b", "c"], "pooling": "pooler"}, "stack": POST,
}  # fmt: skip
MARIAN: dict[str, Any] = {
    "family": "encoder-decoder", "max_len": 11, "scale_embedding": True, "logit_bias": True,
    "encoder": {**POST, "position": "sinusoidal", "activation": "relu"},
    "decoder": {**POST, "position": "sinusoidal", "activation": "relu"},
}  # fmt: skip
RELATIVE = {"d_model": 20, "n_layers": 2, "n_heads": 5, "d_head": 6, "d_ff": 34, "position": "relative_bias",
            "norm": "rms", "norm_bias": False, "bias": False, "activation": "gelu_tanh", "gated": True}  # fmt: skip
T5: dict[str, Any] = {
    "family": "encoder-decoder", "max_len": 11, "scale_embedding": True, "encoder": RELATIVE, "decoder": RELATIVE,
}  # fmt: skip
SANDWICH = {**LLAMA["stack"], "placement": "sandwich"}
T5GEMMA: dict[str, Any] = {
    "family": "encoder-decoder", "max_len": 11, "embedding_norm": True, "encoder": SANDWICH, "decoder": SANDWICH,
}  # fmt: skip
DISTILBERT = {**BERT, "n_segments": 0, "pooler_activation": "relu", "stack": {**POST, "norm_eps": 1e-12}}
EUROBERT: dict[str, Any] = {
    "family": "encoder-only", "max_len": 11, "tie_embeddings": False, "masked_head": None, "stack": LLAMA["stack"],
    "classifier": {"labels": ["a", "b", "c"]},
}  # fmt: skip
MODERNBERT: dict[str, Any] = {
    "family": "encoder-only", "max_len": 11, "embedding_norm": True, "masked_head": None,
    "classifier": {"labels": ["a", "b", "c"], "transform": True},
    "stack": {"d_model": 24, "n_layers": 2, "n_heads": 6, "d_ff": 34, "position": "rotary", "norm_bias": False,
              "gated": True, "bias": False, "first_norm": False},
}  # fmt: skip
GEMMA = {**LLAMA, "tie_embeddings": True, "scale_embedding": True}
UMT5 = {
    **T5,
    **{side: {**RELATIVE, "position": {"kind": "relative_bias", "per_layer": True}} for side in ("encoder", "decoder")},
}
MODELS = {"gpt2": GPT2, "llama": LLAMA, "qwen3": QWEN3, "bert": BERT, "marian": MARIAN, "t5": T5, "t5gemma": T5GEMMA}


def randomize(model: AnyModel, seed: int) -> AnyModel:
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model
