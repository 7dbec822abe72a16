"""Objectives with faults that a user could write; each docstring names the fault."""

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.objectives import CustomObjective
from tercet.spec import spec


def require_classes(logits: Tensor, targets: Tensor) -> None:
    if logits.dim() != 2 or targets.dim() != 1:
        raise ValueError("this loss is defined for one correct token or label per row")


@spec
class MeanOfReal(CustomObjective):
    """The losses are divided by the number of targets other than 0, although Tercet divides by the number already."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        require_classes(logits, targets)
        real = targets != 0
        return F.cross_entropy(logits, targets, reduction="none") / real.sum().clamp(min=1)


@spec
class RareClasses(CustomObjective):
    """The weight of a class is the inverse of its frequency in the call, so losses depend on other rows."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        require_classes(logits, targets)
        counts = torch.bincount(targets, minlength=logits.shape[-1]).clamp(min=1)
        return F.cross_entropy(logits, targets, reduction="none") / counts[targets]


@spec
class LogOfSoftmax(CustomObjective):
    """The logarithm of a probability that is rounded to 0 is infinite."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        require_classes(logits, targets)
        return -logits.softmax(-1).gather(-1, targets[:, None])[:, 0].log()


@spec
class RandomNegatives(CustomObjective):
    """The wrong classes to compare with are drawn at random in each call, also in validation."""

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        require_classes(logits, targets)
        negatives = torch.randint(logits.shape[-1], (len(targets), 4), device=logits.device)
        scores = torch.cat((logits.gather(-1, targets[:, None]), logits.gather(-1, negatives)), dim=-1)
        return F.cross_entropy(scores, torch.zeros_like(targets), reduction="none")
