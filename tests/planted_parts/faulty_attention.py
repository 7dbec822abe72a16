"""Attention with faults that a user could write; each docstring names the fault."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.nn import Attention, CustomAttention
from tercet.nn.attention import attention_scores, attention_weights, causal_mask, weighted_values
from tercet.spec import spec


def masked_scores(q: Tensor, k: Tensor, options: dict[str, Any]) -> tuple[Tensor, Tensor | None]:
    """Return the scores and the mask, which is causal if the options say so."""
    scores = attention_scores(q, k, bias=options["bias"], softcap=options["softcap"])
    return scores, causal_mask(scores) if options["causal"] else options["mask"]


@spec
class SoftmaxOverQueries(CustomAttention):
    """The softmax runs over the queries instead of the keys, so earlier queries depend on later ones."""

    def build(self, **settings: Any) -> Attention:
        return QuerySoftmax(**settings)


class QuerySoftmax(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        scores, mask = masked_scores(q, k, options)
        if mask is not None:
            scores = scores.masked_fill(~mask, torch.finfo(scores.dtype).min)
        weights = scores.float().softmax(-2).to(v.dtype)
        return weighted_values(F.dropout(weights, options["dropout"]), v)


@spec
class MaskAfterSoftmax(CustomAttention):
    """Weights are masked after the softmax, so that the sum of the exponentials includes later tokens."""

    def build(self, **settings: Any) -> Attention:
        return LateMask(**settings)


class LateMask(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        scores, mask = masked_scores(q, k, options)
        weights = scores.float().softmax(-1)
        if mask is not None:
            weights = weights.masked_fill(~mask, 0.0)
        return weighted_values(F.dropout(weights, options["dropout"]), v)


@spec
class OffByOneMask(CustomAttention):
    """The causal mask includes the next token."""

    def build(self, **settings: Any) -> Attention:
        return NextToken(**settings)


class NextToken(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        scores = attention_scores(q, k, bias=options["bias"], softcap=options["softcap"])
        mask = options["mask"]
        if options["causal"]:
            size = scores.shape[-1]
            mask = ~torch.triu(torch.ones(size, size, dtype=torch.bool, device=q.device), diagonal=2)
        return weighted_values(F.dropout(attention_weights(scores, mask=mask), options["dropout"]), v)


@spec
class ShiftedKeys(CustomAttention):
    """Keys are mixed with those of the previous token, which a decode step with a KV cache does not have."""

    def build(self, **settings: Any) -> Attention:
        return TokenShift(**settings)


class TokenShift(Attention):
    def keys_values(self, source: Tensor, rotation: Any = None) -> tuple[Tensor, Tensor]:
        previous = F.pad(source, (0, 0, 1, 0))[:, :-1]
        return super().keys_values((source + previous) / 2, rotation)


@spec
class RotationFromColumns(CustomAttention):
    """Queries and keys are rotated by their column in the call, which starts at 0 in each decode step."""

    def build(self, **settings: Any) -> Attention:
        return ColumnRotation(**settings)


class ColumnRotation(Attention):
    def forward(self, x: Tensor, source: Tensor | None = None, **options: Any) -> Tensor:
        frequencies = 10_000.0 ** -torch.linspace(0, 1, self.d_head // 2, device=x.device)
        angles = torch.arange(x.shape[1], device=x.device)[None, :, None] * frequencies
        if source is None or source is x:
            options["rotation"] = (angles.cos(), angles.sin())
        return super().forward(x, source, **options)


@spec
class CenteredKeys(CustomAttention):
    """The mean of the keys of all columns is subtracted, including later tokens and padding."""

    def build(self, **settings: Any) -> Attention:
        return Centered(**settings)


class Centered(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        return super().attend(q, 2 * k - k.mean(-2, keepdim=True), v - v.mean(-2, keepdim=True), **options)


@spec
class DropoutInEvaluation(CustomAttention):
    """A dropout of 5 % is also applied outside of training, because `F.dropout` does by default."""

    def build(self, **settings: Any) -> Attention:
        return AlwaysDropout(**settings)


class AlwaysDropout(Attention):
    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        scores, mask = masked_scores(q, k, options)
        return weighted_values(F.dropout(attention_weights(scores, mask=mask), 0.05), v)


@spec
class BranchOnScores(CustomAttention):
    """The scores are scaled down if any of the batch is large: a graph break, and rows depend on other rows."""

    def build(self, **settings: Any) -> Attention:
        return ScaledIfLarge(**settings)


class ScaledIfLarge(Attention):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.gain = nn.Parameter(torch.ones(self.n_heads))

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        q = q * self.gain.to(q.dtype)[:, None, None]
        largest = (q @ k.repeat_interleave(q.shape[1] // k.shape[1], 1).mT).abs().max() / math.sqrt(self.d_head)
        if largest > 30:
            q = q * (30 / largest)
        return super().attend(q, k, v, **options)
