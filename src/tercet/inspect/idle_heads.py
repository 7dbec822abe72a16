"""Heads without a function of their own, found from the weights: those that write nothing, and copies of others.

A head h maps the tokens that it attends to by the matrix O_h V_h, and chooses them by Q_hᵀ K_h. Both are products of
(D, K) matrices, so their inner products need only (K, K) matrices:

    <O_h V_h, O_j V_j> = sum((O_hᵀ O_j) * (V_h V_jᵀ))

Norms, biases and rotations are ignored.
"""

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.checkpoint.training_problems import TrainingProblem
from tercet.messages import counted
from tercet.models import AnyModel
from tercet.nn import Attention

IDLE = 1e-3  # norm of O V, relative to the median head, below which a head writes nothing
COPY = 0.99  # cosine of both matrices above which two heads are copies
MAX_NAMED = 3  # heads that a message names


def find_head_problems(model: AnyModel, *, step: int) -> list[TrainingProblem]:
    """Return problems of the attention heads of a model: heads that write nothing, and pairs of copies.

    Args:
        model: Model. Subclasses of `Attention`, and attention whose weights are quantized, are left out.
        step: Step of the training, for the result.
    """
    sizes, copies = dict[str, float](), list[str]()
    for name, module in model.named_modules():
        if type(module) is Attention and module.out.weight.is_floating_point():
            norms, pairs = _describe_heads(module)
            sizes |= {f"{name} head {head}": norm for head, norm in enumerate(norms)}
            copies += [f"{name} heads {first} and {second}" for first, second in pairs]
    limit = IDLE * float(torch.tensor([*sizes.values()]).median()) if sizes else 0.0
    idle = [name for name, norm in sizes.items() if norm <= limit]
    problems = list[TrainingProblem]()
    if idle:
        text = (
            f"{counted(len(idle), 'attention head writes', 'attention heads write')} nothing: {_listed(idle)}; reduce "
            "training.optimizer.lr or its weight decay, or use fewer heads"
        )
        problems.append(TrainingProblem(name="idle_heads", step=step, text=text))
    if copies:
        text = (
            f"{counted(len(copies), 'pair of attention heads has', 'pairs of attention heads have')} equal weights: "
            f"{_listed(copies)}; check the initial weights, or use fewer heads"
        )
        problems.append(TrainingProblem(name="equal_heads", step=step, text=text))
    return problems


@torch.no_grad()
def _describe_heads(attention: Attention) -> tuple[list[float], list[tuple[int, int]]]:
    """Return the norm of O V of each head, and the pairs of heads that are copies."""
    group = attention.n_heads // attention.n_kv_heads
    query = attention.query.weight.detach().float().unflatten(0, (attention.n_heads, -1))  # (H, K, D)
    key, value = (
        linear.weight.detach().float().unflatten(0, (attention.n_kv_heads, -1)).repeat_interleave(group, 0)
        for linear in (attention.key, attention.value)
    )
    out = attention.out.weight.detach().float().unflatten(1, (attention.n_heads, -1)).permute(1, 2, 0)  # (H, K, D)
    written, chosen = _inner_products(out, value), _inner_products(query, key)
    alike = ((_cosines(written) > COPY) & (_cosines(chosen) > COPY)).triu(1)
    return written.diagonal().clamp(min=0).sqrt().tolist(), [(int(i), int(j)) for i, j in alike.nonzero().tolist()]


def _inner_products(first: Float[Tensor, "H K D"], second: Float[Tensor, "H K E"]) -> Float[Tensor, "H H"]:
    """Return the inner products of all pairs of the (D, E) matrices first_hᵀ second_h."""
    return (torch.einsum("hkd,jld->hjkl", first, first) * torch.einsum("hkd,jld->hjkl", second, second)).sum((-2, -1))


def _cosines(products: Float[Tensor, "H H"]) -> Float[Tensor, "H H"]:
    norms = products.diagonal().clamp(min=1e-30).sqrt()
    return products / (norms[:, None] * norms)


def _listed(names: list[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {rest} more" if rest > 0 else "")
