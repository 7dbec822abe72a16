"""Run a model for inference, after training or during it."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference_mode(parts: Iterable[nn.Module]) -> Generator[None]:
    """Disable dropout and gradients in the context.

    The mode of each part is restored afterwards, also after an error.

    Use it around single steps, never across a `yield`. A caller that stops iterating, or trains between two tokens,
    then finds the model and the autograd mode unchanged.
    """
    training = [part for part in parts if part.training]
    for part in training:
        part.training = False
    try:
        with torch.inference_mode():
            yield
    finally:
        for part in training:
            part.training = True
