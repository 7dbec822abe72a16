"""The learning rate that follows from `model.size`."""

from collections.abc import Mapping
from typing import Any

from tercet.config import Plain, merge
from tercet.training.optim.specs import Muon

BASE_SIZE = 64  # width at which the output layer has the learning rate of the embedding


def add_head_rate(settings: Mapping[str, Any], size: Any) -> Plain:
    """Return the settings of a recipe with the learning rate of its output layer, `head_lr`.

    It is proportional to 1 / width, so that the logits have the same scale for all widths. Settings with a `head_lr`,
    or with another optimizer than Muon, are returned unchanged.

    Args:
        settings: Settings of a recipe.
        size: Value of `model.size`; None if the recipe has none.
    """
    training = settings.get("training")
    optimizer = training.get("optimizer", {}) if isinstance(training, Mapping) else {}
    if not isinstance(size, int) or not isinstance(optimizer, Mapping) or optimizer.get("kind", "muon") != "muon":
        return dict(settings)
    rate = optimizer.get("adam_lr", Muon().adam_lr)
    if optimizer.get("head_lr") is not None or not isinstance(rate, int | float):
        return dict(settings)
    head = {"kind": "muon", "head_lr": round(rate * BASE_SIZE / max(1, size), 8)}
    return merge(dict(settings), {"training": {"optimizer": head}})
