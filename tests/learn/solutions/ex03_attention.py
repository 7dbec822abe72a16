"""Reference solution of exercise 3, for tests of its checks."""

from torch import Tensor


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    scores = q @ k.mT / q.shape[-1] ** 0.5
    weights = scores.softmax(-1)
    return weights @ v
