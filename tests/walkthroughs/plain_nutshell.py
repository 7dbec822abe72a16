"""The GPT of the first walk-through, implemented again from its description with `torch.nn` only."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rate: float) -> None:
        super().__init__()
        self.heads = heads
        self.q, self.k, self.v, self.o = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.drop_weights, self.drop_out = nn.Dropout(rate), nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = (part(x).view(b, t, self.heads, d // self.heads).transpose(1, 2) for part in (self.q, self.k, self.v))
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        future = torch.ones(t, t, dtype=torch.bool).triu(1)
        weights = self.drop_weights(F.softmax(scores.masked_fill(future, -math.inf), dim=-1))
        return self.drop_out(self.o((weights @ v).transpose(1, 2).reshape(b, t, d)))


class Block(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, rate: float) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2 = nn.LayerNorm(width), Attention(width, heads, rate), nn.LayerNorm(width)
        self.widen, self.narrow, self.drop = nn.Linear(width, inner), nn.Linear(inner, width), nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.drop(self.narrow(F.gelu(self.widen(self.norm2(x)))))


class Model(nn.Module):
    def __init__(
        self, *, vocab: int, length: int, width: int, layers: int, heads: int, inner: int, rate: float
    ) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, width), nn.Embedding(length, width)
        self.drop = nn.Dropout(rate)
        self.blocks = nn.ModuleList(Block(width, heads, inner, rate) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.drop(self.tokens(ids) + self.positions(torch.arange(ids.shape[1])))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


NAMES = {
    "embedding": "tokens",
    "stack.position.table": "positions",
    "stack.blocks.N.self_residual.before": "blocks.N.norm1",
    "stack.blocks.N.self_attention.query": "blocks.N.attention.q",
    "stack.blocks.N.self_attention.key": "blocks.N.attention.k",
    "stack.blocks.N.self_attention.value": "blocks.N.attention.v",
    "stack.blocks.N.self_attention.out": "blocks.N.attention.o",
    "stack.blocks.N.feedforward_residual.before": "blocks.N.norm2",
    "stack.blocks.N.feedforward.up": "blocks.N.widen",
    "stack.blocks.N.feedforward.down": "blocks.N.narrow",
    "stack.final_norm": "norm",
    "unembedding": "head",
}
