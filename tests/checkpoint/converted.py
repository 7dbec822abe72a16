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


def save_folder(folder: Path, model: AnyModel, source_size: int | None = None) -> Path:
    """Save a model with a tokenizer of the same vocabulary size, and return the folder."""
    source = None if source_size is None else tokenizer(source_size)
    save_model(folder, model, tokenizer(model.spec.vocab_size), Card(name="small"), source_tokenizer=source)
    return folder


def export_model(tmp_path: Path, model: AnyModel, source_size: int | None = None) -> Path:
    """Save and convert a model, and return the `transformers` folder."""
    return convert(save_folder(tmp_path / "ours", model, source_size), tmp_path / "theirs", "hf")


def load_in_transformers(folder: Path, kind: Any) -> Any:
    """Load a folder by an Auto class; no tensor may be missing, unexpected or of another shape."""
    model, loading_info = kind.from_pretrained(folder, output_loading_info=True, attn_implementation="eager")
    assert not any(loading_info.values()), loading_info
    return model.eval()


def tensors(folder: Path) -> dict[str, Tensor]:
    return safetensors.torch.load_file(folder / "model.safetensors")


def round_trip(tmp_path: Path, theirs: Path, *, unread: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, Any]]:
    """Convert a `transformers` folder to ours and back; tensors must be bitwise identical. Return both configs.

    Args:
        unread: Names of tensors that no forward pass of `transformers` reads.
    """
    ours = convert(theirs, tmp_path / "in")
    assert json.loads((ours / "config.json").read_text())["family"]
    exported = convert(ours, tmp_path / "out", "hf")
    before, after = tensors(theirs), tensors(exported)
    read = {name: tensor for name, tensor in before.items() if name not in unread}
    assert read.keys() == after.keys() - set(unread)
    for name, tensor in read.items():
        assert torch.equal(tensor, after[name]), name
    first, second = load_model(ours).model.state_dict(), load_model(exported).model.state_dict()
    assert all(torch.equal(second[name], tensor) for name, tensor in first.items())
    return tuple(json.loads((folder / "config.json").read_text()) for folder in (theirs, exported))  # type: ignore[return-value]


def auto_tokenizer(folder: Path) -> Any:
    return transformers.AutoTokenizer.from_pretrained(folder)
