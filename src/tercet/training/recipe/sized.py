"""The settings that follow from `model.size`, so that learning rates transfer between widths.

The logits are sums over the width, so the output layer changes by 1 / width per step. If it is tied to the embedding,
the embedding starts with the same factor, and its norm makes the input of the first block independent of it.
"""

from collections.abc import Mapping
from typing import Any

from tercet.config import Plain, merge
from tercet.nn.specs import ZeroProjections
from tercet.training.optim.specs import Muon

BASE_SIZE = 64  # width with the learning rate of the embedding and the standard deviation of the recipe


def add_width_rules(settings: Mapping[str, Any], size: Any, init: Any) -> Plain:
    """Return the settings of a recipe with the learning rate of its output layer, `head_lr`.

    With tied embeddings, a norm after them and `zero_projections`, the standard deviation of the embedding follows too.
    A `head_lr` or `embedding_std` of the recipe is not changed, and other optimizers than Muon have no such rate.

    Args:
        settings: Settings of a recipe, with all keys of its model.
        size: Value of `model.size`; None if the recipe has none.
        init: Value of `model.init` in the recipe; None if the recipe has none.
    """
    if not isinstance(size, int):
        return dict(settings)
    factor = BASE_SIZE / max(1, size)
    return merge(dict(settings), merge(_head_rate(settings, factor), _embedding_deviation(settings, init, factor)))


def _head_rate(settings: Mapping[str, Any], factor: float) -> Plain:
    training = settings.get("training")
    optimizer = training.get("optimizer", {}) if isinstance(training, Mapping) else {}
    if not isinstance(optimizer, Mapping) or optimizer.get("kind", "muon") != "muon":
        return {}
    rate = optimizer.get("adam_lr", Muon().adam_lr)
    if optimizer.get("head_lr") is not None or not isinstance(rate, int | float):
        return {}
    return {"training": {"optimizer": {"kind": "muon", "head_lr": round(rate * factor, 8)}}}


def _embedding_deviation(settings: Mapping[str, Any], init: Any, factor: float) -> Plain:
    model = settings["model"]
    is_scaled = model["tie_embeddings"] and model["embedding_norm"] and model["init"]["kind"] == ZeroProjections().kind
    if not is_scaled or (isinstance(init, Mapping) and "embedding_std" in init):
        return {}
    return {"model": {"init": {"embedding_std": round(ZeroProjections().embedding_std * factor, 8)}}}
