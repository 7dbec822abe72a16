"""What generation asks of a model: read the prompts, then a token a step; the state lives in a cache outside the model.

A column of the cache is a position of the text, so rows of unequal length need no padding on the left: each row goes on
writing at its own column. The families differ in `start` alone, where a translator takes the sources as well;
everything after it is `step`.
"""

from typing import Protocol, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


class Cache(Protocol):
    def reorder(self, rows: Int[Tensor, " R"], /) -> None:
        """Become these rows of this cache, in place; a row may be left out or named twice."""
        ...

    def expand_beams(self, n: int, /) -> None:
        """Each row becomes a group of `n` equal rows next to each other, which share one source.

        From then on `reorder` keeps groups whole: rows are permuted or repeated within their group, or all of it goes.
        """
        ...

    def grow(self, capacity: int, /) -> None:
        """Make room for `capacity` tokens a row; what is there stays."""
        ...


CacheType = TypeVar("CacheType", bound=Cache)


class Decoder(Protocol[CacheType]):
    @property
    def max_len(self) -> int:
        """The most tokens the model can see at once: its context."""
        ...

    def start(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], /, *, capacity: int
    ) -> tuple[Float[Tensor, "B V"], CacheType]:
        """Read prompts of `lengths` tokens, padded on the right: the logits after each row's last token, and a cache.

        The cache has room for `capacity` tokens a row, at most max_len.
        """
        ...

    def step(self, tokens: Int[Tensor, " B"], cache: CacheType, /) -> Float[Tensor, "B V"]:
        """Append one token to each row: the logits after it."""
        ...


class RewindingCache(Cache, Protocol):
    def advance(self, by: Int[Tensor, " B"], /) -> None:
        """Count so many more tokens of each row as read; below 0, so many fewer, which are as if they never were."""
        ...


RewindingCacheType = TypeVar("RewindingCacheType", bound=RewindingCache)


class SpeculativeDecoder(Decoder[RewindingCacheType], Protocol[RewindingCacheType]):
    """A decoder that reads several tokens in one pass, some of which may turn out not to come next."""

    @property
    def vocab_size(self) -> int: ...

    def read_ahead(self, tokens: Int[Tensor, "B T"], cache: RewindingCacheType, /) -> Float[Tensor, "B T V"]:
        """The logits after each of the next tokens of each row, padded on the right with any id.

        They are not counted yet: `cache.advance` says how many of them stand.
        """
        ...


class SourceDecoder(Protocol[CacheType]):
    """A decoder that looks at a source, which it encodes once."""

    @property
    def max_len(self) -> int:
        """The most tokens of a target, and the most of a source."""
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
        """Read the sources, whose real tokens `source_token_mask` marks, and the beginnings of their targets."""
        ...

    def step(self, tokens: Int[Tensor, " B"], cache: CacheType, /) -> Float[Tensor, "B V"]:
        """Append one token to each row: the logits after it."""
        ...


AnyDecoder = Decoder[CacheType] | SourceDecoder[CacheType]


def parts_of(model: object) -> list[nn.Module]:
    """The modules of a model; none for a decoder that is no `nn.Module`."""
    return list(model.modules()) if isinstance(model, nn.Module) else []


def device_of(model: object) -> torch.device:
    """Where the model's tokens belong: beside its first parameter."""
    first = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    return torch.device("cpu") if first is None else first.device
