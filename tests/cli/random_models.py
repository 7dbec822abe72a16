"""Folders of models whose random weights are large enough that different texts have different results."""

from collections.abc import Mapping
from pathlib import Path

import torch

from tercet.checkpoint import Card, save_model
from tercet.models import AnyModel
from tercet.tokens import Tokenizer


def save_random_models(folder: Path, models: Mapping[str, AnyModel], tokenizer: Tokenizer) -> None:
    """Draw the weights of all matrices again, and save each model in `folder` under its name."""
    torch.manual_seed(4)
    for name, model in models.items():
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(std=0.3)
        save_model(folder / name, model, tokenizer, Card(name=name))
