"""The best continuations of hypotheses: the largest of H x V sums without sorting H x V numbers.

Each of the `count` largest numbers is in one of the `count` chunks with the largest maxima. The maxima of chunks of 64
ids are computed first, in one pass at memory speed; only the members of the best chunks are then compared.
"""

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

CHUNK = 64  # ids; 64 and 128 take the same time, 32 and 256 longer


def best_continuations(
    logprobs: Float[Tensor, "N H V"], totals: Float[Tensor, "N H"], count: int
) -> tuple[Float[Tensor, "N C"], Int[Tensor, "N C"], Int[Tensor, "N C"]]:
    """Return the `count` largest sums totals[n, h] + logprobs[n, h, v] for each n, largest first, with their h and v.

    Among equal sums, the lowest (h, v) comes first. C is `count`, or H x V if that is less. If any log-probability of
    row n is NaN, all sums of the row are NaN.
    """
    _, h, v = logprobs.shape
    full = v // CHUNK * CHUNK
    maxima = logprobs[..., :full].unflatten(2, (-1, CHUNK)).amax(-1)  # (N, H, chunks)
    if full < v:
        maxima = torch.cat((maxima, logprobs[..., full:].amax(-1, keepdim=True)), dim=-1)
    chunks = maxima.shape[-1]
    # Addition with rounding is monotonic, so the maximum of the sums is the sum of the maximum.
    sums = (maxima + totals[..., None]).flatten(1)  # (N, H chunks)
    best = _top_indices(sums, min(count, h * chunks)).sort(-1).values  # (N, C), in the order of (h, v)
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
    """Return the indices of the `count` largest numbers of each row, largest first.

    Among equal numbers the lowest index is first.

    `topk` does not specify the order of equal numbers, and a stable sort takes twenty times as long. Each number is
    therefore mapped to a 64-bit integer. The upper half is an integer that is larger for larger numbers, computed from
    the number's bits. The lower half is larger for lower indices.
    """
    bits = (numbers + 0.0).view(torch.int32)  # -0 becomes 0: they are equal
    sort_keys = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    places = torch.arange(numbers.shape[1] - 1, -1, -1, device=numbers.device)
    keys = (sort_keys.long() << 32) + places
    return keys.topk(count, dim=-1).indices
