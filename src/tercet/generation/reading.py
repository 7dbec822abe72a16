"""The first step of any writing: prompts become one padded batch, beside their sources where the model has any."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float, Int
from torch import Tensor

from tercet.generation.protocol import AnyDecoder, CacheType, Decoder, SourceDecoder


def read(
    model: AnyDecoder[CacheType],
    rows: Sequence[Sequence[int]],
    *,
    sources: Sequence[Sequence[int]] | None = None,
    source_pad: int = 0,
    capacity: int,
    device: torch.device,
) -> tuple[Float[Tensor, "B V"], CacheType]:
    """The logits after each row, and a cache of the rows; equal rows with equal sources are read once.

    Args:
        rows: token ids, at least one each.
        sources: one for each row, where the model is a `SourceDecoder`.
        source_pad: any id of the source's vocabulary: it is masked.
        capacity: the most tokens a row will hold.
    """
    pairs = [(tuple(row), () if sources is None else tuple(sources[n])) for n, row in enumerate(rows)]
    distinct = list(dict.fromkeys(pairs))
    tokens, lengths = padded([row for row, _ in distinct], 0, device)
    if sources is None:
        logits, cache = cast("Decoder[CacheType]", model).start(tokens, lengths, capacity=capacity)
    else:
        source, source_lengths = padded([source for _, source in distinct], source_pad, device)
        real = torch.arange(source.shape[1], device=device) < source_lengths[:, None]  # (B, S)
        translator = cast("SourceDecoder[CacheType]", model)
        logits, cache = translator.start(tokens, lengths, source=source, source_padding=real, capacity=capacity)
    if len(distinct) < len(pairs):
        number = {pair: slot for slot, pair in enumerate(distinct)}
        slots = torch.tensor([number[pair] for pair in pairs], device=device)
        cache.reorder(slots)
        logits = logits[slots]
    return logits, cache


def padded(
    rows: Sequence[Sequence[int]], pad: int, device: torch.device
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """The rows, padded on the right, and their lengths."""
    longest = max(map(len, rows))
    tokens = torch.tensor([[*row, *[pad] * (longest - len(row))] for row in rows], device=device)
    return tokens, torch.tensor([len(row) for row in rows], device=device)
