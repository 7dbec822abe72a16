"""Small models with byte-level BPE as GGUF files, and the same files as loaded by `transformers`."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import transformers
from folders_of_others import shaken
from transformers import modeling_utils

from tercet.checkpoint import Card, convert, save_model
from tercet.models import DecoderOnly, DecoderOnlySpec, StackSpec
from tercet.nn import Learned, NoPosition, Rotary, Sinusoidal
from tercet.tokens import BPE, Tokenizer

TEXT = "the cat sat on the mat, and the dog sat on the cat. 1984 wasn't like 2024! naïve café " * 3
BYTES = Tokenizer.train(BPE(vocab_size=300, pad=True, bos=True), [TEXT])
LLAMA = StackSpec(
    d_model=24, n_layers=2, n_heads=4, n_kv_heads=2, d_head=6, d_ff=29, position=Rotary(base=500.0), norm="rms",
    norm_bias=False, norm_eps=1e-3, bias=False, activation="silu", gated=True,
)  # fmt: skip
GPT2 = StackSpec(d_model=24, n_layers=2, n_heads=4, d_ff=96, norm_eps=1e-3, activation="gelu_tanh")


def spec(stack: StackSpec, **changes: Any) -> DecoderOnlySpec:
    whole = DecoderOnlySpec(vocab_size=BYTES.vocab_size, max_len=37, tie_embeddings=False, stack=stack)
    return replace(whole, **changes)


def llama(seed: int = 0, stack: dict[str, Any] | None = None, **changes: Any) -> DecoderOnly:
    return shaken(DecoderOnly(spec(replace(LLAMA, **(stack or {})), **changes), seed=seed), seed)


def gpt2(seed: int = 0, stack: dict[str, Any] | None = None, **changes: Any) -> DecoderOnly:
    return shaken(DecoderOnly(spec(replace(GPT2, **(stack or {})), **changes), seed=seed), seed)


def random_llama(seed: int, *, biased: bool = False, **features: Any) -> DecoderOnly:
    """Return a random Llama, with other features of its stack."""
    draw = random.Random(seed)
    heads, tied = draw.choice([1, 2, 3, 4, 6]), draw.random() < 0.5
    stack: dict[str, Any] = {
        "n_heads": heads, "n_kv_heads": draw.choice([None, *(n for n in (1, 2, 3) if heads % n == 0)]),
        "d_model": heads * 6, "d_head": draw.choice([None, 4, 10]), "n_layers": draw.choice([1, 2, 3]),
        "d_ff": draw.choice([None, 31]), "position": Rotary(base=draw.choice([10_000.0, 37.0, 500_000.0])),
        "norm_eps": draw.choice([1e-6, 1e-5, 1e-3]), "bias": biased,
        **features,
    }  # fmt: skip
    return llama(
        seed, stack, max_len=draw.choice([37, 64]), pad_vocab_to=draw.choice([1, 64]), tie_embeddings=tied,
        scale_embedding=not tied and draw.random() < 0.5,
    )  # fmt: skip


def random_gpt2(seed: int, *, wide: bool = True) -> DecoderOnly:
    """Return a random GPT-2. `wide`: allow any width of the network; `transformers` assumes 4 times d_model."""
    draw = random.Random(seed)
    heads, tied = draw.choice([1, 2, 3, 4]), draw.random() < 0.5
    positions = (Learned(), Sinusoidal(), NoPosition())
    stack: dict[str, Any] = {
        "n_heads": heads, "d_model": heads * 6, "n_layers": draw.choice([1, 2, 3]),
        "d_ff": draw.choice([None, 31]) if wide else None, "bias": draw.random() < 0.5,
        "norm_bias": draw.random() < 0.5, "position": draw.choice(positions), "norm_eps": draw.choice([1e-5, 1e-3]),
    }  # fmt: skip
    return gpt2(
        seed, stack, max_len=draw.choice([37, 64]), pad_vocab_to=draw.choice([1, 64]), tie_embeddings=tied,
        scale_embedding=not tied and draw.random() < 0.5,
    )  # fmt: skip


def save_folder(folder: Path, model: DecoderOnly, tokenizer: Tokenizer = BYTES, template: str | None = None) -> Path:
    save_model(folder, model, tokenizer, Card(name="small"), chat_template=template)
    return folder


def export_model(tmp_path: Path, model: DecoderOnly, tokenizer: Tokenizer = BYTES) -> Path:
    """Save and convert a model, and return the GGUF file."""
    return convert(save_folder(tmp_path / "ours", model, tokenizer), tmp_path / "theirs", "gguf") / "model.gguf"


def load_in_transformers(file: Path, monkeypatch: pytest.MonkeyPatch, **config: Any) -> Any:
    """Load a file with AutoModelForCausalLM, which requires an unrelated package without using it.

    Args:
        config: Settings that matter here and that their loader ignores.
    """
    monkeypatch.setattr(modeling_utils, "is_accelerate_available", lambda *_: True)
    their_config = transformers.AutoConfig.from_pretrained(file.parent, gguf_file=file.name)
    for key, value in config.items():
        setattr(their_config, key, value)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, config=their_config, attn_implementation="eager"
    )
    return model.eval()
