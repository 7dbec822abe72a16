"""Sampling of the next token: the distribution after all filters, and a draw from it.

    logits (B, V) --distribution--> probabilities (B, V) --draw--> ids (B,)

Each row has its own generator, so its tokens depend on its seed and not on other rows.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tercet.config import UserError
from tercet.generation.filters import apply_temperature, keep_min_p, keep_top_k, keep_top_p, penalize_repetition
from tercet.generation.specs import Sampling

BLOCK, MANY_SCORES = 64, 1 << 16  # scores per block, and number of scores from which `first_maximum` uses blocks
DIVERGENCE_MESSAGE = "the model's outputs are not numbers (NaN): its training diverged; use an earlier checkpoint"


def distribution(
    logits: Float[Tensor, "B V"], sampling: Sampling, seen_mask: Bool[Tensor, "B V"] | None = None
) -> Float[Tensor, "B V"]:
    """Return the probabilities, in float32, after the filters of `sampling`.

    Args:
        logits: Next-token logits in any floating dtype.
        sampling: Filters, applied in the order of `filters`.
        seen_mask: True at tokens that the row contains, for the repetition penalty; None disables it.
    """
    logits = logits.float()  # bfloat16 would lose the tail of the distribution
    if seen_mask is not None and sampling.repetition_penalty != 1:
        logits = penalize_repetition(logits, seen_mask, sampling.repetition_penalty)
    logits = apply_temperature(logits, sampling.temperature)
    if sampling.top_k is not None:
        logits = keep_top_k(logits, sampling.top_k)
    if sampling.top_p is not None:
        logits = keep_top_p(logits, sampling.top_p)
    if sampling.min_p is not None:
        logits = keep_min_p(logits, sampling.min_p)
    return logits.softmax(-1)


def draw(probabilities: Float[Tensor, "B V"], generators: Sequence[torch.Generator]) -> Int[Tensor, " B"]:
    """Draw one id (int64) per row of probabilities, with the generator of that row, which is on the CPU.

    The id is the first one whose cumulative probability is above a uniform number, so an id with probability zero is
    never drawn. This is computed in float64 on the CPU, so the draws do not depend on the model's device.

    Raises:
        ValueError: If the numbers of rows and generators differ.
        UserError: If the probabilities of a row are all zero or contain NaN, as after training that diverged.
    """
    if len(generators) != len(probabilities):
        raise ValueError(f"expected {len(probabilities)} generators, one per row, got {len(generators)}")
    sums = probabilities.to("cpu", torch.float64).cumsum(-1)  # (B, V)
    total = sums[:, -1:]
    if not bool((total > 0).all()):
        raise UserError(DIVERGENCE_MESSAGE)
    uniform = torch.tensor(
        [[torch.rand((), dtype=torch.float64, generator=g).item()] for g in generators], dtype=torch.float64
    )  # (B, 1) in [0, 1)
    return torch.searchsorted(sums, uniform * total, right=True).squeeze(-1).to(probabilities.device)


def choose(
    logits: Float[Tensor, "B V"],
    rows: Sequence[Sequence[int]],
    sampling: Sampling,
    generators: Sequence[torch.Generator],
) -> Int[Tensor, " B"]:
    """Return the next token of each row, drawn with that row's generator.

    Args:
        logits: Next-token logits in any floating dtype.
        rows: Tokens of each row so far, for the repetition penalty.
        sampling: Sampling settings.
        generators: Generator of each row, on the CPU; not used for greedy sampling without a repetition penalty.

    Raises:
        UserError: If a distribution is empty, as in `draw`; the generators are then unchanged.
    """
    if sampling.temperature == 0 and sampling.repetition_penalty == 1:  # greedy: the distribution is not needed
        values, ids = first_maximum(logits)
        if not bool(values.isfinite().all()):
            raise UserError(DIVERGENCE_MESSAGE)
        return ids
    seen_mask = mark_seen(rows, logits) if sampling.repetition_penalty != 1 else None
    return draw(distribution(logits, sampling, seen_mask), generators)


def first_maximum(scores: Float[Tensor, "B V"]) -> tuple[Float[Tensor, " B"], Int[Tensor, " B"]]:
    """Return the largest score of each row and its index, the first one of equals.

    On a CPU, finding an index takes ten times as long as finding a maximum. For many scores, indices are therefore
    found among the maxima of blocks, and then within one block.
    """
    size = scores.shape[-1]
    if not scores.is_cpu or scores.numel() < MANY_SCORES or size < BLOCK:
        return scores.max(-1)
    n_blocks = size // BLOCK
    maxima = scores[:, : n_blocks * BLOCK].unflatten(-1, (n_blocks, BLOCK)).amax(-1)  # (B, n_blocks)
    if size % BLOCK:
        maxima = torch.cat((maxima, scores[:, n_blocks * BLOCK :].amax(-1, keepdim=True)), -1)
    values, blocks = maxima.max(-1)  # (B,) each
    columns = blocks[:, None] * BLOCK + torch.arange(BLOCK, device=scores.device)
    columns = columns.clamp(max=size - 1)  # the last block may be shorter
    within = scores.gather(-1, columns).argmax(-1)  # (B,)
    return values, blocks * BLOCK + within


def mark_seen(rows: Iterable[Sequence[int]], logits: Shaped[Tensor, "B V"]) -> Bool[Tensor, "B V"]:
    """Return a mask that is True at the tokens that each row contains, with the shape and device of `logits`."""
    seen_mask = torch.zeros_like(logits, dtype=torch.bool)
    for slot, row in enumerate(rows):
        seen_mask[slot, torch.tensor(row, device=logits.device)] = True
    return seen_mask
