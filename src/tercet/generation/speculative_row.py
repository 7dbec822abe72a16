"""A row of speculative decoding, for rounds on the host and in CUDA graphs."""

from collections.abc import Sequence, Set
from typing import Protocol

import torch

from tercet.generation.specs import Sampling
from tercet.generation.stream import Token, window_start


class Context(Protocol):
    @property
    def max_len(self) -> int: ...


class Row:
    """A text that is being generated.

    Attributes:
        number: Index of the row in the batch.
        ids: Token ids so far, including the prompt.
        left: Maximum number of tokens still to generate; 0 if the row has ended.
        generator: Random generator of the row, on the CPU.
        window: Start of the model's window in the last forward pass; -1 before the first.
    """

    def __init__(self, number: int, prompt: Sequence[int], seed: int, sampling: Sampling) -> None:
        self.number, self.ids, self.left = number, list(prompt), sampling.max_new_tokens
        self.generator = torch.Generator().manual_seed(seed)
        self.window = -1

    def starts(self, models: Sequence[Context]) -> tuple[int, ...]:
        """Return the index of the first token that each model sees."""
        return tuple(window_start(len(self.ids), model.max_len) for model in models)

    def max_draft_tokens(self, max_tokens: int, models: Sequence[Context]) -> int:
        """Return the maximum number of draft tokens in the next pass, and remember the window of the model.

        It is at most `max_tokens`, the free columns in the window of each model, and one less than the remaining
        tokens. It is 0 if the model's window has moved since the last call, as in the first call, because the tokens
        of the window are then prefilled first.

        Args:
            max_tokens: Maximum number of draft tokens per forward pass.
            models: The model, and the draft model if there is one.
        """
        starts = self.starts(models)
        has_moved, self.window = starts[0] != self.window, starts[0]
        free_columns = (model.max_len - (len(self.ids) - start) for model, start in zip(models, starts, strict=True))
        return 0 if has_moved else min(max_tokens, self.left - 1, *free_columns)

    def take(self, ids: Sequence[int], logprobs: Sequence[float], stop_ids: Set[int]) -> list[Token]:
        """Append tokens to the row, up to one that ends it, and return those that were appended."""
        tokens: list[Token] = []
        for token, logprob in zip(ids, logprobs, strict=True):
            self.ids.append(token)
            self.left = 0 if token in stop_ids else self.left - 1
            finish = "eos" if token in stop_ids else None if self.left else "length"
            tokens.append(Token(id=token, logprob=logprob, finish=finish))
            if finish:
                break
        return tokens
