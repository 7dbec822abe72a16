"""Checks of exercise 5: multi-head attention. The reference is `tercet.nn.attention.Attention`."""

from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.learn.compare import explain, normal
from tercet.nn.attention import Attention

B, T, S, D, H = 2, 5, 7, 12, 3
K = D // H


def inputs() -> tuple[Tensor, Tensor, list[Tensor]]:
    """Return x, a source, and the weights of the four projections."""
    return normal(B, T, D), normal(B, S, D, seed=2), [normal(D, D, seed=3 + n) / D**0.5 for n in range(4)]


@torch.no_grad()
def reference(x: Tensor, source: Tensor, weights: list[Tensor], n_heads: int = H) -> Tensor:
    """Return the output of Tercet's module with these weights."""
    module = Attention(D, n_heads)
    projections = (module.query, module.key, module.value, module.out)
    for projection, weight in zip(projections, weights, strict=True):
        projection.weight.copy_(weight)
    return module(x, source)


def check_split(solution: ModuleType) -> str | None:
    x = normal(B, T, D)
    return explain(
        solution.split_heads(x, H),
        x.unflatten(-1, (H, K)).transpose(1, 2),
        {
            "the heads mix tokens; split the last dimension into (H, K) and then swap the dimensions of T and H": (
                x.reshape(B, H, T, K)
            ),
            "the dimensions are (B, T, H, K); move H in front of T": x.unflatten(-1, (H, K)),
            "head h has every H-th column; it must have K neighboring columns": x.unflatten(-1, (K, H)).permute(
                0, 3, 1, 2
            ),
        },
        name="split_heads",
    )


def check_merge(solution: ModuleType) -> str | None:
    heads = normal(B, H, T, K)
    return explain(
        solution.merge_heads(heads),
        heads.transpose(1, 2).flatten(-2),
        {
            "the heads are not swapped back: swap the dimensions of H and T before you join H and K": (
                heads.reshape(B, T, D)
            ),
            "the columns of the heads alternate; those of head 0 come first": heads.permute(0, 2, 3, 1).flatten(-2),
        },
        name="merge_heads",
    )


def check_round_trip(solution: ModuleType) -> str | None:
    x = normal(B, T, D, seed=2)
    return explain(solution.merge_heads(solution.split_heads(x, H)), x, name="merge_heads(split_heads(x))")


def _wrong_attention(x: Tensor, source: Tensor, weights: list[Tensor], mistake: str) -> Tensor:
    """Return the output of attention with a mistake: "one head", "scale", "no output", or none for ""."""
    w_q, w_k, w_v, w_o = weights
    n_heads = 1 if mistake == "one head" else H
    q, k, v = (
        F.linear(read, weight).unflatten(-1, (n_heads, -1)).transpose(1, 2)
        for read, weight in ((x, w_q), (source, w_k), (source, w_v))
    )
    scores = q @ k.mT / (D if mistake == "scale" else q.shape[-1]) ** 0.5
    merged = (scores.softmax(-1) @ v).transpose(1, 2).flatten(-2)
    return merged if mistake == "no output" else F.linear(merged, w_o)


def check_cross_attention(solution: ModuleType) -> str | None:
    x, source, weights = inputs()
    transposed = [weight.mT for weight in weights]
    return explain(
        solution.multi_head_attention(x, source, *weights, H),
        reference(x, source, weights),
        {
            "the source is ignored: keys and values are projected from x": reference(x, x, weights),
            "the output projection w_o is missing": _wrong_attention(x, source, weights, "no output"),
            "the scores are divided by sqrt(D); use K = D / H, the width of a head": _wrong_attention(
                x, source, weights, "scale"
            ),
            "n_heads is ignored: there is one head": _wrong_attention(x, source, weights, "one head"),
            "the weights are used as x @ w; nn.Linear computes x @ w.T": reference(x, source, transposed),
            "keys and values are swapped": reference(x, source, [weights[0], weights[2], weights[1], weights[3]]),
        },
    )


def check_self_attention(solution: ModuleType) -> str | None:
    x, _, weights = inputs()
    return explain(solution.multi_head_attention(x, x, *weights, H), reference(x, x, weights))


def check_heads_differ(solution: ModuleType) -> str | None:
    x, source, weights = inputs()
    for n_heads in (1, 2, 6):
        result = solution.multi_head_attention(x, source, *weights, n_heads)
        expected = reference(x, source, weights, n_heads)
        if (problem := explain(result, expected, name=f"the result with {n_heads} heads")) is not None:
            return problem
    return None


CHECKS = {
    "split_heads gives each head its columns": check_split,
    "merge_heads concatenates the heads": check_merge,
    "merge_heads undoes split_heads": check_round_trip,
    "cross-attention equals the reference": check_cross_attention,
    "self-attention equals the reference": check_self_attention,
    "other numbers of heads equal the reference": check_heads_differ,
}
