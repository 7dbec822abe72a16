"""A text in the running batch, and the state of its sampling."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from tercet.generation.grammar import GrammarState
from tercet.generation.row_sampling import UniformNumbers
from tercet.generation.specs import Sampling
from tercet.nn.cache import StackCache


class BatchRow:
    """A text that is being generated.

    Args:
        ids: Token ids so far, at least one.
        sampling: Sampling settings.
        top: Number of likeliest tokens to report with each sampled token.
        grammar: Grammar of the text before its first new token, or None.
    """

    def __init__(
        self, ids: Iterable[int], sampling: Sampling, *, top: int = 0, grammar: GrammarState | None = None
    ) -> None:
        self.ids = list(ids)
        self.top, self.grammar = top, grammar
        self.left = sampling.max_new_tokens  # number of tokens that may still be sampled
        self.generator = torch.Generator().manual_seed(sampling.seed)
        self.numbers = UniformNumbers(self.generator)  # drawn in advance for sampling on the GPU
        # Settings that affect the choice of a token. Rows for which they are equal are sampled together.
        self.settings = replace(sampling, seed=0, stop=(), max_new_tokens=0, json_schema=None, regex=None)
        # Cache of a long prompt during its chunked prefill.
        self.chunked_cache: StackCache | None = None
        self.n_prefilled = 0  # tokens in that cache
