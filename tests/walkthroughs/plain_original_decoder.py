"""The decoder of the third walk-through, implemented again from its description with `torch.nn` only."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(nn.Module):
    def __init__(self, width: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.a, self.b, self.eps = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), eps

    def forward(self, x: Tensor) -> Tensor:
        return self.a * (x - x.mean(-1, keepdim=True)) / (x.std(-1, keepdim=True) + self.eps) + self.b


class Positions(nn.Module):
    """Table of 5000 positions, independent of the length of a row."""

    def __init__(self, width: int, rate: float, size: int = 5000) -> None:
        super().__init__()
        self.drop = nn.Dropout(rate)
        steps = torch.exp(torch.arange(0, width, 2) * -(math.log(10000.0) / width))
        angles = torch.arange(size)[:, None] * steps
        self.register_buffer("table", torch.stack((angles.sin(), angles.cos()), -1).flatten(1), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x + self.table[: x.shape[1]])


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        split = [linear(x).unflatten(-1, (self.heads, -1)).transpose(1, 2) for linear in self.linears[:3]]
        scores = torch.einsum("bhtk,bhsk->bhts", split[0], split[1]) / math.sqrt(split[0].shape[-1])
        seen = torch.ones(scores.shape[-2:], dtype=torch.bool).tril()
        weights = scores.masked_fill(~seen, -1e9).softmax(-1)
        return self.linears[3](torch.einsum("bhts,bhsk->bthk", weights, split[2]).flatten(2))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, rate: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads)
        self.w1, self.w2, self.inside = nn.Linear(width, inner), nn.Linear(inner, width), nn.Dropout(rate)
        self.norms = nn.ModuleList(Norm(width) for _ in range(2))
        self.drops = nn.ModuleList(nn.Dropout(rate) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drops[0](self.attention(self.norms[0](x)))
        return x + self.drops[1](self.w2(self.inside(F.relu(self.w1(self.norms[1](x))))))


class Model(nn.Module):
    def __init__(self, *, vocab: int, width: int, layers: int, heads: int, inner: int, rate: float) -> None:
        super().__init__()
        self.tokens, self.scale = nn.Embedding(vocab, width), math.sqrt(width)
        self.positions = Positions(width, rate)
        self.layers = nn.ModuleList(Layer(width, heads, inner, rate) for _ in range(layers))
        self.norm, self.generator = Norm(width), nn.Linear(width, vocab)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.positions(self.tokens(ids) * self.scale)
        for layer in self.layers:
            x = layer(x)
        return self.generator(self.norm(x))


NAMES = {
    "embedding": "tokens",
    "stack.blocks.N.self_residual.before": "layers.N.norms.0",
    "stack.blocks.N.self_attention.query": "layers.N.attention.linears.0",
    "stack.blocks.N.self_attention.key": "layers.N.attention.linears.1",
    "stack.blocks.N.self_attention.value": "layers.N.attention.linears.2",
    "stack.blocks.N.self_attention.out": "layers.N.attention.linears.3",
    "stack.blocks.N.feedforward_residual.before": "layers.N.norms.1",
    "stack.blocks.N.feedforward.up": "layers.N.w1",
    "stack.blocks.N.feedforward.down": "layers.N.w2",
    "stack.final_norm": "norm",
    "unembedding": "generator",
}
LETTERS = {"weight": "a", "bias": "b"}  # names of the norms' parameters
