"""Fuzz every operator with valid and invalid tensors: any number of reproducible cases from a seed.

    python tests/kernel/fuzz.py CASES [SEED [SHARD/SHARDS]]

Every other case is valid: the result must match the formula in float64. In the remaining cases one or two arguments are
replaced by a tensor of another size, dtype, layout, kind or device, or by another value. Such a call must raise a
Python exception, or return the shapes and dtypes of the operator's fake implementation; if only layout or kind has
changed, it must return the right numbers. Case N does not depend on the cases before it.
"""

import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tercet.kernel import adam_, gradient_norm, levels
from tercet.kernel.activations import activation_numbers
from tercet.kernel.build import library, multiplies_bfloat16
from tercet.nn.feedforward import ACTIVATIONS

ops, bf16 = torch.ops.tercet, torch.bfloat16
REFUSALS = (ValueError, TypeError, RuntimeError, IndexError, NotImplementedError, AttributeError)
Arguments = list[Any]


class Case(NamedTuple):
    """Arguments for an operator, its formula in float64 (None if undefined), and a tolerance."""

    arguments: Arguments
    formula: Callable[..., Any]
    tolerance: float


class CustomTensor(Tensor):
    """A third-party subclass of Tensor."""


def draw_mask(pick: random.Random, batch: int, queries: int, keys: int) -> Tensor | None:
    shape = (pick.choice([1, batch]), 1, pick.choice([1, queries]), keys)
    return pick.choice([None, torch.rand(shape) < 0.7])


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool = False) -> Tensor:
    """Return attention in float64, (B, H, T, K); queries that see no key get zeros."""
    q, k, v = (x.double() for x in (q, k, v))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = q @ k.mT / q.shape[-1] ** 0.5
    visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril() if causal else mask
    return attention_weights(scores, visible) @ v


def attention_weights(scores: Tensor, visible: Tensor | None) -> Tensor:
    if visible is None:
        return scores.softmax(-1)
    return scores.masked_fill(~visible, -1e300).softmax(-1).masked_fill(~visible, 0.0)


