"""Prefill: read the prompts of a batch, padded on the right, with their sources if there are any."""

from collections.abc import Sequence
from typing import cast

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.generation.protocol import AnyDecoder, CacheType, Decoder, SourceDecoder
from tercet.objectives import pad_rows


def prefill(
    model: AnyDecoder[CacheType],
    rows: Sequence[Sequence[int]],
    *,
    sources: Sequence[Sequence[int]] | None = None,
    source_pad: int = 0,
    capacity: int,
    device: torch.device,
) -> tuple[Float[Tensor, "B V"], CacheType]:
    """Return the logits after each row, and a KV cache of the rows.

    Equal rows with equal sources are computed once.

    Args:
        model: The model.
        rows: Token ids, at least one per row.
        sources: Source ids of each row, for a `SourceDecoder`.
        source_pad: Any id of the source vocabulary, for padding; it is masked.
        capacity: Maximum number of tokens per row of the cache.
        device: Device of the model.
    """
    pairs = [(tuple(row), () if sources is None else tuple(sources[n])) for n, row in enumerate(rows)]
    distinct = list(dict.fromkeys(pairs))
    tokens, real = pad_rows([row for row, _ in distinct], device)
    lengths = real.sum(1)
    if sources is None:
        logits, cache = cast("Decoder[CacheType]", model).start(tokens, lengths, capacity=capacity)
    else:
        source, source_real = pad_rows([source for _, source in distinct], device, pad=source_pad)
        translator = cast("SourceDecoder[CacheType]", model)
        logits, cache = translator.start(
            tokens, lengths, source=source, source_token_mask=source_real, capacity=capacity
        )
    if len(distinct) < len(pairs):
        number = {pair: slot for slot, pair in enumerate(distinct)}
        slots = torch.tensor([number[pair] for pair in pairs], device=device)
        cache.reorder(slots)
        logits = logits[slots]
    return logits, cache
