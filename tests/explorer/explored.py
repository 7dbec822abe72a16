"""Tiny random models of each family with tokenizers, and tensors read with NumPy only."""

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tercet.checkpoint import TrainedModel
from tercet.models import (
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.nn import ALiBi, Rotary, Sinusoidal
from tercet.tokens import Characters, Tokenizer

SCRIPT = "<script>alert(1)</script>"
TOKENIZER = Tokenizer.train(
    Characters(alphabet="abcdefghij .<>/()1lrstpu\n", pad=True, bos=True, eos=True, mask=True), []
)
SOURCE_TOKENIZER = Tokenizer.train(Characters(alphabet="uvwxyz .", pad=True, bos=True, eos=True), [])
STACK = StackSpec(d_model=24, n_layers=2, n_heads=4, d_ff=31)
TEXT = "abc de"

GPTS: dict[str, dict[str, Any]] = {
    "pre, learned": {},
    "sandwich, rotary, grouped, gated, qk norm": {
        "stack": {
            "position": Rotary(), "placement": "sandwich", "norm": "rms", "norm_bias": False,
            "n_kv_heads": 2, "gated": True, "bias": False, "activation": "silu", "qk_norm": True,
        },
        "logit_softcap": 5.0,
    },
    "post, ALiBi": {"stack": {"position": ALiBi(), "placement": "post", "activation": "relu"}, "pad_vocab_to": 16},
    "branch, sinusoidal, one key head": {
        "stack": {"position": Sinusoidal(), "placement": "branch", "n_kv_heads": 1, "d_head": 5},
        "scale_embedding": True, "tie_embeddings": False,
    },
}  # fmt: skip
BERTS: dict[str, dict[str, Any]] = {
    "as the paper": {
        "stack": {"placement": "post"}, "embedding_norm": True, "n_segments": 2,
        "masked_head": MaskedHead(transform=True, bias=True),
    },
    "no first norm, plain head": {
        "stack": {"position": Rotary(), "first_norm": False, "norm_bias": False, "gated": True,
                  "activation": "silu"},
        "embedding_norm": True,
    },
    "pre, rotary, plain head": {"stack": {"position": Rotary()}, "masked_head": MaskedHead(bias=True)},
}  # fmt: skip
TRANSLATORS: dict[str, dict[str, Any]] = {
    "1 + 2": {"layers": (1, 2), "stack": {"n_heads": 2}},
    "6 + 3": {"layers": (6, 3), "stack": {"placement": "post", "n_heads": 2}},
    "3 + 6": {"layers": (3, 6), "stack": {"position": Rotary(), "n_heads": 2, "n_kv_heads": 1}, "own": True},
}
FAST = ("sandwich, rotary, grouped, gated, qk norm", "as the paper", "1 + 2")  # one of each family
ALL_MODELS = [
    pytest.param(name, id=name, marks=() if name in FAST else pytest.mark.exhaustive)
    for name in (*GPTS, *BERTS, *TRANSLATORS)
]


def trained_model(name: str, *, max_len: int = 23) -> TrainedModel:
    """Return the model of this name in the tables above."""
    spec: Any
    if name in GPTS:
        settings = dict(GPTS[name])
        stack = replace(STACK, **settings.pop("stack", {}))
        spec = DecoderOnlySpec(vocab_size=TOKENIZER.vocab_size, max_len=max_len, stack=stack, **settings)
        return wrap_model(DecoderOnly(spec))
    if name in BERTS:
        settings = dict(BERTS[name])
        stack = replace(STACK, **settings.pop("stack"))
        spec = EncoderOnlySpec(vocab_size=TOKENIZER.vocab_size, max_len=max_len, stack=stack, **settings)
        return wrap_model(EncoderOnly(spec))
    settings = dict(TRANSLATORS[name])
    stack = replace(STACK, **settings["stack"])
    has_own_source = settings.get("own", False)
    spec = EncoderDecoderSpec(
        encoder=replace(stack, n_layers=settings["layers"][0]),
        decoder=replace(stack, n_layers=settings["layers"][1]),
        vocab_size=TOKENIZER.vocab_size,
        source_vocab_size=SOURCE_TOKENIZER.vocab_size if has_own_source else None,
        share_embeddings=not has_own_source,
        max_len=max_len,
    )
    return wrap_model(EncoderDecoder(spec), source=SOURCE_TOKENIZER if has_own_source else TOKENIZER)


def wrap_model(model: Any, *, source: Tokenizer = TOKENIZER) -> TrainedModel:
    with torch.no_grad():
        for parameter in model.parameters():  # fresh weights are small or zero, which would hide errors
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return TrainedModel.wrap(model.eval(), TOKENIZER, source_tokenizer=source, folder=Path("runs", "tiny", "best"))


def default_query(name: str) -> dict[str, Any]:
    """Return a query for that model."""
    if name in BERTS:
        originals = [TOKENIZER.bos_id, *TOKENIZER.encode(TEXT), TOKENIZER.eos_id]
        masked = [token if place not in (2, 5) else TOKENIZER.mask_id for place, token in enumerate(originals)]
        return {"ids": masked, "original_ids": originals}
    if name in TRANSLATORS:
        has_own_source = TRANSLATORS[name].get("own", False)
        return {"text": "uvw xyz" if has_own_source else "bad cafe", "target": "abcd"}
    return {"text": TEXT}


def block_tensors(answer: dict[str, Any]) -> dict[str, Any]:
    """Return the packed tensors of a block. Tensors that equal others are included under their own names."""
    return answer["tensors"] | {name: answer["tensors"][same_tensor] for name, same_tensor in answer["same"].items()}


def numbers(packed: dict[str, Any]) -> np.ndarray:
    """Read a packed tensor from its description, without Tercet's code."""
    kinds = {"float32": "<f4", "uint16": "<u2", "uint8": "|u1", "bool": "|u1"}
    found = np.frombuffer(base64.b64decode(packed["data"]), kinds[packed["type"]]).reshape(packed["shape"])
    if packed["type"] == "bool":
        return found.astype(bool)
    return found if packed["type"] == "float32" else packed["low"] + packed["step"] * found.astype(np.float64)


def near(packed: dict[str, Any]) -> float:
    """Return how far a number may differ from the model's."""
    return 1e-5 + (packed["step"] / 2 if packed["type"].startswith("uint") else 0.0)
