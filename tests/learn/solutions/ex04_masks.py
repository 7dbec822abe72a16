"""Reference solution of exercise 4, for tests of its checks."""

import torch
from torch import Tensor


def causal_mask(length: int) -> Tensor:
    return torch.ones(length, length, dtype=torch.bool).tril()


def padding_mask(lengths: Tensor, max_len: int) -> Tensor:
    return torch.arange(max_len) < lengths[:, None]


def masked_weights(scores: Tensor, mask: Tensor) -> Tensor:
    return scores.masked_fill(~mask, -torch.inf).softmax(-1)
