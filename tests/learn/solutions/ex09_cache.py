"""Reference solution of exercise 9, for tests of its checks."""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor


class KeyValueCache:
    def __init__(self) -> None:
        self.k: Tensor | None = None
        self.v: Tensor | None = None

    def append(self, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        self.k = k if self.k is None else torch.cat((self.k, k), dim=1)
        self.v = v if self.v is None else torch.cat((self.v, v), dim=1)
        return self.k, self.v


def attend_with_cache(
    x: Tensor,
    query: Callable[[Tensor], Tensor],
    key: Callable[[Tensor], Tensor],
    value: Callable[[Tensor], Tensor],
    cache: KeyValueCache,
) -> Tensor:
    k, v = cache.append(key(x), value(x))
    n_new, n_all = x.shape[1], k.shape[1]
    mask = torch.ones(n_new, n_all, dtype=torch.bool).tril(n_all - n_new)
    return F.scaled_dot_product_attention(query(x), k, v, attn_mask=mask)
