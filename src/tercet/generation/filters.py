"""Filters of next-token logits: pure functions (B, V) -> (B, V) that scale logits, or set excluded tokens to -inf.

They are applied in this order (see `sampling.distribution`), each to the renormalized result of the previous one:

    repetition penalty -> temperature -> top-k -> top-p -> min-p

Among equal logits the lowest id is kept, so the result of a filter depends only on its input, on any device.

Functions with a parameter of type `PerRow` also take a tensor (B, 1) with one number per row, for `row_sampling.py`.
"""

import math

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

Logits = Float[Tensor, "B V"]
PerRow = Float[Tensor, "B 1"]

# Sums and ratios of float32 probabilities differ from round numbers such as 0.9 by a few units in the last place.
ROUNDING = 1e-6


def cumsum(x: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
    """Return the cumulative sums over the last dimension, as `x.cumsum(-1)`.

    CUDA has no deterministic `cumsum` of floating-point numbers, so PyTorch raises an error if deterministic algorithms
    are required. In that case each number receives the sum of 1, 2, 4, ... numbers before it (Hillis and Steele 1986),
    which is always added in the same order.
    """
    if not (x.is_cuda and torch.are_deterministic_algorithms_enabled()):
        return x.cumsum(-1)
    return deterministic_cumsum(x)


def deterministic_cumsum(x: Float[Tensor, "*B V"]) -> Float[Tensor, "*B V"]:
    """Return the cumulative sums over the last dimension, in log2(V) additions of whole tensors."""
    step = 1
    while step < x.shape[-1]:
        x = x + F.pad(x[..., :-step], (step, 0))
        step *= 2
    return x


def penalize_repetition(logits: Logits, seen_mask: Bool[Tensor, "B V"], penalty: float | PerRow) -> Logits:
    """Reduce the logits of the tokens in `seen_mask`.

    Penalty 1 has no effect; 1.2 is the value of the paper. Keskar et al. 2019 (CTRL) divide the logit by the penalty,
    which would *increase* a negative logit. Negative logits are therefore multiplied.
    """
    penalized = torch.where(logits > 0, logits / penalty, logits * penalty)
    return torch.where(seen_mask, penalized, logits)


def apply_temperature(logits: Logits, temperature: float) -> Logits:
    """Divide the logits by the temperature, after a shift to a maximum of 0.

    Temperature 0 keeps only the most likely token.
    """
    # Shift before the division: logits / 1e-38 would overflow to inf, whose softmax is NaN.
    normalized = logits - logits.amax(-1, keepdim=True)
    if temperature == 0:
        best = logits.argmax(-1, keepdim=True)  # the first of equals
        is_other = torch.ones_like(logits, dtype=torch.bool).scatter(-1, best, False)
        return normalized.masked_fill(is_other, -math.inf)
    return normalized / finite_temperature(temperature, logits.dtype)


def finite_temperature(temperature: float, dtype: torch.dtype = torch.float32) -> float:
    """Clamp the temperature to the positive finite numbers of `dtype`.

    Otherwise a very high temperature would become inf, and -inf / inf is NaN; a very low one would become 0.
    """
    finite = torch.finfo(dtype)
    return min(max(temperature, finite.tiny), finite.max)


def keep_top_k(logits: Logits, k: int) -> Logits:
    """Keep the k most likely tokens (Fan et al. 2018): exactly k, even if several are equal to the k-th."""
    if k >= logits.shape[-1]:
        return logits
    kth = logits.topk(k, dim=-1).values[..., -1:]  # (B, 1)
    return keep_from_kth(logits, kth, k)


def keep_from_kth(logits: Logits, kth: PerRow, k: int | Int[Tensor, "B 1"]) -> Logits:
    """Keep the tokens above the k-th largest logit, and the first of those equal to it, k in total."""
    is_above, is_equal = logits > kth, logits == kth
    room = k - is_above.sum(-1, keepdim=True)
    keep = is_above | (is_equal & (is_equal.cumsum(-1) <= room))
    return logits.masked_fill(~keep, -math.inf)


def keep_top_p(logits: Logits, p: float) -> Logits:
    """Keep the nucleus: the smallest set of most likely tokens with probability p (Holtzman et al. 2020).

    The token that crosses p is kept, so there is at least one.
    """
    return logits if p >= 1 else keep_nucleus(logits, nucleus_share(p))


def nucleus_share(p: float) -> float:
    """Return the limit for top-p: a token is excluded if all more likely tokens have at least this probability."""
    # inf for p = 1, since a float32 sum may reach 1 before all tokens are added.
    return math.inf if p >= 1 else p * (1 - ROUNDING)


def keep_nucleus(logits: Logits, share: float | PerRow) -> Logits:
    """Keep the tokens for which all more likely tokens have a total probability below `share`.

    At least one token is kept.
    """
    sorted_probabilities, order = logits.softmax(-1).sort(dim=-1, descending=True, stable=True)
    # Total probability of all more likely tokens.
    likelier_sum = cumsum(sorted_probabilities) - sorted_probabilities
    keep = likelier_sum < share
    keep[..., 0] = True
    return logits.masked_fill(~keep.scatter(-1, order, keep), -math.inf)


def keep_min_p(logits: Logits, p: float) -> Logits:
    """Keep tokens at least p times as likely as the most likely one (Nguyen et al. 2024).

    p = 0 keeps all.
    """
    return logits if p <= 0 else keep_above_ratio(logits, min_p_ratio(p))


def min_p_ratio(p: float) -> float:
    """Return the limit for min-p: a token is excluded if ln(probability / largest probability) is below it."""
    return -math.inf if p <= 0 else math.log(p) - ROUNDING


def keep_above_ratio(logits: Logits, log_ratio: float | PerRow) -> Logits:
    """Keep the tokens for which ln(probability / largest probability) is at least `log_ratio`."""
    ratio = logits - logits.amax(-1, keepdim=True)
    return logits.masked_fill(ratio < log_ratio, -math.inf)
