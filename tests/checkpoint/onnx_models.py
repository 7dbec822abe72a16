"""Random models of every family, exported to ONNX, and calls of their graphs."""

import random
from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import onnxruntime
import torch
from converted import save_folder
from folders_of_others import shaken

from tercet.checkpoint import convert
from tercet.models import (
    AnyModel,
    Classifier,
    DecoderOnly,
    DecoderOnlySpec,
    EncoderDecoder,
    EncoderDecoderSpec,
    EncoderOnly,
    EncoderOnlySpec,
    MaskedHead,
    StackSpec,
)
from tercet.nn import ALiBi, Learned, NoPosition, RelativeBias, Rotary, Sinusoidal

STACK = StackSpec(d_model=12, n_layers=1, n_heads=3, d_ff=19)
POSITIONS = [
    Learned(), Sinusoidal(), Rotary(base=37.0), ALiBi(), NoPosition(), RelativeBias(n_buckets=8, max_distance=9),
]  # fmt: skip
MAX_LEN = 11
LABELS = ("good", "bad", "neither")
HEADS: list[dict[str, Any]] = [
    {"masked_head": MaskedHead(transform=True, bias=True), "pooler": True, "next_sentence": True, "n_segments": 2},
    {"masked_head": None, "classifier": Classifier(labels=LABELS)},
    {"masked_head": None, "classifier": Classifier(labels=LABELS, pooling="first"), "n_segments": 1},
    {
        "masked_head": None,
        "pooler": True,
        "classifier": Classifier(labels=LABELS, pooling="pooler"),
        "n_segments": 3,
        "pooler_activation": "relu",
    },
    {"masked_head": MaskedHead(), "classifier": Classifier(labels=LABELS, over="tokens")},
]


def stack(draw: random.Random, number: int, **overrides: Any) -> StackSpec:
    heads, rms = draw.choice([1, 2, 4]), draw.random() < 0.4
    return replace(
        STACK,
        **{
            "n_heads": heads, "n_kv_heads": draw.choice([None, 1]), "d_model": 12, "d_head": draw.choice([4, 6]),
            "n_layers": draw.choice([1, 2]), "bias": draw.random() < 0.6,
            "position": POSITIONS[number % len(POSITIONS)],
            "activation": draw.choice(["relu", "gelu", "gelu_tanh", "silu", "relu_squared"]),
            "gated": draw.random() < 0.5, "placement": draw.choice(["pre", "post", "sandwich", "branch"]),
            "norm": "rms" if rms else "layer", "norm_bias": not rms, "qk_norm": draw.random() < 0.3,
            **overrides,
        },
    )  # fmt: skip


def common(draw: random.Random) -> dict[str, Any]:
    return {
        "vocab_size": 17, "max_len": MAX_LEN, "pad_vocab_to": draw.choice([1, 64]),
        "scale_embedding": draw.random() < 0.5,
        "tie_embeddings": draw.random() < 0.6, "embedding_norm": draw.random() < 0.4,
        "logit_softcap": draw.choice([None, 5.0]),
    }  # fmt: skip


def random_model(family: str, seed: int) -> AnyModel:
    draw = random.Random(seed)
    if family == "writing":
        return shaken(DecoderOnly(DecoderOnlySpec(stack=stack(draw, seed), **common(draw))), seed)
    if family == "reading":
        spec = EncoderOnlySpec(
            stack=stack(draw, seed), **HEADS[seed % 5 if seed < 5 else draw.randrange(5)], **common(draw)
        )
        return shaken(EncoderOnly(spec), seed)
    separate = draw.random() < 0.4
    spec = EncoderDecoderSpec(
        encoder=stack(draw, seed), decoder=stack(draw, seed // 5), share_embeddings=not separate,
        source_vocab_size=13 if separate else None, logit_bias=draw.random() < 0.5, **common(draw),
    )  # fmt: skip
    return shaken(EncoderDecoder(spec), seed)


def export_model(tmp_path: Path, model: AnyModel) -> Path:
    source_size = getattr(model.spec, "source_vocab_size", None)
    return convert(save_folder(tmp_path / "ours", model, source_size), tmp_path / "theirs", "onnx")


@lru_cache(maxsize=4)
def open_session(path: Path) -> onnxruntime.InferenceSession:
    """Return the session of a graph; its creation takes longer than a call of a tiny graph."""
    return onnxruntime.InferenceSession(path)


def answers(path: Path, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    session = open_session(path)
    arrays = session.run(None, {name: tensor.numpy() for name, tensor in inputs.items()})
    names = [output.name for output in session.get_outputs()]
    return {name: torch.from_numpy(array) for name, array in zip(names, arrays, strict=True)}


def logits_of_calls(
    path: Path, calls: Iterable[dict[str, torch.Tensor]], stack: StackSpec, *, batch: int, cross: bool = False
) -> torch.Tensor:
    """Return the logits of all calls, each of which has the `present` of the previous one as its past."""
    parts = ("decoder.key", "decoder.value", "encoder.key", "encoder.value") if cross else ("key", "value")
    names = [f"{layer}.{part}" for layer in range(stack.n_layers) for part in parts]
    past = {name: torch.zeros(batch, stack.kv_heads, 0, stack.head_width) for name in names}
    logits = []
    for inputs in calls:
        found = answers(path, inputs | {f"past_key_values.{name}": table for name, table in past.items()})
        assert list(found) == ["logits", *(f"present.{name}" for name in names)]
        for name in names:
            old, new = past[name], found[f"present.{name}"]
            assert torch.equal(new[:, :, : old.shape[2]], old)
            past[name] = new
        logits.append(found["logits"])
    return torch.cat(logits, dim=1)
