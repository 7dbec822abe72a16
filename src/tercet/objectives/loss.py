"""A loss is a sum and a count, never a mean.

Sums and counts of four small batches add up to those of one big batch, whatever was padded or masked in each, and
those of all machines to that of one. The mean is taken once, at the end.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORE_INDEX = -100  # a target that costs nothing: PyTorch's own default


@dataclass(frozen=True)
class Loss:
    """Attributes:
    total: () what is learnt from, summed over the targets, nats (of numbers, squares); carries the gradient.
    plain: () -ln p of the targets, summed: without label smoothing the same number, without a gradient.
    count: () how many targets, int64.
    """

    total: Tensor
    plain: Tensor
    count: Tensor

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.total + other.total, self.plain + other.plain, self.count + other.count)

    @property
    def mean(self) -> Tensor:
        """Nats a target; zero, not NaN, where there are no targets."""
        return self.total / self.count.clamp(min=1)

    @property
    def plain_mean(self) -> Tensor:
        """-ln p a target: its exponential is the perplexity, whatever the smoothing."""
        return self.plain / self.count.clamp(min=1)

    def detach(self) -> "Loss":
        return Loss(self.total.detach(), self.plain.detach(), self.count)


def count_targets(targets: Tensor) -> Tensor:
    """() How many targets a batch has: of classes all but IGNORE_INDEX, of numbers and of sets of labels one a row."""
    if targets.is_floating_point():
        return torch.full((), len(targets), device=targets.device)  # filled there; a copy would make the host wait
    return (targets >= 0).sum()


def zero_loss(device: torch.device) -> Loss:
    zero = torch.zeros((), device=device)
    return Loss(zero, zero, torch.zeros((), dtype=torch.long, device=device))
