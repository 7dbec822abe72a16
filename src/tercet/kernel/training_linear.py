"""Training of a linear layer with float32 weights.

Products are computed in float32 or, in mixed precision, in bfloat16.

One call computes all gradients, including that of the bias, for which PyTorch makes a separate pass. In mixed precision
PyTorch converts each weight to bfloat16, keeps the copy for the backward pass, computes the weight's gradient in
bfloat16 and converts it to float32. Here weights and their gradients are always float32. Weights are converted only
when they are packed for the product, and gradients are summed in float32.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tercet.kernel.build import kernel_of
from tercet.kernel.contract import Contract, count_rows
from tercet.kernel.operators import differentiable, operator
from tercet.kernel.threads import kernel_threads
from tercet.kernel.tuning import is_faster, product_dtype

MIN_WORK = 1 << 20  # minimum number of multiplications for which compiling the kernel pays
MIN_ROWS = 16  # minimum number of rows for which packing the weights pays
STEP = 16  # in_features and the width of the kernel's output are multiples of this
INPUT = Contract("linear", weight="float32[N K%16]", x="float32|bfloat16[* K] strided", bias="float32[N]?")
FORWARD = Contract("linear", weight="float32[N K%16]", x="float32|bfloat16[* K]", bias="float32[N%16]?")
BACKWARD = Contract(
    "linear_backward", weight="float32[N K%16]", x="float32|bfloat16[* K]", grad_output="x[* P] strided"
)


def supports_training_linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, padded: bool = False) -> bool:
    """Return whether the kernel supports this product of a float32 weight on a CPU and is faster.

    Args:
        x: (..., K).
        weight: (N, K).
        bias: (N).
        padded: If True, the caller accepts zeros after the N numbers of a row.
    """
    rows = count_rows(x)
    return (
        not torch.compiler.is_exporting()
        and rows >= MIN_ROWS
        and rows * weight.numel() >= MIN_WORK
        and (padded or weight.shape[0] % STEP == 0)
        and INPUT.fits(weight, x, bias)
        and (x.dtype == torch.float32 or torch.is_autocast_enabled("cpu"))
        and is_faster("linear", product_dtype(x), rows * weight.numel())
    )


def training_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x wT + b. Requires `supports_training_linear`.

    Args:
        x: (..., K).
        weight: (N, K) float32.
        bias: (N) float32.

    Returns:
        (..., N) in the dtype of the product.
    """
    return _differentiable(x.to(product_dtype(x)).contiguous(), weight, bias)


def _fake(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    return x.new_empty((*x.shape[:-1], -(-weight.shape[0] // STEP) * STEP))


@operator("linear", _fake)
def linear_forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Return x wT + b, padded with zeros to a multiple of 16 columns. With a bias, N must be a multiple of 16."""
    sizes = FORWARD.sizes(weight, x, bias)
    out_features, in_features = sizes["N"], sizes["K"]
    y = _fake(x, weight, bias)
    kernel_of("linear_forward", x.dtype)(
        x, weight, bias, y, x.numel() // in_features, in_features, out_features, kernel_threads()
    )
    return y


def _fake_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, needs_grad: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    return (
        x.new_empty(x.shape if needs_grad[0] else 0),
        weight.new_empty(weight.shape if needs_grad[1] else 0),
        weight.new_empty(len(weight) if needs_grad[2] else 0),
    )


@operator("linear_backward", _fake_backward)
def linear_backward(
    grad_output: Tensor, x: Tensor, weight: Tensor, needs_grad: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of x, weight and bias. Those that are not needed are empty tensors.

    Args:
        grad_output: (..., P) Gradient of the result of `linear_forward`, with its padded width P.
        x, weight: Arguments of `linear_forward`.
        needs_grad: Whether the gradients of x, weight and bias are needed. That of a bias requires that N is a multiple
            of 16.
    """
    sizes = BACKWARD.sizes(weight, x, grad_output)
    out_features, in_features = sizes["N"], sizes["K"]
    if sizes["P"] != -(-out_features // STEP) * STEP:
        raise ValueError(f"linear_backward: wrong width of the gradient for N={out_features}: {sizes['P']}")
    if len(needs_grad) != 3 or (needs_grad[2] and out_features % STEP):
        raise ValueError(
            f"linear_backward: needs_grad must have 3 items, and N={out_features} be a multiple of {STEP} for a bias"
        )
    gradients = _fake_backward(grad_output, x, weight, needs_grad)
    if not x.numel():  # no rows to sum
        return gradients[0], gradients[1].zero_(), gradients[2].zero_()
    kernel_of("linear_backward", x.dtype)(
        grad_output.contiguous(), x, weight, *gradients, x.numel() // in_features, in_features, out_features,
        kernel_threads(),
    )  # fmt: skip
    return gradients


def _setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    x, weight, _ = inputs
    ctx.save_for_backward(x if ctx.needs_input_grad[1] else None, weight)  # a frozen weight does not need the input


def _gradients(ctx: Any, grad_output: Tensor) -> tuple[Tensor | None, ...]:
    x, weight = ctx.saved_tensors
    needs_grad = ctx.needs_input_grad
    if x is None:  # only its shape is used
        x = grad_output.new_empty((*grad_output.shape[:-1], weight.shape[1]))
    gradients = linear_backward(grad_output, x, weight, needs_grad)
    return tuple(gradient if needs else None for gradient, needs in zip(gradients, needs_grad, strict=True))


_differentiable = differentiable(linear_forward, _setup_context, _gradients)
