"""A logarithmic bias of distances with two learned numbers per head (Chi et al., "KERPLE", 2022)."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.nn import CustomPosition
from tercet.nn.positions import PositionScheme
from tercet.spec import spec


@spec
class Kerple(CustomPosition):
    """-a ln(1 + b d) at distance d, with positive a and b."""

    def build(self, *, n_heads: int, **sizes: int) -> PositionScheme:
        return KerplePositions(n_heads)


class KerplePositions(PositionScheme):
    has_bias = True

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.linspace(0.2, 2.0, n_heads))
        self.b = nn.Parameter(torch.ones(n_heads))

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()  # (B, 1, T, S)
        a, b = (F.softplus(weight)[:, None, None] for weight in (self.a, self.b))  # (H, 1, 1)
        return -a * (1 + b * distance).log()
