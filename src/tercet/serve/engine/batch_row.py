"""A text in the running batch, and where its next tokens come from."""

from collections.abc import Iterable
from dataclasses import replace

import torch

from tercet.generation.row_sampling import UniformNumbers
from tercet.generation.specs import Sampling
from tercet.nn.cache import StackCache


class BatchRow:
    """One text that is generated.

    Args:
        ids: its tokens so far, at least one.
        top: how many of the likeliest tokens come beside each that is sampled.
    """

    def __init__(self, ids: Iterable[int], sampling: Sampling, *, top: int = 0) -> None:
        self.ids = list(ids)
        self.top = top
        self.left = sampling.max_new_tokens  # tokens yet to be sampled
        self.generator = torch.Generator().manual_seed(sampling.seed)
        self.numbers = UniformNumbers(self.generator)  # of which a GPU has a copy
        # Rows whose settings are equal but for these are sampled together.
        self.settings = replace(sampling, seed=0, stop=(), max_new_tokens=0)
        # Of a prompt too long to be read at once, as far as it has been read.
        self.chunked_cache: StackCache | None = None
        self.n_prefilled = 0  # how many tokens that is
