"""Checks of exercise 3: scaled dot-product attention. The reference is `tercet.nn.attention.attend_by_hand`."""

from types import ModuleType

import torch
from torch import Tensor

from tercet.learn.compare import explain, normal
from tercet.nn.attention import attend_by_hand

B, H, T, S, K = 2, 3, 5, 7, 4


def tensors(seed: int = 1) -> tuple[Tensor, Tensor, Tensor]:
    """Return queries, keys and values."""
    return normal(B, H, T, K, seed=seed), normal(B, H, S, K, seed=seed + 1), normal(B, H, S, K, seed=seed + 2)


def check_reference(solution: ModuleType) -> str | None:
    q, k, v = tensors()
    scores = q @ k.mT
    return explain(
        solution.attention(q, k, v),
        attend_by_hand(q, k, v),
        {
            "the scores are not divided by sqrt(head_dim)": scores.softmax(-1) @ v,
            "the scores are divided by head_dim instead of sqrt(head_dim)": (scores / K).softmax(-1) @ v,
            "the scores are multiplied by sqrt(head_dim) instead of divided": (scores * K**0.5).softmax(-1) @ v,
            "the scores are divided by sqrt(H * K), the width of the model; use K, the width of a head": (
                (scores / (H * K) ** 0.5).softmax(-1) @ v
            ),
            "the scores are divided by the square root of the number of keys; use the width K": (
                (scores / S**0.5).softmax(-1) @ v
            ),
            "the softmax is over the queries; the weights of each query must sum to 1: use dim=-1": (
                (scores / K**0.5).softmax(-2) @ v
            ),
            "there is no softmax; the scores are used as weights": scores / K**0.5 @ v,
            "the weights are divided by sqrt(head_dim) after the softmax; divide the scores": (
                scores.softmax(-1) / K**0.5 @ v
            ),
        },
    )


def check_weights(solution: ModuleType) -> str | None:
    q, k, _ = tensors(seed=4)
    result = solution.attention(q, k, torch.ones(B, H, S, K))
    if explain(result, torch.ones(B, H, T, K)) is not None:
        return "the weights of a query do not sum to 1: with values of 1, each output must be 1; check the softmax"
    return None


def check_order_of_keys(solution: ModuleType) -> str | None:
    q, k, v = tensors(seed=7)
    order = torch.tensor([3, 0, 6, 1, 5, 2, 4])
    return explain(
        solution.attention(q, k[:, :, order], v[:, :, order]),
        solution.attention(q, k, v),
        name="the result for keys and values in another order",
    )


def check_large_scores(solution: ModuleType) -> str | None:
    q, k, v = tensors(seed=10)
    result = solution.attention(q * 1000, k * 1000, v)
    if isinstance(result, Tensor) and not result.isfinite().all():
        return "large scores give NaN: exp overflows; subtract the maximum first, as torch.softmax does"
    return explain(result, attend_by_hand(q * 1000, k * 1000, v), name="the result for large scores")


def check_gradients(solution: ModuleType) -> str | None:
    inputs = [tensor.requires_grad_() for tensor in tensors(seed=13)]
    result = solution.attention(*inputs)
    upstream = normal(B, H, T, K, seed=16)
    if not result.requires_grad:
        return "no gradient reaches the inputs; use operations of PyTorch, without .detach() or .data"
    expected = torch.autograd.grad((attend_by_hand(*inputs) * upstream).sum(), inputs)
    gradients = torch.autograd.grad((result * upstream).sum(), inputs, allow_unused=True)
    for name, gradient, reference in zip(("q", "k", "v"), gradients, expected, strict=True):
        if gradient is None:  # type: ignore[reportUnnecessaryComparison]  # allow_unused
            return f"no gradient reaches {name}; use operations of PyTorch, without .detach() or .data"
        if (problem := explain(gradient, reference, name=f"the gradient of {name}")) is not None:
            return problem
    return None


CHECKS = {
    "the output equals the reference": check_reference,
    "the weights of each query sum to 1": check_weights,
    "the order of keys and values does not matter": check_order_of_keys,
    "large scores give no NaN": check_large_scores,
    "the gradients equal those of the reference": check_gradients,
}
