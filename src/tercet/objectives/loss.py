"""A loss is a sum and a count, never a mean.

The sums and counts of four small batches add up to those of one large batch, whatever was padded or masked, and those
of all ranks add up to those of a single one. The mean is computed once, at the end.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORE_INDEX = -100  # a target that does not count; PyTorch's default `ignore_index`


@dataclass(frozen=True)
class Loss:
    """Loss of a batch.

    Attributes:
        total: () Sum that is minimized: the loss of all targets in nats, or squared errors for numbers. It has the
            gradient.
        plain: () The same sum without label smoothing and without a gradient.
        count: () Number of targets, int64.
    """

    total: Tensor
    plain: Tensor
    count: Tensor

    def __add__(self, other: "Loss") -> "Loss":
        return Loss(self.total + other.total, self.plain + other.plain, self.count + other.count)

    @property
    def mean(self) -> Tensor:
        """Mean loss per target; zero, not NaN, without targets."""
        return self.total / self.count.clamp(min=1)

    @property
    def plain_mean(self) -> Tensor:
        """Mean -ln p per target, without label smoothing. Its exponential is the perplexity."""
        return self.plain / self.count.clamp(min=1)

    def detach(self) -> "Loss":
        """Return the loss without a gradient."""
        return Loss(self.total.detach(), self.plain.detach(), self.count)


def count_targets(targets: Tensor) -> Tensor:
    """Return the number of targets in a batch as a tensor ().

    Classes count unless they are IGNORE_INDEX. Numbers and sets of labels count once per row.
    """
    if targets.is_floating_point():
        return torch.full((), len(targets), device=targets.device)  # a copy would make the host wait
    return (targets >= 0).sum()


def zero_loss(device: torch.device) -> Loss:
    """Return a loss of zero without targets."""
    zero = torch.zeros((), device=device)
    return Loss(zero, zero, torch.zeros((), dtype=torch.long, device=device))
