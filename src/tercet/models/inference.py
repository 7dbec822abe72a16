"""Run a model for inference, after training or during it."""

from collections.abc import Generator, Iterable
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def inference_mode(parts: Iterable[nn.Module]) -> Generator[None]:
    """Disable dropout and gradients in the context.

    The training mode of each part is restored afterwards, also after an error.

    Enter the context for single steps and do not `yield` within it. Otherwise a caller that stops iterating, or trains
    between two tokens, would find the model in evaluation mode and gradients disabled.

    Args:
        parts: All modules to change, such as `model.modules()`. The children of a part are not included.
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
