"""How the next token is chosen: a spec, the distribution that it makes of the logits, and a draw from that.

    logits (B, V) --distribution--> probabilities (B, V) --draw--> ids (B,)

Each row draws from a generator of its own, so what it draws depends on its seed and never on its neighbours.
"""

from collections.abc import Iterable, Sequence

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor

from tercet.config import UserError
from tercet.generation.filters import apply_temperature, keep_min_p, keep_top_k, keep_top_p, penalize_repetition
from tercet.generation.specs import Sampling

DIVERGENCE_MESSAGE = "the model's outputs are not numbers (NaN): its training diverged; use an earlier checkpoint"


def distribution(
    logits: Float[Tensor, "B V"], sampling: Sampling, seen_mask: Bool[Tensor, "B V"] | None = None
) -> Float[Tensor, "B V"]:
    """The probabilities, in float32, that `sampling` makes of logits.

    Args:
        logits: in any floating dtype.
        sampling: the filters, applied in the order of `filters`.
        seen_mask: the tokens that a row holds already; only the repetition penalty asks for it.
    """
    logits = logits.float()  # bfloat16 loses the tail
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
    """One id (int64) for each row of probabilities, from that row's own generator, which lives on the CPU.

    By the inverse of the cumulative distribution, in float64 on the CPU: the same draws whatever the model runs on.
    The first sum *above* the uniform number is never that of an id with probability zero.

    Raises:
        UserError: where a row holds nothing to draw from, as after a training that diverged.
    """
    if len(generators) != len(probabilities):
        raise ValueError(f"{len(probabilities)} rows need as many generators, got {len(generators)}")
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
    """The next token of each row, drawn from that row's own generator; `rows` are their tokens so far.

    Raises:
        UserError: as `draw`; no generator has moved then.
    """
    if sampling.temperature == 0 and sampling.repetition_penalty == 1:  # the same choice, without the distribution
        if not bool(logits.amax(-1).isfinite().all()):
            raise UserError(DIVERGENCE_MESSAGE)
        return logits.argmax(-1)  # the first of equals
    seen_mask = mark_seen(rows, logits) if sampling.repetition_penalty != 1 else None
    return draw(distribution(logits, sampling, seen_mask), generators)


def mark_seen(rows: Iterable[Sequence[int]], logits: Shaped[Tensor, "B V"]) -> Bool[Tensor, "B V"]:
    """The tokens that each row holds."""
    seen_mask = torch.zeros_like(logits, dtype=torch.bool)
    for slot, row in enumerate(rows):
        seen_mask[slot, torch.tensor(row, device=logits.device)] = True
    return seen_mask
