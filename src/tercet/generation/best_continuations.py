"""The best continuations of a set of hypotheses: of H x V sums the few largest, exactly, without sorting H x V numbers.

A number among the `count` largest lies in one of the `count` chunks with the largest maxima. So the maxima of chunks of
64 ids are found first, in one pass that runs at the speed of memory, and only the members of the best chunks compete.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 64  # ids; 64 and 128 take the same time, 32 and 256 longer


def best_continuations(
    logprobs: Float[Tensor, "N H V"], totals: Float[Tensor, "N H"], count: int
) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"], Int[Tensor, "N C"]]:
    """Of all totals[n, h] + logprobs[n, h, v] the `count` largest, the largest first: their sums, their h and their v.

    Between equals the lowest (h, v) wins. There are fewer than `count` only where H x V is less. Where any of a set's
    logprobs is NaN, all its sums are.
    """
    _, h, v = logprobs.shape
    full = v // CHUNK * CHUNK
    maxima = logprobs[..., :full].unflatten(2, (-1, CHUNK)).amax(-1)  # (N, H, chunks)
    if full < v:
        maxima = torch.cat((maxima, logprobs[..., full:].amax(-1, keepdim=True)), dim=-1)
    chunks = maxima.shape[-1]
    # Adding a total and rounding keeps order, so the maximum of the sums is the sum of the maximum.
    sums = (maxima + totals[..., None]).flatten(1)  # (N, H chunks)
    best = _top_indices(sums, min(count, h * chunks)).sort(-1).values  # (N, C): in the order of (h, v) again
    hypothesis = best // chunks
    ids = (best % chunks * CHUNK)[..., None] + torch.arange(CHUNK, device=best.device)  # (N, C, CHUNK)
    flat = hypothesis[..., None] * v + ids.clamp(max=v - 1)
    members = logprobs.flatten(1).gather(1, flat.flatten(1)).view_as(ids) + totals.gather(1, hypothesis)[..., None]
    members = members.masked_fill(ids >= v, -math.inf).flatten(1)  # (N, C CHUNK)
    best_members = _top_indices(members, min(count, h * v))
    values = members.gather(1, best_members)
    has_nan = maxima.isnan().flatten(1).any(-1, keepdim=True)
    parents = hypothesis.gather(1, best_members // CHUNK)
    tokens = ids.flatten(1).gather(1, best_members).clamp(max=v - 1)
    return values.masked_fill(has_nan, math.nan), parents, tokens


def _top_indices(numbers: Float[Tensor, "N M"], count: int) -> Int[Tensor, "N C"]:
    """Where the `count` largest numbers of each row stand, the largest first, and of equals the first.

    `topk` leaves open which of equals it takes, and a stable sort takes twenty times as long. So each number is made an
    integer of 64 bits: its own bits above, in an order that integers have too, and its place counted backwards below.
    """
    bits = (numbers + 0.0).view(torch.int32)  # -0 becomes 0: they are equal
    sort_keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    places = torch.arange(numbers.shape[1] - 1, -1, -1, device=numbers.device)
    keys = (sort_keys.long() << 32) + places
    return keys.topk(count, dim=-1).indices
