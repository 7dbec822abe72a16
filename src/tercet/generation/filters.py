"""Filters of next-token logits: pure functions (B, V) -> (B, V) that put -inf where a token may not be drawn.

They are applied in this order (see `sampling.distribution`), each to what the one before it left, renormalised:

    repetition penalty -> temperature -> top-k -> top-p -> min-p

Between equals the lowest id wins, so every filter is a function of its input alone, on any device.
"""

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

Logits = Float[Tensor, "B V"]

# Sums and ratios of float32 probabilities miss round numbers such as 0.9 by a few units in the last place.
ROUNDING = 1e-6


def penalise_repetition(logits: Logits, seen: Bool[Tensor, "B V"], penalty: float) -> Logits:
    """Make the tokens in `seen` less likely; penalty 1 changes nothing, 1.2 is the paper's choice.

    Keskar et al. 2019 (CTRL) divide the logit by the penalty. That would *raise* a negative one, so negative logits
    are multiplied instead.
    """
    lowered = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen, lowered, logits)


def apply_temperature(logits: Logits, temperature: float) -> Logits:
    """Logits / temperature, moved so that the largest is 0; temperature 0 leaves only the most likely token."""
    # Moved first: logits / 1e-38 would overflow to inf, and softmax of that is NaN.
    shifted = logits - logits.amax(-1, keepdim=True)
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)  # the first of equals
        others = torch.ones_like(logits, dtype=torch.bool).scatter(-1, best, False)
        return shifted.masked_fill(others, -math.inf)
    finite = torch.finfo(logits.dtype)  # beyond it the temperature is inf to the tensor, and -inf / inf is NaN
    return shifted / min(max(temperature, finite.tiny), finite.max)


def keep_top_k(logits: Logits, k: int) -> Logits:
    """The k most likely tokens (Fan et al. 2018): exactly k, however many are equal to the k-th."""
    if k >= logits.shape[-1]:
        return logits
    kth = logits.topk(k, dim=-1).values[..., -1:]  # (B, 1)
    above, equal = logits > kth, logits == kth
    room = k - above.sum(-1, keepdim=True)
    keep = above | (equal & (equal.cumsum(-1) <= room))
    return logits.masked_fill(~keep, -math.inf)


def keep_top_p(logits: Logits, p: float) -> Logits:
    """The nucleus (Holtzman et al. 2020): the fewest most likely tokens whose probabilities reach p, at least one.

    The token that crosses p is kept.
    """
    if p >= 1:  # the tail of a float32 sum rounds to 1 long before its end
        return logits
    ordered, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered  # the probability of all tokens more likely than this one
    keep = before < p * (1 - ROUNDING)
    keep[..., 0] = True
    return logits.masked_fill(~keep.scatter(-1, order, keep), -math.inf)


def keep_min_p(logits: Logits, p: float) -> Logits:
    """The tokens at least p times as likely as the most likely one (Nguyen et al. 2024); p = 0 keeps all."""
    if p <= 0:
        return logits
    ratio = logits - logits.amax(-1, keepdim=True)  # the log of probability / largest probability
    return logits.masked_fill(ratio < math.log(p) - ROUNDING, -math.inf)
