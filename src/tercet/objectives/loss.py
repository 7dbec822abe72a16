"""A loss is a sum and a count, never a mean.

Sums and counts of four small batches add up to those of one big batch, whatever was padded or masked in each, and
those of all machines to that of one. The mean is taken once, at the end.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

IGNORED = -100  # a target that costs nothing: PyTorch's own default


@dataclass(frozen=True)
class Loss:
    """Attributes:
    total: () sum over the targets, nats; carries the gradient.
    count: () how many targets, int64.
    """

    total: Tensor
    count: Tensor

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.total + other.total, self.count + other.count)

    @property
    def mean(self) -> Tensor:
        """Nats a target; zero, not NaN, where there are no targets."""
        return self.total / self.count.clamp(min=1)


def negative_log_likelihood(logits: Float[Tensor, "*B V"], targets: Int[Tensor, "*B"]) -> Loss:
    """-ln p(target), summed in float32."""
    total = F.cross_entropy(logits.flatten(0, -2).float(), targets.flatten(), ignore_index=IGNORED, reduction="sum")
    return Loss(total, (targets != IGNORED).sum())


def no_loss(device: torch.device) -> Loss:
    return Loss(torch.zeros((), device=device), torch.zeros((), dtype=torch.long, device=device))
