"""Decoders small enough to be certain of: logits are a plain function of the visible tokens and their positions."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Rule = Callable[[list[int]], Tensor]


class ToyCache:
    def __init__(self, rows: list[list[int]], capacity: int) -> None:
        self.rows = rows
        self.capacity = capacity

    def reorder(self, rows: Tensor) -> None:
        self.rows = [list(self.rows[row]) for row in rows.tolist()]


class ToyDecoder(nn.Module):
    """Keeps the protocol, refuses what would break a real cache, and notes each call as (name, batch size)."""

    def __init__(self, rule: Rule, max_len: int) -> None:
        super().__init__()
        self.rule = rule
        self.max_len = max_len
        self.calls: list[tuple[str, int]] = []
        self.capacities: list[int] = []

    def start(self, tokens: Tensor, lengths: Tensor, *, capacity: int) -> tuple[Tensor, ToyCache]:
        assert tokens.dtype == lengths.dtype == torch.int64
        assert tokens.shape[1] == lengths.max() <= capacity <= self.max_len
        self.calls.append(("start", len(tokens)))
        self.capacities.append(capacity)
        cache = ToyCache([row[:n] for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True)], capacity)
        return self._logits(cache), cache

    def step(self, tokens: Tensor, cache: ToyCache) -> Tensor:
        assert tokens.shape == (len(cache.rows),)
        self.calls.append(("step", len(tokens)))
        for row, token in zip(cache.rows, tokens.tolist(), strict=True):
            assert len(row) < cache.capacity, "the cache has no column left"
            row.append(token)
        return self._logits(cache)

    def _logits(self, cache: ToyCache) -> Tensor:
        assert not self.training, "dropout would be on"
        assert torch.is_inference_mode_enabled()
        return torch.stack([self.rule(row) for row in cache.rows])


def random_rule(vocab_size: int, max_len: int, *, seed: int = 0, scale: float = 2.0) -> Rule:
    """A fixed random function to which every visible token matters, and its position."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(max_len, vocab_size, 7, generator=generator)
    out = torch.randn(7, vocab_size, generator=generator)

    def rule(tokens: list[int]) -> Tensor:
        hidden = table[torch.arange(len(tokens)), torch.tensor(tokens)].sum(0)
        return scale * torch.sin(hidden) @ out

    return rule


def script_rule(vocab_size: int, script: Sequence[int], prompt: int = 1) -> Rule:
    """Says `script` after a prompt of `prompt` tokens, whatever it is."""

    def rule(tokens: list[int]) -> Tensor:
        logits = torch.zeros(vocab_size)
        logits[script[len(tokens) - prompt]] = 50.0
        return logits

    return rule
