"""A model with rule-based logits that can read several tokens of a row in one pass."""

from functools import cache

import torch
from torch import Tensor
from toy_decoder import Rule, ToyCache, ToyDecoder, random_rule

VOCAB, CONTEXT = 11, 7


class AheadCache(ToyCache):
    """A cache that keeps lookahead tokens until they are counted or overwritten, as a real cache does."""

    def __init__(self, rows: list[list[int]], capacity: int) -> None:
        super().__init__(rows, capacity)
        self.tables, self.lengths = [list(row) for row in rows], [len(row) for row in rows]

    def write(self, tokens: list[list[int]]) -> list[list[list[int]]]:
        """Return the visible tokens of each new token in each row."""
        prefixes = []
        for number, (table, new, length) in enumerate(zip(self.tables, tokens, self.lengths, strict=True)):
            self.tables[number] = table = [*table[:length], *new, *table[length + len(new) :]]
            prefixes.append([table[: length + place + 1] for place in range(len(new))])
        return prefixes

    def advance(self, by: Tensor) -> None:
        assert by.shape == (len(self.lengths),)
        self.calls.append(("advance", int(by.sum())))
        self.lengths = [length + n_new for length, n_new in zip(self.lengths, by.tolist(), strict=True)]
        assert all(1 <= n <= min(self.capacity, len(table)) for n, table in zip(self.lengths, self.tables, strict=True))

    def reorder(self, rows: Tensor) -> None:
        super().reorder(rows)
        self.tables = [list(self.tables[row]) for row in rows.tolist()]
        self.lengths = [self.lengths[row] for row in rows.tolist()]


class AheadDecoder(ToyDecoder):
    def __init__(self, rule: Rule, max_len: int, vocab_size: int = VOCAB) -> None:
        cached_rule = cache(lambda tokens: rule(list(tokens)))
        super().__init__(lambda tokens: cached_rule(tuple(tokens)), max_len)
        self.vocab_size = vocab_size
        self.tokens_read: list[int] = []

    def _start(self, tokens: Tensor, lengths: Tensor, capacity: int, sources: None) -> tuple[Tensor, AheadCache]:
        logits, plain = super()._start(tokens, lengths, capacity, sources)
        self.caches[-1] = AheadCache(plain.rows, capacity)
        return logits, self.caches[-1]

    def read_ahead(self, tokens: Tensor, cache: AheadCache) -> Tensor:
        assert not self.training
        assert torch.is_inference_mode_enabled()
        self.calls.append(("read_ahead", len(tokens)))
        self.tokens_read.append(tokens.shape[1])
        logits = [[self.rule(text[: self.max_len]) for text in row] for row in cache.write(tokens.tolist())]
        return torch.stack([torch.stack(row) for row in logits])


RULE, OTHER_RULE = random_rule(VOCAB, CONTEXT), random_rule(VOCAB, CONTEXT, seed=1, scale=1.0)
