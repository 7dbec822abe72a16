"""Tercet models as folders, and as `transformers` loads them after conversion."""

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
import transformers
from folders_of_others import words
from torch import Tensor

from tercet.checkpoint import Card, convert, load_model, save_model
from tercet.models import AnyModel
from tercet.tokens import Tokenizer

SPECIAL = ("<pad>", "<bos>", "<eos>")


def tokenizer(n: int, special: tuple[str, ...] = SPECIAL) -> Tokenizer:
    return Tokenizer(words(n, special))


def saved(folder: Path, model: AnyModel, source_size: int | None = None) -> Path:
    """Save a model with a tokenizer of the same vocabulary size, and return the folder."""
    source = None if source_size is None else tokenizer(source_size)
    save_model(folder, model, tokenizer(model.spec.vocab_size), Card(name="small"), source_tokenizer=source)
    return folder


def taken_out(tmp_path: Path, model: AnyModel, source_size: int | None = None) -> Path:
    """Save and convert a model, and return the `transformers` folder."""
    return convert(saved(tmp_path / "ours", model, source_size), tmp_path / "theirs", "hf")


def opened_by_theirs(folder: Path, kind: Any) -> Any:
    """Load a folder by an Auto class; no tensor may be missing, unexpected or of another shape."""
    model, told = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not any(told.values()), told
    return model.eval()


def tensors(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def there_and_back(
    tmp_path: Path, theirs: Path, *, unread: tuple[str, ...] = ()
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert a `transformers` folder to ours and back; tensors must be bitwise identical. Return both configs.

    Args:
        unread: Names of tensors that no forward pass of `transformers` reads.
    """
    ours = convert(theirs, tmp_path / "in")
    assert json.loads((ours / "config.json").read_text())["family"]
    again = convert(ours, tmp_path / "out", "hf")
    before, after = tensors(theirs), tensors(again)
    read = {name: tensor for name, tensor in before.items() if name not in unread}
    assert read.keys() == after.keys() - set(unread)
    for name, tensor in read.items():
        assert torch.equal(tensor, after[name]), name
    first, second = load_model(ours).model.state_dict(), load_model(again).model.state_dict()
    assert all(torch.equal(second[name], tensor) for name, tensor in first.items())
    return tuple(json.loads((folder / "config.json").read_text()) for folder in (theirs, again))  # type: ignore[return-value]


def auto_tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)
