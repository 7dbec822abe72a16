"""Reference solution of exercise 2, for tests of its checks."""

import torch
from torch import Tensor


def sinusoidal_positions(length: int, d_model: int) -> Tensor:
    positions = torch.arange(length)[:, None]
    angles = positions / 10_000 ** (torch.arange(0, d_model, 2) / d_model)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


def embed(ids: Tensor, table: Tensor) -> Tensor:
    length, d_model = ids.shape[1], table.shape[1]
    return table[ids] * d_model**0.5 + sinusoidal_positions(length, d_model)
