"""Ensembles of translation models: their next-token distributions are combined at each step.

    linear:      log p = log( mean of the p_i )
    log_linear:  log p = mean of the log p_i, renormalized

The linear mean favors a token that one member considers very likely, the log-linear mean a token that no member
considers unlikely.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from tercet.generation.protocol import Cache, SourceDecoder

Combine = Literal["linear", "log_linear"]


class EnsembleCache:
    """The caches of all members of an `Ensemble`."""

    def __init__(self, caches: Sequence[Cache]) -> None:
        self.caches = tuple(caches)

    def reorder(self, rows: Int[Tensor, " R"]) -> None:
        for cache in self.caches:
            cache.reorder(rows)

    def expand_beams(self, n: int) -> None:
        for cache in self.caches:
            cache.expand_beams(n)

    def grow(self, capacity: int) -> None:
        for cache in self.caches:
            cache.grow(capacity)


class Ensemble(nn.Module):
    """A `SourceDecoder` that combines several models with the same vocabularies.

    Args:
        models: One or more models; sizes and depths may differ.
        combine: Mean of the members' probabilities: "linear" or "log_linear".

    Raises:
        ValueError: If there are no models, the sizes of their vocabularies differ, or `combine` is unknown.
    """

    def __init__(self, models: Sequence[SourceDecoder[Any]], combine: Combine = "linear") -> None:
        super().__init__()
        sizes = sorted({model.vocab_size for model in models})
        if len(sizes) != 1:
            raise ValueError(
                f"the models of an ensemble must have the same vocabulary, got vocab_size={sizes}; "
                "use models with the same tokenizer"
            )
        if combine not in ("linear", "log_linear"):
            raise ValueError(f"combine={combine!r} must be linear or log_linear")
        self.members, self.combine = tuple(models), combine
        self.modules_of_members = nn.ModuleList(model for model in models if isinstance(model, nn.Module))

    @property
    def max_len(self) -> int:
        return min(model.max_len for model in self.members)

    @property
    def vocab_size(self) -> int:
        return self.members[0].vocab_size

    def start(
        self,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"],
        *,
        source: Int[Tensor, "B S"],
        source_token_mask: Bool[Tensor, "B S"],
        capacity: int,
    ) -> tuple[Float[Tensor, "B V"], EnsembleCache]:
        """Call `start` of each member; return the combined log-probabilities as logits, and all caches."""
        starts = [
            model.start(tokens, lengths, source=source, source_token_mask=source_token_mask, capacity=capacity)
            for model in self.members
        ]
        return self._combine([logits for logits, _ in starts]), EnsembleCache([cache for _, cache in starts])

    def step(self, tokens: Int[Tensor, " R"], cache: EnsembleCache) -> Float[Tensor, "R V"]:
        pairs = zip(self.members, cache.caches, strict=True)
        return self._combine([model.step(tokens, member_cache) for model, member_cache in pairs])

    def _combine(self, logits: Sequence[Float[Tensor, "R V"]]) -> Float[Tensor, "R V"]:
        logprobs = torch.stack([member_logits.float().log_softmax(-1) for member_logits in logits])  # (models, R, V)
        if self.combine == "linear":
            return logprobs.logsumexp(0) - math.log(len(logits))
        return logprobs.mean(0).log_softmax(-1)
