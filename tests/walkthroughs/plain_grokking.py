"""The encoder-decoder of the fourth walk-through, implemented again from its text with `torch.nn` only."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Positions(nn.Module):
    def __init__(self, width: int, rate: float, size: int = 5000) -> None:
        super().__init__()
        self.drop = nn.Dropout(rate)
        angles = torch.arange(size)[:, None] * 10000.0 ** (-torch.arange(0, width, 2) / width)
        table = torch.zeros(size, width)
        table[:, 0::2], table[:, 1::2] = angles.sin(), angles.cos()
        self.register_buffer("table", table, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(x + self.table[None, : x.shape[1]])


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value = (nn.Linear(width, width, bias=False) for _ in range(3))
        self.project = nn.Linear(width, width)

    def forward(self, x: Tensor, source: Tensor, mask: Tensor) -> Tensor:
        """Return the output; `mask` is added to the scores and contains 0 or -inf."""
        b, _, d = x.shape
        q, k, v = (
            part(given).view(b, -1, self.heads, d // self.heads).transpose(1, 2)
            for part, given in ((self.query, x), (self.key, source), (self.value, source))
        )
        scores = torch.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(d // self.heads) + mask
        return self.project(torch.einsum("bhqk,bhkd->bhqd", scores.softmax(-1), v).transpose(1, 2).reshape(b, -1, d))


class Layer(nn.Module):
    def __init__(self, width: int, heads: int, inner: int, rate: float, *, cross: bool) -> None:
        super().__init__()
        self.attention, self.cross = Attention(width, heads), Attention(width, heads) if cross else None
        self.feed = nn.Sequential(nn.Linear(width, inner), nn.ReLU(), nn.Linear(inner, width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 + cross))
        self.rate = rate

    def forward(self, x: Tensor, mask: Tensor, memory: Tensor | None = None, padding: Tensor | None = None) -> Tensor:
        norms = iter(self.norms)
        x = next(norms)(x + self.drop(self.attention(x, x, mask)))
        if self.cross is not None:
            x = next(norms)(x + self.drop(self.cross(x, memory, padding)))
        return next(norms)(x + self.drop(self.feed(x)))

    def drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.rate, self.training)


class Model(nn.Module):
    def __init__(
        self, *, source_vocab: int, vocab: int, width: int, layers: int, heads: int, inner: int, rate: float
    ) -> None:
        super().__init__()
        self.source, self.target = nn.Embedding(source_vocab, width), nn.Embedding(vocab, width)
        self.source_positions, self.target_positions = Positions(width, rate), Positions(width, rate)
        self.encoder = nn.ModuleList(Layer(width, heads, inner, rate, cross=False) for _ in range(layers))
        self.decoder = nn.ModuleList(Layer(width, heads, inner, rate, cross=True) for _ in range(layers))
        self.linear = nn.Linear(width, vocab)

    def forward(self, source: Tensor, target: Tensor, real: Tensor) -> Tensor:
        """Return logits; `real` is True for source tokens and False for padding."""
        padding = torch.zeros(real.shape).masked_fill(~real, -math.inf)[:, None, None]  # (B, 1, 1, S)
        places = torch.arange(target.shape[1])
        future = torch.zeros(len(places), len(places)).masked_fill(places[None] > places[:, None], -math.inf)
        x = self.source_positions(self.source(source))
        for layer in self.encoder:
            x = layer(x, padding)
        y = self.target_positions(self.target(target))
        for layer in self.decoder:
            y = layer(y, future, x, padding)
        return self.linear(y)


SIDES = {"encoder": ("self",), "decoder": ("self", "cross")}
NAMES = {"source_embedding": "source", "embedding": "target", "unembedding": "linear"}
for side, attentions in SIDES.items():
    for place, attention in enumerate(attentions):
        theirs = "attention" if attention == "self" else "cross"
        for one, other in (("query", "query"), ("key", "key"), ("value", "value"), ("out", "project")):
            NAMES[f"{side}.blocks.N.{attention}_attention.{one}"] = f"{side}.N.{theirs}.{other}"
        NAMES[f"{side}.blocks.N.{attention}_residual.after"] = f"{side}.N.norms.{place}"
    NAMES[f"{side}.blocks.N.feedforward.up"] = f"{side}.N.feed.0"
    NAMES[f"{side}.blocks.N.feedforward.down"] = f"{side}.N.feed.2"
    NAMES[f"{side}.blocks.N.feedforward_residual.after"] = f"{side}.N.norms.{len(attentions)}"
