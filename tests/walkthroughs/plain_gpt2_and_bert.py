"""GPT-2 and BERT of the second walk-through, implemented again from its description with `torch.nn` only.

They differ in two ways: the attention mask, and learned or fixed positions.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Attention(nn.Module):
    def __init__(self, width: int, heads: int, rates: tuple[float, float], *, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.drop_weights, self.drop_out = map(nn.Dropout, rates)

    def forward(self, x: Tensor) -> Tensor:
        b, t, d = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / math.sqrt(d // self.heads)
        if self.causal:
            scores = scores.masked_fill(torch.ones(t, t, dtype=torch.bool).triu(1), -math.inf)
        heads = self.drop_weights(F.softmax(scores, dim=-1)) @ v
        return self.drop_out(self.out(heads.transpose(1, 2).reshape(b, t, d)))


class FeedForward(nn.Module):
    def __init__(self, width: int, inner: int, rate: float) -> None:
        super().__init__()
        self.fc1, self.fc2, self.drop = nn.Linear(width, inner), nn.Linear(inner, width), nn.Dropout(rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(F.gelu(self.fc1(x))))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, rates: tuple[float, float, float], *, causal: bool) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, rates[:2], causal=causal)
        self.norm2, self.feedforward = nn.LayerNorm(width), FeedForward(width, inner, rates[2])

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + self.feedforward(self.norm2(x))


def sinusoids(length: int, width: int) -> Tensor:
    table = torch.zeros(length, width)
    steps = torch.exp(torch.arange(0, width, 2) * (-math.log(10000) / width))
    angles = torch.arange(length)[:, None] * steps
    table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
    return table


class Model(nn.Module):
    """The model; `rates` are those of embeddings, attention weights, attention output and feed-forward output."""

    def __init__(
        self, *, vocab: int, length: int, width: int, layers: int, heads: int, inner: int,
        rates: tuple[float, float, float, float], causal: bool,
    ) -> None:  # fmt: skip
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(length, width) if causal else None
        self.register_buffer("fixed", sinusoids(length, width), persistent=False)
        self.drop = nn.Dropout(rates[0])
        self.layers = nn.ModuleList(Layer(width, heads, inner, rates[1:], causal=causal) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab)
        self.head.weight = self.tokens.weight

    def forward(self, ids: Tensor) -> Tensor:
        places = torch.arange(ids.shape[1])
        x = self.drop(self.tokens(ids) + (self.fixed[places] if self.positions is None else self.positions(places)))
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


NAMES = {
    "embedding": "tokens",
    "stack.position.table": "positions",
    "stack.blocks.N.self_residual.before": "layers.N.norm1",
    "stack.blocks.N.self_attention.query": "layers.N.attention.qkv:0",
    "stack.blocks.N.self_attention.key": "layers.N.attention.qkv:1",
    "stack.blocks.N.self_attention.value": "layers.N.attention.qkv:2",
    "stack.blocks.N.self_attention.out": "layers.N.attention.out",
    "stack.blocks.N.feedforward_residual.before": "layers.N.norm2",
    "stack.blocks.N.feedforward.up": "layers.N.feedforward.fc1",
    "stack.blocks.N.feedforward.down": "layers.N.feedforward.fc2",
    "stack.final_norm": "norm",
    "unembedding": "head",
}
