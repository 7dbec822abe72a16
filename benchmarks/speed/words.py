"""Tokenizers for models of random weights: as many words as they have ids."""

from pathlib import Path

import tokenizers

from tercet.checkpoint import Card, TrainedModel, load_model, save_model
from tercet.models import DecoderOnly
from tercet.tokens import Tokenizer

SPECIAL = ("<pad>", "<bos>", "<eos>")


def words(count: int) -> list[str]:
    return [*SPECIAL, *(f"w{number}" for number in range(len(SPECIAL), count))]


def tokenizer(count: int) -> Tokenizer:
    """Return a tokenizer with a token per word; the special tokens come first."""
    names = words(count)
    library = tokenizers.Tokenizer(
        tokenizers.models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=names[-1])
    )
    library.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    library.add_special_tokens([tokenizers.AddedToken(name, special=True) for name in SPECIAL])
    return Tokenizer(library)


def trained_model(model: DecoderOnly, folder: Path) -> TrainedModel:
    """Return the model as loaded from a folder, which is written once."""
    if not (folder / "model.safetensors").is_file():
        save_model(folder, model, tokenizer(model.spec.vocab_size), Card(name="random"))
    return load_model(folder)
