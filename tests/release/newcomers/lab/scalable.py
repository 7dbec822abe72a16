"""Scalable softmax: scores are multiplied by s ln n, with n visible keys (Nakanishi, "Scalable-Softmax", 2025)."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tercet.nn import Attention, CustomAttention
from tercet.nn.attention import attention_scores, attention_weights, causal_mask, weighted_values
from tercet.spec import spec


@spec
class Scalable(CustomAttention):
    """Attention that does not become flatter the more keys there are, with one learned scale per head."""

    def build(self, **settings: Any) -> Attention:
        return ScalableAttention(**settings)


class ScalableAttention(Attention):
    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.scale = nn.Parameter(torch.full((self.n_heads,), 0.43))

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        *,
        mask: Tensor | None = None,
        bias: Tensor | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        softcap: float | None = None,
    ) -> Tensor:
        scores = attention_scores(q, k, softcap=softcap)  # (B, H, T, S)
        mask = causal_mask(scores) if causal else mask
        if mask is None:
            n_visible = torch.full((1,), math.log(scores.shape[-1]), device=scores.device)
        else:
            n_visible = mask.sum(-1, keepdim=True).clamp(min=1).float().log()  # (B, 1, T, 1)
        scores = scores * (self.scale.float()[:, None, None] * n_visible).to(scores.dtype)
        scores = scores if bias is None else scores + bias
        return weighted_values(F.dropout(attention_weights(scores, mask=mask), dropout), v)
