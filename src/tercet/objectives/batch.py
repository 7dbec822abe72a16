"""Rows as a batch of tensors, where the model is."""

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Int
from torch import Tensor, nn

Batch = TypeVar("Batch", bound=tuple[Any, ...])


def pad_rows(
    rows: Sequence[Sequence[int]], device: torch.device, *, pad: int = 0
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """The rows, padded on the right, and where their tokens are real."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=device)
    lengths = torch.tensor([len(row) for row in rows], device=device)
    return tokens, torch.arange(longest, device=device) < lengths[:, None]


def move_batch(batch: Batch, model: nn.Module) -> Batch:
    """A batch, which is a named tuple of tensors, where the model's first parameter is."""
    device = next(model.parameters()).device
    build: type[Any] = type(batch)
    return build(*(None if part is None else part.to(device) for part in batch))
