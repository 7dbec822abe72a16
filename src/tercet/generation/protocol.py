"""Protocols that generation requires of a model: prefill the prompts, then one decode step per token.

The state is in a cache outside the model. A column of the cache is a position of the text, so rows of unequal length
need no left padding: each row continues at its own column. Decoder-only and encoder-decoder models differ only in
`start`, which also takes the sources of a translation model.
"""

from typing import Protocol, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class Cache(Protocol):
    def reorder(self, rows: Int[Tensor, " R"], /) -> None:
        """Select these rows of the cache in place; a row may be omitted or repeated."""
        ...

    def expand_beams(self, n: int, /) -> None:
        """Repeat each row `n` times, next to each other; the copies share one source.

        Afterwards, callers of `reorder` must keep these groups whole: they permute or repeat rows within a group, or
        omit a whole group.
        """
        ...

    def grow(self, capacity: int, /) -> None:
        """Extend the cache to `capacity` tokens per row and keep its content."""
        ...


CacheType = TypeVar("CacheType", bound=Cache)


class Decoder(Protocol[CacheType]):
    @property
    def max_len(self) -> int:
        """Context length: maximum number of tokens that the model sees at once."""
        ...

    def start(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], /, *, capacity: int
    ) -> tuple[Float[Tensor, "B V"], CacheType]:
        """Prefill prompts; return the logits after the last token of each row, and a cache.

        The prompts have `lengths` tokens and are padded on the right. The cache can hold `capacity` tokens per row, at
        most `max_len`.
        """
        ...

    def step(self, tokens: Int[Tensor, " B"], cache: CacheType, /) -> Float[Tensor, "B V"]:
        """Append one token to each row and return the logits after it."""
        ...


class RewindingCache(Cache, Protocol):
    def advance(self, by: Int[Tensor, " B"], /) -> None:
        """Add `by` tokens to the length of each row; negative values remove the last tokens."""
        ...


RewindingCacheType = TypeVar("RewindingCacheType", bound=RewindingCache)


class SpeculativeDecoder(Decoder[RewindingCacheType], Protocol[RewindingCacheType]):
    """A decoder that can read several draft tokens in one forward pass."""

    @property
    def vocab_size(self) -> int: ...

    def read_ahead(self, tokens: Int[Tensor, "B T"], cache: RewindingCacheType, /) -> Float[Tensor, "B T V"]:
        """Return the logits after each of the next tokens of each row.

        The tokens are padded on the right with any id. The lengths of the cache do not change; `cache.advance` adds the
        accepted tokens.
        """
        ...


class SourceDecoder(Protocol[CacheType]):
    """A decoder with a source, which is encoded once."""

    @property
    def max_len(self) -> int:
        """Maximum number of tokens of a target, and of a source."""
        ...

    @property
    def vocab_size(self) -> int: ...

    def start(
        self,
        tokens: Int[Tensor, "B T"],
        lengths: Int[Tensor, " B"],
        /,
        *,
        source: Int[Tensor, "B S"],
        source_token_mask: Bool[Tensor, "B S"],
        capacity: int,
    ) -> tuple[Float[Tensor, "B V"], CacheType]:
        """Encode the sources and prefill the beginnings of the targets; return the logits after each row, and a cache.

        `source_token_mask` is True at real tokens of the sources. The other arguments are those of `Decoder.start`.
        """
        ...

    def step(self, tokens: Int[Tensor, " B"], cache: CacheType, /) -> Float[Tensor, "B V"]:
        """Append one token to each row and return the logits after it."""
        ...


AnyDecoder = Decoder[CacheType] | SourceDecoder[CacheType]


def parts_of(model: object) -> list[nn.Module]:
    """Return all modules of a model; an empty list for a decoder that is not an `nn.Module`."""
    return list(model.modules()) if isinstance(model, nn.Module) else []


def device_of(model: object) -> torch.device:
    """Return the device of the model's first parameter; the CPU if there is none."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if first is None else first.device
