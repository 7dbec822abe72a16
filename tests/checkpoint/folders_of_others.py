"""Folders as `transformers` writes them: small random models with a tokenizer of the same vocabulary size."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import tokenizers
import torch
from torch import Tensor

from tercet.models import DecoderOnly, EncoderDecoder

SLOW = 1  # configurations that all but the exhaustive tests use


def seeds(n: int, *, fast: int, slow: int = SLOW) -> list[Any]:
    """Return n random configurations.

    The first `fast` always run, the first `slow` unless slow tests are excluded, and the rest in exhaustive runs.
    """

    def marks(seed: int) -> list[pytest.MarkDecorator]:
        return [pytest.mark.exhaustive] if seed >= max(fast, slow) else [pytest.mark.slow] if seed >= fast else []

    return [pytest.param(seed, marks=marks(seed)) for seed in range(n)]


def shaken(model: Any, seed: int, *, by: float = 0.15) -> Any:
    """Add noise to the weights: initial weights are small and biases zero, but every part must matter."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * by)
        for name, buffer in model.named_buffers():
            if name == "final_logits_bias":
                buffer.add_(torch.randn(buffer.shape, generator=generator))
    return model.eval()


def words(n: int, special: Sequence[str] = ("<pad>", "<s>", "</s>")) -> tokenizers.Tokenizer:
    """Return a tokenizer of n ids: the special ones, and words w3, w4, ..."""
    names = [*special, *(f"w{number}" for number in range(len(special), n))]
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=names[-1])
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in special])
    return library


def write_folder(folder: Path, model: Any, *, n_ids: int | None = None, pickled: bool = False) -> Path:
    """Save a model with its tokenizer, with weights in safetensors or in a pickle, and return the folder."""
    model.save_pretrained(folder)
    words(n_ids or model.config.vocab_size).save(str(folder / "tokenizer.json"))
    if pickled:
        torch.save(model.state_dict(), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    return folder


def edit_folder(folder: Path, change: dict[str, Tensor | None]) -> Path:
    """Change, add or remove (None) some tensors of a folder, and return it."""
    state = safetensors.torch.load_file(folder / "model.safetensors") | change
    tensors = {name: tensor.contiguous() for name, tensor in state.items() if tensor is not None}
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    return folder


@torch.no_grad()
def generate_greedily(
    model: DecoderOnly | EncoderDecoder, prompt: Tensor, n: int, *, source: Tensor | None = None
) -> Tensor:
    """Return the n most likely tokens after each row of `prompt`, one step at a time."""
    lengths, capacity = torch.full((len(prompt),), prompt.shape[1]), prompt.shape[1] + n
    if isinstance(model, EncoderDecoder):
        assert source is not None
        logits, cache = model.start(prompt, lengths, source=source, capacity=capacity)
    else:
        logits, cache = model.start(prompt, lengths, capacity=capacity)
    tokens = [logits.argmax(-1)]
    for _ in range(n - 1):
        tokens.append(model.step(tokens[-1], cache).argmax(-1))
    return torch.stack(tokens, dim=1)