def inference_linear(pick: random.Random) -> Case:
    rows, k, n = pick.choice([1, 2, 3, 4, 9, 17, 40]), pick.randint(1, 40), pick.randint(1, 40)
    dtype = pick.choice([torch.float32, bf16, torch.int8])
    weight = torch.randint(-127, 128, (n, k)).to(dtype) if dtype == torch.int8 else torch.randn(n, k).to(dtype)
    vectors = [pick.choice([None, torch.rand(n)]) for _ in range(2)]

    def formula(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
        y = x.double() @ weight.double().T
        return (y if scale is None else y * scale) + (0 if bias is None else bias)

    return Case([torch.randn(rows, k), weight, *vectors], formula, 1e-5 * (100 if dtype == torch.int8 else 1))


def decode_attention(pick: random.Random) -> Case:
    b, t, g, s, k = (
        pick.randint(1, 3),
        pick.randint(1, 4),
        pick.randint(1, 3),
        pick.randint(1, 40),
        8 * pick.randint(1, 5),
    )
    h = g * pick.randint(1, 3)
    tables = [torch.randn(b, g, s + pick.randint(0, 3), k)[:, :, :s] for _ in range(2)]

    def formula(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        return attention(q.transpose(1, 2), k, v, mask).transpose(1, 2)

    return Case([torch.randn(b, t, h, k), *tables, draw_mask(pick, b, t, s)], formula, 1e-4)


def top_tokens(pick: random.Random) -> Case:
    n, h, v = pick.randint(1, 3), pick.randint(1, 4), pick.randint(1, 50)
    forbidden = torch.tensor([pick.randrange(v) for _ in range(pick.randint(0, 2))], dtype=torch.long)

    def formula(
        scores: Tensor, totals: Tensor, count: int, forbidden: Tensor, end: int, early: Tensor
    ) -> tuple[Tensor, None, None]:
        sums = totals.double()[:, :, None] + scores.double().log_softmax(-1).view(*totals.shape, -1)
        sums[:, :, [i for i in forbidden.tolist() if 0 <= i < sums.shape[-1]]] = -torch.inf
        if 0 <= end < sums.shape[-1]:
            sums[early, :, end] = -torch.inf
        flat = F.pad(sums.flatten(1), (0, count), value=-torch.inf)
        return flat.topk(count).values, None, None

    scores = torch.randn(n * h, v + pick.randint(0, 2))[:, :v]
    count, early = pick.randint(1, 9), torch.rand(n) < 0.5
    return Case([scores, torch.randn(n, h), count, forbidden, pick.randrange(v), early], formula, 1e-4)


def cross_entropy_(pick: random.Random) -> Case:
    n, v, dtype = pick.randint(1, 9), pick.randint(1, 50), pick.choice([torch.float32, bf16])
    targets = torch.tensor([pick.choice([-100, *range(v)]) for _ in range(n)])

    def formula(
        scores: Tensor, targets: Tensor, smoothing: float, softcap: float | None, learns: bool
    ) -> tuple[Tensor, Tensor]:
        z = scores.double() if softcap is None else softcap * torch.tanh(scores.double() / softcap)
        totals, plains = (
            F.cross_entropy(z, targets, reduction="none", label_smoothing=share) for share in (float(smoothing), 0.0)
        )
        return totals, plains

    arguments = [
        torch.randn(n, v).to(dtype),
        targets,
        pick.choice([0.0, 0.1]),
        pick.choice([None, 15.0]),
        pick.random() < 0.5,
    ]
    return Case(arguments, formula, 1e-4)


def masked_softmax(pick: random.Random) -> Case:
    b, h, t, s = pick.randint(1, 2), pick.randint(1, 3), pick.randint(1, 20), pick.randint(1, 40)
    causal = pick.random() < 0.4 and t <= s
    mask, dtype = None if causal else draw_mask(pick, b, t, s), pick.choice([torch.float32, bf16])

    def formula(scores: Tensor, mask: Tensor | None, causal: bool) -> Tensor:
        visible = torch.ones(scores.shape[-2:], dtype=torch.bool).tril() if causal else mask
        return attention_weights(scores.double(), visible)

    return Case([torch.randn(b, h, t, s).to(dtype), mask, causal], formula, 0.02 if dtype == bf16 else 1e-4)


def masked_softmax_backward(pick: random.Random) -> Case:
    (scores, _, causal), _, tolerance = masked_softmax(pick)

    def formula(grad_output: Tensor, weights: Tensor, causal: bool) -> Tensor:
        if causal:
            weights = weights.tril()
        grad_output, weights = grad_output.double(), weights.double()
        return weights * (grad_output - (weights * grad_output).sum(-1, keepdim=True))

    weights = attention_weights(scores.float(), None).to(scores.dtype)
    return Case([torch.randn_like(scores), weights, causal], formula, 2 * tolerance)


def activate(pick: random.Random) -> Case:
    def formula(x: Tensor, name: str) -> Tensor:
        return x.double() if name == "none" else ACTIVATIONS[name](x.double())

    x = torch.randn(pick.randint(1, 70)).to(pick.choice([torch.float32, bf16]))
    return Case([x, pick.choice([*activation_numbers()])], formula, 0.02 if x.dtype == bf16 else 1e-5)


def activate_backward(pick: random.Random) -> Case:
    (x, name), forward, tolerance = activate(pick)

    def formula(grad_output: Tensor, x: Tensor, name: str) -> Tensor:
        leaf = x.detach().double().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(forward(leaf, name), leaf, grad_output.double())[0]

    return Case([torch.randn_like(x), x, name], formula, 2 * tolerance)


def product_dtype(pick: random.Random) -> torch.dtype:
    return pick.choice([torch.float32, bf16] if multiplies_bfloat16() else [torch.float32])


def linear(pick: random.Random) -> Case:
    rows, k, n = pick.randint(1, 60), 16 * pick.randint(1, 3), pick.randint(1, 60)
    bias = None if n % 16 else torch.randn(n)

    def formula(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        y = F.linear(x.double(), weight.double(), None if bias is None else bias.double())
        return F.pad(y, (0, -y.shape[-1] % 16))

    x = torch.randn(rows, k).to(product_dtype(pick))
    return Case([x, torch.randn(n, k), bias], formula, 0.15 if x.dtype == bf16 else 1e-4)


def linear_backward(pick: random.Random) -> Case:
    (x, weight, bias), _, tolerance = linear(pick)
    expected = [pick.random() < 0.6, pick.random() < 0.6, bias is not None]

    def formula(grad_output: Tensor, x: Tensor, weight: Tensor, needs: list[bool]) -> tuple[Tensor, ...]:
        dy = grad_output.double()[..., : len(weight)]
        gradients = dy @ weight.double(), dy.mT @ x.double(), dy.sum(0)
        return tuple(y if need else y.new_empty(0) for y, need in zip(gradients, needs, strict=True))

    grad_output = torch.randn(len(x), len(weight) + -len(weight) % 16).to(x.dtype)
    return Case([grad_output, x, weight, expected], formula, 2 * tolerance)


def flash_attention(pick: random.Random) -> Case:
    b, t, g, s, k = (
        pick.randint(1, 2),
        pick.randint(1, 60),
        pick.randint(1, 2),
        pick.randint(1, 60),
        16 * pick.randint(1, 3),
    )
    h, causal = g * pick.randint(1, 2), pick.random() < 0.4
    s = t if causal else s
    dtype = product_dtype(pick)
    q, keys, values = (torch.randn(b, n, tokens, k).to(dtype) for n, tokens in ((h, t), (g, s), (g, s)))

    def formula(*arguments: Any) -> tuple[Tensor, None]:
        return attention(*arguments), None

    tolerance = 0.1 if dtype == bf16 else 1e-4
    return Case([q, keys, values, None if causal else draw_mask(pick, b, t, s), causal], formula, tolerance)


def flash_attention_backward(pick: random.Random) -> Case:
    (q, k, v, mask, causal), _, tolerance = flash_attention(pick)
    y, logsumexp = ops.flash_attention(q, k, v, mask, causal)

    def formula(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, y: Tensor, lse: Tensor, mask: Any, causal: bool) -> Any:
        sources = [x.detach().double().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            return torch.autograd.grad(attention(*sources, mask, causal), sources, dy.double())

    return Case([torch.randn_like(y), q, k, v, y, logsumexp, mask, causal], formula, 3 * tolerance)


CASES = [
    inference_linear, decode_attention, top_tokens, cross_entropy_, masked_softmax, masked_softmax_backward, activate,
    activate_backward, linear, linear_backward, flash_attention, flash_attention_backward,
]  # fmt: skip


def spoil(pick: random.Random, x: Any) -> tuple[Any, bool]:
    """Return a replacement for an argument, and whether its numbers and shape are unchanged."""
    if not isinstance(x, Tensor):
        invalid = [None, True, -3, -1, 0, 1, 7, 2**40, 0.1, -1.0, 2.0, float("nan"), "gelu", "none", "sine", [True]]
        return pick.choice(invalid), False
    form = pick.choice(
        ["size", "size", "axes", "dtype", "values", "gaps", "transposed", "meta", "class", "negative", "learns", "none"]
    )
    if form == "size" and x.ndim:
        axis, size = pick.randrange(x.ndim), pick.choice([0, 1, 2, 3, 8, 16, 17, 31, 33, 48])
        return torch.ones((*x.shape[:axis], size, *x.shape[axis + 1 :]), dtype=x.dtype), False
    if form == "axes":
        return (x[None] if pick.random() < 0.5 or not x.ndim else x.flatten()[:1].squeeze()), False
    if form == "dtype":
        return x.to(
            pick.choice([torch.float32, bf16, torch.float16, torch.float64, torch.int8, torch.int64, torch.bool])
        ), False
    if form == "values":
        number = pick.choice([float("inf"), -float("inf"), float("nan"), 1e38, -1e38, 0.0, -1.0, 1e18])
        return torch.where(torch.rand(x.shape) < 0.3, torch.tensor(number).to(x.dtype), x), False
    if form == "gaps" and x.ndim:
        return x.repeat_interleave(2, -1)[..., ::2], True
    if form == "transposed" and x.ndim > 1:
        return x.mT.contiguous().mT, True
    if form == "negative" and x.dtype == torch.float32:
        return torch._neg_view(-x), True
    if form == "meta":
        return x.to("meta"), False
    if form == "class":
        return x.as_subclass(CustomTensor), True
    if form == "learns" and x.is_floating_point():
        return x.detach().clone().requires_grad_(), True
    return None, False


def result_tensors(answer: Any) -> list[Tensor | None]:
    return list(answer) if isinstance(answer, tuple) else [answer]


def check(case: Case, name: str, *, right: bool, exact: bool) -> bool:
    """Return whether the operator returned a result; raise an error if its behavior is wrong.

    Args:
        right: If True, the operator must not raise.
        exact: If True, a result must match the formula.
    """
    arguments = case.arguments
    plain = [x.detach().as_subclass(Tensor).clone() if isinstance(x, Tensor) else x for x in arguments]  # originals
    operator = getattr(ops, name)
    try:
        answer = result_tensors(operator(*arguments))
    except REFUSALS:
        if right:
            raise
        return False
    if any(x is not None and x.device.type != "cpu" for x in answer):
        return True
    shapes = [(x.shape, x.dtype) for x in answer if x is not None]
    if all(not isinstance(x, Tensor) or type(x) is Tensor for x in arguments):
        fakes = [x.to("meta") if isinstance(x, Tensor) else x for x in arguments]
        with torch.no_grad():
            assert shapes == [(x.shape, x.dtype) for x in result_tensors(operator(*fakes)) if x is not None]
    if exact:
        expected = result_tensors(case.formula(*plain))
        for x, y in zip(answer, expected, strict=True):
            if x is not None and y is not None:
                torch.testing.assert_close(
                    x.detach().as_subclass(Tensor).double(), y, atol=case.tolerance, rtol=0.02, check_stride=False
                )
    return True


def optimize(pick: random.Random, *, hurt: bool) -> bool:
    """Test the AdamW step and the gradient norm, which are not operators."""
    shapes = [(pick.choice([1, 7, 33, 1 << 14]),) for _ in range(pick.randint(1, 3))]
    tensors = {
        name: [torch.rand(shape) for shape in shapes] for name in ("parameters", "gradients", "means", "squares")
    }
    tensors["steps"] = [torch.zeros(()) for _ in shapes]
    expected = torch.cat([x.double() for x in tensors["gradients"]]).norm()
    if hurt:
        name, place = pick.choice([*tensors]), pick.randrange(len(shapes))
        spoiled, _ = spoil(pick, tensors[name][place])
        tensors[name][place] = pick.choice([spoiled, tensors["parameters"][0]])
    try:
        adam_(*tensors.values(), settings=[(0.1, 0.9, 0.99, 1e-8, 0.1)] * len(shapes))
        norm = gradient_norm(tensors["gradients"])
    except REFUSALS:
        if not hurt:
            raise
        return False
    assert hurt or abs(float(norm) - float(expected)) < 1e-4 * float(expected) + 1e-6
    return True


def run(case_number: int, seed: int, kinds: list[Callable[[random.Random], Case]]) -> tuple[str, bool, bool]:
    """Return the operator's name, whether its arguments were valid, and whether it returned a result."""
    pick = random.Random(seed << 40 | case_number)
    torch.manual_seed(pick.getrandbits(60))
    kind, hurt = case_number // 2 % (len(kinds) + 1), case_number % 2 == 1
    if kind == len(kinds):
        return "adam_", not hurt, optimize(pick, hurt=hurt)
    case, exact = kinds[kind](pick), True
    for place in pick.sample(range(len(case.arguments)), pick.randint(1, 2) if hurt else 0):
        case.arguments[place], is_equivalent = spoil(pick, case.arguments[place])
        exact = exact and is_equivalent
    name = kinds[kind].__name__
    try:
        return name, not hurt, check(case, name, right=not hurt, exact=exact)
    except Exception as error:
        error.add_note(f"{name}, case {case_number} of seed {seed}")
        raise


def main(cases: int, seed: int = 0, shard: str = "0/1") -> None:
    levels.COMPILE_TIMEOUT = 900.0  # sanitizers are slow
    assert library() is not None
    first, step = (int(word) for word in shard.split("/"))
    counts, start = Counter[tuple[bool, bool]](), time.monotonic()
    for number in range(first, cases, step):
        _, right, process = run(number, seed, CASES)
        counts[right, process] += 1
    seconds = time.monotonic() - start
    print(
        f"{counts.total():,} cases of {len(CASES) + 1} operators, {counts.total() / seconds:,.0f} a second: "
        f"{counts[True, True]:,} right, {counts[False, True]:,} other answers, {counts[False, False]:,} refusals"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]), *(int(word) for word in sys.argv[2:3]), *sys.argv[3:4])
