"""Checks of exercise 6: layer norm and residual block. The references are `tercet.nn.norm` and `tercet.nn.residual`."""

from types import ModuleType

import torch
from torch import Tensor, nn

from tercet.learn.compare import explain, normal
from tercet.nn.norm import LayerNorm
from tercet.nn.residual import Residual
from tercet.nn.specs import Placement

B, T, D = 2, 5, 6
WEIGHT, BIAS = 1 + normal(D, seed=8) / 4, normal(D, seed=9) / 4


def norm() -> nn.Module:
    """Return the reference with the weight and bias of the checks."""
    module = LayerNorm(D)
    module.load_state_dict({"weight": WEIGHT, "bias": BIAS})
    return module


def sublayer(x: Tensor) -> Tensor:
    """Return a function of a token's vector that is not linear."""
    return torch.tanh(x @ normal(D, D, seed=7))


@torch.no_grad()
def residual(x: Tensor, placement: Placement) -> Tensor:
    return Residual(norm, placement=placement)(x, sublayer)


@torch.no_grad()
def check_norm(solution: ModuleType) -> str | None:
    x = normal(B, T, D) * 3 + 2
    centered = x - x.mean(-1, keepdim=True)
    variance = x.var(-1, keepdim=True, correction=0)
    over_tokens = (x - x.mean((1, 2), keepdim=True)) / (x.var((1, 2), keepdim=True, correction=0) + 1e-5).sqrt()
    over_rows = (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()
    plain = centered / (variance + 1e-5).sqrt()
    return explain(
        solution.layer_norm(x, WEIGHT, BIAS),
        norm()(x),
        {
            "the variance is divided by D - 1; layer norm divides by D: use correction=0": (
                centered / (x.var(-1, keepdim=True) + 1e-5).sqrt() * WEIGHT + BIAS
            ),
            "the vectors are divided by the variance; divide by its square root": (
                centered / (variance + 1e-5) * WEIGHT + BIAS
            ),
            "the mean is not subtracted": x / (variance + 1e-5).sqrt() * WEIGHT + BIAS,
            "weight and bias are not used": plain,
            "the bias is not added": plain * WEIGHT,
            "mean and variance are those of all tokens of a row; use those of each token: dim=-1": (
                over_tokens * WEIGHT + BIAS
            ),
            "mean and variance are those of the batch; use those of each token: dim=-1": over_rows * WEIGHT + BIAS,
        },
    )


@torch.no_grad()
def check_small_numbers(solution: ModuleType) -> str | None:
    x = normal(B, T, D) * 3e-3  # a variance about as large as eps
    centered, variance = x - x.mean(-1, keepdim=True), x.var(-1, keepdim=True, correction=0)
    return explain(
        solution.layer_norm(x, WEIGHT, BIAS),
        norm()(x),
        {
            "eps is added after the square root; add it to the variance": (
                centered / (variance.sqrt() + 1e-5) * WEIGHT + BIAS
            ),
            "eps is not added": centered / variance.sqrt() * WEIGHT + BIAS,
        },
        name="the result for small numbers",
    )


@torch.no_grad()
def check_constant(solution: ModuleType) -> str | None:
    result = solution.layer_norm(torch.ones(B, T, D), WEIGHT, BIAS)
    return explain(result, BIAS.expand(B, T, D), name="the result for equal columns")


def check_gradient(solution: ModuleType) -> str | None:
    x, upstream = normal(B, T, D).requires_grad_(), normal(B, T, D, seed=2)
    result = solution.layer_norm(x, WEIGHT, BIAS)
    if not result.requires_grad:
        return "no gradient reaches the input; use operations of PyTorch, without .detach()"
    (expected,) = torch.autograd.grad((norm()(x) * upstream).sum(), x)
    (gradient,) = torch.autograd.grad((result * upstream).sum(), x)
    return explain(
        gradient,
        expected,
        {
            "mean or variance are detached from the graph; let the gradient flow through them": (
                upstream * WEIGHT / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt()
            ),
        },
        name="the gradient",
    )


@torch.no_grad()
def check_pre_norm(solution: ModuleType) -> str | None:
    x, normalized = normal(B, T, D), norm()(normal(B, T, D))
    return explain(
        solution.pre_norm(x, sublayer, WEIGHT, BIAS),
        residual(x, "pre"),
        {
            "the normalized vectors are added; the residual connection adds x itself": normalized
            + sublayer(normalized),
            "x is not added; the residual connection is missing": sublayer(normalized),
            "the norm is after the sum (post); apply it to the input of the sublayer": residual(x, "post"),
            "the norm is on the output of the sublayer; apply it to its input": residual(x, "branch"),
            "the norm is missing": x + sublayer(x),
        },
        name="pre_norm",
    )


@torch.no_grad()
def check_post_norm(solution: ModuleType) -> str | None:
    x = normal(B, T, D)
    return explain(
        solution.post_norm(x, sublayer, WEIGHT, BIAS),
        residual(x, "post"),
        {
            "x is not added; the residual connection is missing": norm()(sublayer(x)),
            "the norm is on the output of the sublayer; apply it to the sum": residual(x, "branch"),
            "the norm is before the sublayer (pre); apply it to the sum": residual(x, "pre"),
            "the norm is missing": x + sublayer(x),
        },
        name="post_norm",
    )


CHECKS = {
    "layer_norm equals the reference": check_norm,
    "layer_norm adds eps to the variance": check_small_numbers,
    "layer_norm accepts vectors with the variance 0": check_constant,
    "layer_norm has the gradient of the reference": check_gradient,
    "pre_norm equals the reference": check_pre_norm,
    "post_norm equals the reference": check_post_norm,
}
