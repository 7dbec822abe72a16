"""A model as it is used once it has been trained, or for a moment in between."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference_mode(parts: Iterable[nn.Module]) -> Generator[None]:
    """Dropout off and no gradients within; each part gets its own mode back, also after an error.

    Held around single steps, never across a `yield`: whoever stops listening half-way, or trains between two tokens,
    finds the model and the autograd mode as they were.
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
