"""The language model of the fifth walk-through, implemented again from its text with `torch.nn` only.

Faults of the original program are corrected: the future is masked as well as padding, the exponent of the sinusoids is
applied once, and positions are counted from the first token that is not padding.
"""

import math

import torch
from torch import Tensor, nn


class Head(nn.Module):
    def __init__(self, width: int, head: int) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(width, head) for _ in range(3))

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        scores = self.query(x) @ self.key(x).transpose(-2, -1) / math.sqrt(self.query.out_features)
        weights = scores.masked_fill(~seen, -1e9).softmax(-1) * seen.any(-1, keepdim=True)
        return weights @ self.value(x)


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, rate: float) -> None:
        super().__init__()
        self.heads = nn.ModuleList(Head(width, width // heads) for _ in range(heads))
        self.out, self.drop = nn.Linear(width, width), nn.Dropout(rate)
        self.feed = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def forward(self, x: Tensor, seen: Tensor) -> Tensor:
        h = self.norm1(x)
        x = x + self.out(torch.cat([head(h, seen) for head in self.heads], -1))
        return x + self.drop(self.feed(self.norm2(x)))


class Model(nn.Module):
    def __init__(
        self, *, vocab: int, length: int, width: int, layers: int, heads: int, inner: int, rate: float
    ) -> None:
        super().__init__()
        self.tokens, self.norm = nn.Embedding(vocab, width), nn.LayerNorm(width)
        table = torch.zeros(length, width)
        for p in range(length):
            for i in range(width // 2):
                angle = p / 10000 ** (2 * i / width)
                table[p, 2 * i], table[p, 2 * i + 1] = math.sin(angle), math.cos(angle)
        self.register_buffer("table", table, persistent=False)
        self.layers = nn.ModuleList(Layer(width, heads, inner, rate) for _ in range(layers))
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: Tensor, real: Tensor) -> Tensor:
        """Return logits; `real` is True for tokens that are not padding, which is on the left."""
        places = (real.long().cumsum(-1) - 1).clamp(min=0)
        seen = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril() & real[:, None]
        x = self.norm(self.tokens(ids) + self.table[places])
        for layer in self.layers:
            x = layer(x, seen)
        return self.head(x)


NAMES = {
    "embedding": "tokens",
    "stack.embedding_norm": "norm",
    "stack.blocks.N.self_residual.before": "layers.N.norm1",
    "stack.blocks.N.self_attention.query": "layers.N.heads.*.query",
    "stack.blocks.N.self_attention.key": "layers.N.heads.*.key",
    "stack.blocks.N.self_attention.value": "layers.N.heads.*.value",
    "stack.blocks.N.self_attention.out": "layers.N.out",
    "stack.blocks.N.feedforward_residual.before": "layers.N.norm2",
    "stack.blocks.N.feedforward.up": "layers.N.feed.0",
    "stack.blocks.N.feedforward.down": "layers.N.feed.2",
    "unembedding": "head",
}
