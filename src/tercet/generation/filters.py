"""Filters of next-token logits: pure functions (B, V) -> (B, V) that put -inf where a token may not be drawn.

They are applied in this order (see `sampling.distribution`), each to what the one before it left, renormalised:

    repetition penalty -> temperature -> top-k -> top-p -> min-p

Between equals the lowest id wins, so every filter is a function of its input alone, on any device.

A setting is one number for all rows, or a tensor (B, 1) with one for each (`row_sampling.py`).
"""

import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

Logits = Float[Tensor, "B V"]
PerRow = Float[Tensor, "B 1"]

# Sums and ratios of float32 probabilities miss round numbers such as 0.9 by a few units in the last place.
ROUNDING = 1e-6


def penalize_repetition(logits: Logits, seen_mask: Bool[Tensor, "B V"], penalty: float | PerRow) -> Logits:
    """Make the tokens in `seen_mask` less likely; penalty 1 changes nothing, 1.2 is the paper's choice.

    Keskar et al. 2019 (CTRL) divide the logit by the penalty. That would *raise* a negative one, so negative logits
    are multiplied instead.
    """
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen_mask, penalized, logits)


def apply_temperature(logits: Logits, temperature: float) -> Logits:
    """Logits / temperature, moved so that the largest is 0; temperature 0 leaves only the most likely token."""
    # Moved first: logits / 1e-38 would overflow to inf, and softmax of that is NaN.
    normalized = logits - logits.amax(-1, keepdim=True)
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)  # the first of equals
        is_other = torch.ones_like(logits, dtype=torch.bool).scatter(-1, best, False)
        return normalized.masked_fill(is_other, -math.inf)
    return normalized / finite_temperature(temperature, logits.dtype)


def finite_temperature(temperature: float, dtype: torch.dtype = torch.float32) -> float:
    """The temperature as a number of `dtype`: beyond its range it would be inf, and -inf / inf is NaN."""
    finite = torch.finfo(dtype)
    return min(max(temperature, finite.tiny), finite.max)


def keep_top_k(logits: Logits, k: int) -> Logits:
    """The k most likely tokens (Fan et al. 2018): exactly k, however many are equal to the k-th."""
    if k >= logits.shape[-1]:
        return logits
    kth = logits.topk(k, dim=-1).values[..., -1:]  # (B, 1)
    return keep_from_kth(logits, kth, k)


def keep_from_kth(logits: Logits, kth: PerRow, k: int | Int[Tensor, "B 1"]) -> Logits:
    """The tokens above the k-th largest logit, and of those equal to it the first, k in all."""
    is_above, is_equal = logits > kth, logits == kth
    room = k - is_above.sum(-1, keepdim=True)
    keep = is_above | (is_equal & (is_equal.cumsum(-1) <= room))
    return logits.masked_fill(~keep, -math.inf)


def keep_top_p(logits: Logits, p: float) -> Logits:
    """The nucleus (Holtzman et al. 2020): the fewest most likely tokens whose probabilities reach p, at least one.

    The token that crosses p is kept.
    """
    return logits if p >= 1 else keep_nucleus(logits, nucleus_share(p))


def nucleus_share(p: float) -> float:
    """The sum of more likely probabilities from which on a token is left out by top-p."""
    return math.inf if p >= 1 else p * (1 - ROUNDING)  # a float32 sum rounds to 1 long before its end


def keep_nucleus(logits: Logits, share: float | PerRow) -> Logits:
    """The tokens before which the probabilities of all more likely ones come to less than `share`; at least one."""
    sorted_probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    likelier_sum = (
        sorted_probabilities.cumsum(-1) - sorted_probabilities
    )  # the probability of all tokens more likely than this one
    keep = likelier_sum < share
    keep[..., 0] = True
    return logits.masked_fill(~keep.scatter(-1, order, keep), -math.inf)


def keep_min_p(logits: Logits, p: float) -> Logits:
    """The tokens at least p times as likely as the most likely one (Nguyen et al. 2024); p = 0 keeps all."""
    return logits if p <= 0 else keep_above_ratio(logits, min_p_ratio(p))


def min_p_ratio(p: float) -> float:
    """The log of probability / largest probability below which a token is left out by min-p."""
    return -math.inf if p <= 0 else math.log(p) - ROUNDING


def keep_above_ratio(logits: Logits, log_ratio: float | PerRow) -> Logits:
    """The tokens whose log of probability / largest probability is at least `log_ratio`."""
    ratio = logits - logits.amax(-1, keepdim=True)
    return logits.masked_fill(ratio < log_ratio, -math.inf)
