"""Small decoders with predictable logits: a plain function of the visible tokens and their positions."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

Rule = Callable[[list[int]], Tensor]
SourceRule = Callable[[list[int], list[int]], Tensor]


class ToyCache:
    """Rows of tokens with the source of their group; operations that a real cache cannot do raise."""

    def __init__(self, rows: list[list[int]], capacity: int, sources: list[list[int]] | None = None) -> None:
        self.rows = rows
        self.capacity = capacity
        self.sources = [[] for _ in rows] if sources is None else sources
        self.group = 1
        self.calls: list[tuple[str, int]] = []

    def reorder(self, rows: Tensor) -> None:
        assert rows.dtype == torch.int64
        expected = rows.tolist()
        self.calls.append(("reorder", len(expected)))
        assert expected != list(range(len(self.rows))), "nothing to reorder"
        assert len(expected) % self.group == 0
        groups = [
            {row // self.group for row in expected[start : start + self.group]}
            for start in range(0, len(expected), self.group)
        ]
        assert all(len(group) == 1 for group in groups), "rows of two sources were mixed"
        remaining = [group.pop() for group in groups]
        assert self.group == 1 or len(set(remaining)) == len(remaining), "a group was repeated"
        self.sources = [self.sources[group] for group in remaining]
        self.rows = [list(self.rows[row]) for row in expected]

    def expand_beams(self, n: int) -> None:
        assert self.group == 1
        assert n > 1, "nothing to expand"
        self.calls.append(("expand_beams", n))
        self.rows = [list(row) for row in self.rows for _ in range(n)]
        self.group = n

    def grow(self, capacity: int) -> None:
        assert capacity > self.capacity
        self.calls.append(("grow", capacity))
        self.capacity = capacity


class ToyDecoder(nn.Module):
    """A decoder that checks the cache protocol and records each call as (name, batch size)."""

    def __init__(self, rule: Rule, max_len: int) -> None:
        super().__init__()
        self.rule = rule
        self.max_len = max_len
        self.calls: list[tuple[str, int]] = []
        self.capacities: list[int] = []
        self.caches: list[ToyCache] = []

    def start(self, tokens: Tensor, lengths: Tensor, *, capacity: int) -> tuple[Tensor, ToyCache]:
        return self._start(tokens, lengths, capacity, None)

    def step(self, tokens: Tensor, cache: ToyCache) -> Tensor:
        assert tokens.dtype == torch.int64
        assert tokens.shape == (len(cache.rows),)
        self.calls.append(("step", len(tokens)))
        for row, token in zip(cache.rows, tokens.tolist(), strict=True):
            assert len(row) < cache.capacity <= self.max_len, "the cache has no column left"
            row.append(token)
        return self._logits(cache)

    def _start(
        self, tokens: Tensor, lengths: Tensor, capacity: int, sources: list[list[int]] | None
    ) -> tuple[Tensor, ToyCache]:
        assert tokens.dtype == lengths.dtype == torch.int64
        assert tokens.shape[1] == lengths.max() <= capacity <= self.max_len
        self.calls.append(("start", len(tokens)))
        self.capacities.append(capacity)
        rows = [row[:n] for row, n in zip(tokens.tolist(), lengths.tolist(), strict=True)]
        self.caches.append(ToyCache(rows, capacity, sources))
        return self._logits(self.caches[-1]), self.caches[-1]

    def _logits(self, cache: ToyCache) -> Tensor:
        assert not self.training, "dropout would be on"
        assert torch.is_inference_mode_enabled()
        return torch.stack([self.row_logits(cache, number) for number in range(len(cache.rows))])

    def row_logits(self, cache: ToyCache, number: int) -> Tensor:
        return self.rule(cache.rows[number])


class ToyTranslator(ToyDecoder):
    """A decoder whose rule also depends on a source."""

    def __init__(self, rule: SourceRule, max_len: int, vocab_size: int) -> None:
        super().__init__(lambda tokens: rule([], tokens), max_len)
        self.source_rule = rule
        self.vocab_size = vocab_size
        self.sources: list[list[list[int]]] = []

    def start(
        self, tokens: Tensor, lengths: Tensor, *, source: Tensor, source_token_mask: Tensor, capacity: int
    ) -> tuple[Tensor, ToyCache]:
        assert source.dtype == torch.int64
        assert source_token_mask.dtype == torch.bool
        assert source.shape == source_token_mask.shape
        assert len(source) == len(tokens)
        assert source.shape[1] == source_token_mask.sum(1).max() <= self.max_len
        assert (source_token_mask[:, 1:] <= source_token_mask[:, :-1]).all(), "padding must be on the right"
        sources = [row[mask].tolist() for row, mask in zip(source, source_token_mask, strict=True)]
        self.sources.append(sources)
        return self._start(tokens, lengths, capacity, sources)

    def row_logits(self, cache: ToyCache, number: int) -> Tensor:
        return self.source_rule(cache.sources[number // cache.group], cache.rows[number])


def random_rule(vocab_size: int, max_len: int, *, seed: int = 0, scale: float = 2.0) -> Rule:
    """Return a fixed random function of every visible token and its position."""
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(max_len, vocab_size, 7, generator=generator)
    out = torch.randn(7, vocab_size, generator=generator)

    def rule(tokens: list[int]) -> Tensor:
        hidden = table[torch.arange(len(tokens)), torch.tensor(tokens)].sum(0)
        return scale * torch.sin(hidden) @ out

    return rule


def random_source_rule(vocab_size: int, max_len: int, *, seed: int = 0, scale: float = 2.0) -> SourceRule:
    """Return a random function of a source and a target, with cached results."""
    over_target = random_rule(vocab_size, max_len, seed=2 * seed, scale=scale)
    over_source = random_rule(vocab_size, max_len, seed=2 * seed + 1, scale=scale)
    logits_by_key: dict[tuple[tuple[int, ...], ...], Tensor] = {}

    def rule(source: list[int], tokens: list[int]) -> Tensor:
        key = (tuple(source), tuple(tokens))
        if key not in logits_by_key:
            logits_by_key[key] = over_target(tokens) + (over_source(source).roll(len(tokens)) if source else 0.0)
        return logits_by_key[key]

    return rule


def script_rule(vocab_size: int, script: Sequence[int], prompt: int = 1) -> Rule:
    """Return a rule that writes `script` after any prompt of `prompt` tokens."""

    def rule(tokens: list[int]) -> Tensor:
        logits = torch.zeros(vocab_size)
        logits[script[len(tokens) - prompt]] = 50.0
        return logits

    return rule
