"""Small random models of each family of `transformers` whose folders Tercet opens, and how far the two are apart.

in        the logits of their folder as we open it
out       the logits of ours as they open it, once we have written it
generate  whether the eight tokens that each writes greedily are the same
"""

import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from converted import opened_by_theirs
from folders_of_others import shaken, written, written_greedily
from torch import Tensor

from tercet.checkpoint import convert, load_model
from tercet.models import DecoderOnly

B, T, VOCABULARY = 2, 5, 23


@dataclass(frozen=True, kw_only=True)
class Family:
    """Args:
    draw: a random model of theirs, by its seed.
    written_as: the class of what we write.
    auto: the class of theirs that opens it.
    """

    draw: Callable[[int], Any]
    written_as: str
    auto: Any = transformers.AutoModelForCausalLM


@dataclass(frozen=True)
class Distance:
    read: float
    written: float
    same_tokens: bool | None


def llama_like(kind: Any, config: Any, settings: Callable[[random.Random], dict[str, Any]]) -> Callable[[int], Any]:
    """Models of Llama's kin, each drawn with what its own `settings` draw."""

    def draw(seed: int) -> Any:
        drawn = random.Random(seed)
        heads = drawn.choice([1, 2, 3, 6])
        sizes = {
            "vocab_size": VOCABULARY, "max_position_embeddings": 31, "hidden_size": heads * 10, "intermediate_size": 29,
            "num_attention_heads": heads, "num_hidden_layers": drawn.choice([1, 2, 3]),
            "num_key_value_heads": drawn.choice([n for n in (1, 2, 3, 6) if heads % n == 0]),
            "tie_word_embeddings": drawn.random() < 0.5, "rms_norm_eps": drawn.choice([1e-6, 1e-5, 1e-3]),
            "rope_parameters": {"rope_type": "default", "rope_theta": drawn.choice([10_000.0, 1e6, 37.0])},
            "bos_token_id": None, "eos_token_id": None, "pad_token_id": None,
        }  # fmt: skip
        torch.manual_seed(seed)
        return shaken(kind(config(**sizes | settings(drawn))), seed)

    return draw


def _width(drawn: random.Random) -> dict[str, Any]:
    return {"head_dim": drawn.choice([4, 10, 16])}


FAMILIES = {
    "Llama": Family(
        draw=llama_like(
            transformers.LlamaForCausalLM, transformers.LlamaConfig,
            lambda drawn: _width(drawn) | {"attention_bias": drawn.random() < 0.3, "mlp_bias": drawn.random() < 0.3},
        ),
        written_as="LlamaForCausalLM",
    ),
    "Mistral": Family(
        draw=llama_like(
            transformers.MistralForCausalLM, transformers.MistralConfig,
            lambda drawn: _width(drawn) | {"sliding_window": drawn.choice([None, 31, 47, 13])},
        ),
        written_as="LlamaForCausalLM",
    ),
    "Qwen2": Family(
        draw=llama_like(
            transformers.Qwen2ForCausalLM, transformers.Qwen2Config,
            lambda drawn: {"use_sliding_window": drawn.random() < 0.5, "sliding_window": 13,
                           "max_window_layers": drawn.choice([0, 1, 28])},
        ),
        written_as="Qwen2ForCausalLM",
    ),
    "Qwen3": Family(
        draw=llama_like(
            transformers.Qwen3ForCausalLM, transformers.Qwen3Config,
            lambda drawn: _width(drawn) | {"attention_bias": drawn.random() < 0.4, "hidden_size": 31},
        ),
        written_as="Qwen3ForCausalLM",
    ),
    "Gemma": Family(
        draw=llama_like(
            transformers.GemmaForCausalLM, transformers.GemmaConfig,
            lambda drawn: _width(drawn) | {"attention_bias": drawn.random() < 0.3, "tie_word_embeddings": True,
                                           "hidden_act": drawn.choice(["gelu", "gelu_pytorch_tanh", "silu"])},
        ),
        written_as="GemmaForCausalLM",
    ),
}  # fmt: skip


@torch.no_grad()
def distance(family: Family, seed: int, folder: Path) -> Distance:
    """How far the two are apart on one random model, which is read from and written to folders within `folder`."""
    theirs = family.draw(seed)
    read = load_model(written(folder / "theirs", theirs)).model
    again = opened_by_theirs(convert(folder / "theirs", folder / "again", "hf"), family.auto)
    assert type(again).__name__ == family.written_as
    tokens = torch.randint(VOCABULARY, (B, T), generator=torch.Generator().manual_seed(seed))
    assert isinstance(read, DecoderOnly)
    ours = read(tokens)
    greedy = written_greedily(read, tokens, 8)
    same = torch.equal(greedy, _greedily(theirs, tokens)) and torch.equal(greedy, _greedily(again, tokens))
    return Distance(_apart(ours, theirs(tokens).logits), _apart(ours, again(tokens).logits), same)


def _greedily(theirs: Any, tokens: Tensor) -> Tensor:
    mask = torch.ones_like(tokens)
    return theirs.generate(
        tokens, attention_mask=mask, do_sample=False, max_new_tokens=8, min_new_tokens=8, eos_token_id=None,
        pad_token_id=0,
    )[:, tokens.shape[1] :]  # fmt: skip


def _apart(ours: Tensor, theirs: Tensor) -> float:
    return (ours - theirs).abs().max().item()
