"""Kernels for the operations of other packages.

Each operation returns None if no kernel supports its tensors or PyTorch is faster. The caller then uses PyTorch.
"""

from dataclasses import dataclass

from torch import Tensor

from tercet.kernel.activations import activate, supports_activation
from tercet.kernel.beam import supports_scores
from tercet.kernel.beam import top_tokens as _top_tokens
from tercet.kernel.build import build_id, choose_kernels
from tercet.kernel.cross_entropy import cross_entropy_ as _cross_entropy_
from tercet.kernel.cross_entropy import supports_logits
from tercet.kernel.decode_attention import decode_attention, supports_decode_attention
from tercet.kernel.flash_attention import flash_attention, supports_flash_attention
from tercet.kernel.inference_linear import inference_linear, supports_inference_linear
from tercet.kernel.levels import LEVELS, cpu_instructions, cpu_model, find_compiler
from tercet.kernel.short_attention import short_attention, supports_short_attention
from tercet.kernel.training_linear import supports_training_linear, training_linear
from tercet.kernel.tuning import describe_table, kernel_table


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
) -> Tensor | None:
    """Return softmax(q kT / sqrt(K) + bias) v.

    Args:
        q: (B, H, T, K).
        k, v: (B, G, S, K). Each of the G heads is shared by consecutive query heads.
        mask: (B or 1, 1, T or 1, S) bool, True if a query may attend to a key. A query without keys gives zeros.
        bias: (B or 1, H, T, S), added to the scores.
        causal: If True, query t attends to keys 0..t, and there must be no mask.
        dropout: Share of attention weights that are set to zero.

    Returns:
        (B, H, T, K), or None.
    """
    if not all(x is None or x.is_cpu for x in (q, k, v, mask, bias)) or not q.ndim == k.ndim == v.ndim == 4:
        return None
    if k.shape[:-1] != v.shape[:-1] or not k.shape[1] or q.shape[1] % k.shape[1]:
        return None
    if bias is None and not dropout:
        if not causal and supports_decode_attention(q, k, v, mask):
            return decode_attention(q, k, v, mask)
        if supports_flash_attention(q, k, v, mask, causal=causal):
            return flash_attention(q, k, v, mask=mask, causal=causal)
    if supports_short_attention(q, k):
        return short_attention(q, k, v, mask=mask, bias=bias, causal=causal, dropout=dropout)
    return None


def linear(x: Tensor, weight: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """Return (x @ weight.T) * scale + bias.

    Args:
        x: (..., K).
        weight: (N, K), parameter or quantized weight.
        scale: (N) Scales of an int8 weight, else None.
        bias: (N), or None.

    Returns:
        (..., N), or None.
    """
    if supports_inference_linear(x, weight, scale, bias):
        return inference_linear(x, weight, scale, bias)
    if supports_training_linear(x, weight, bias):
        return training_linear(x, weight, bias)
    return None


def activation(x: Tensor, name: str) -> Tensor | None:
    """Apply relu, gelu, gelu_tanh, silu or relu_squared to each element of `x`, of any shape."""
    return activate(x, name) if supports_activation(x) else None


def cross_entropy_(
    scores: Tensor, targets: Tensor, *, smoothing: float, softcap: float | None, needs_grad: bool
) -> tuple[Tensor, Tensor] | None:
    """Return the loss of each row with and without smoothing; see `cross_entropy.cross_entropy_`."""
    if not supports_logits(scores):
        return None
    return _cross_entropy_(scores, targets, smoothing=smoothing, softcap=softcap, needs_grad=needs_grad)


def top_tokens(
    scores: Tensor, totals: Tensor, count: int, *, forbidden: Tensor, eos_id: int, is_early: Tensor
) -> tuple[Tensor, Tensor, Tensor] | None:
    """Return the best continuations of the hypotheses of a beam; see `beam.top_tokens`."""
    if not supports_scores(scores):
        return None
    return _top_tokens(scores, totals, count, forbidden=forbidden, eos_id=eos_id, is_early=is_early)


@dataclass(frozen=True)
class KernelDescription:
    """The kernels of this process and the reasons for their choice.

    Attributes:
        level: Instruction set, as in `TERCET_KERNEL`; "none" without kernels.
        origin: "prebuilt" for kernels of the wheel, "compiled" for kernels that were compiled on this machine, or
            "none".
        reason: Reason for the choice of these kernels, or for their absence, in one line.
        build: Level and hash of the code, as recorded in runs; None without kernels.
        table: Amount of work for which each kernel replaces PyTorch's operation, in one line.
        cpu: Name of the CPU.
        instructions: Names in Linux of those instructions of the CPU on which the choice of the kernels, or of
            PyTorch's libraries, depends.
        compiler: Path of the C++ compiler; None if there is none.
    """

    level: str
    origin: str
    reason: str
    build: str | None
    table: str
    cpu: str
    instructions: list[str]
    compiler: str | None


def describe_kernels() -> KernelDescription:
    """Describe the kernels of this process. Compile them first if there are none for this CPU yet.

    Raises:
        UserError: If `TERCET_KERNEL` is unknown, or requires instructions that this CPU does not support.
    """
    choice = choose_kernels()
    relevant = frozenset[str]().union(*(level.needs for level in LEVELS))
    prefixes = ("amx_", "avx", "bf16", "sve")
    return KernelDescription(
        level=choice.level,
        origin=choice.origin,
        reason=choice.reason,
        build=build_id(),
        table=describe_table(kernel_table()),
        cpu=cpu_model(),
        instructions=sorted(name for name in cpu_instructions() if name in relevant or name.startswith(prefixes)),
        compiler=find_compiler(),
    )
