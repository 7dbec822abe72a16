"""Which kernel works out attention, a linear layer or an activation of these tensors; None where PyTorch should.

Each function is a single question to its caller, who goes PyTorch's way at None.
"""

from torch import Tensor

from tercet.kernel.activations import activate, supports_activation
from tercet.kernel.decode_attention import decode_attention, supports_decode_attention
from tercet.kernel.flash_attention import flash_attention, supports_flash_attention
from tercet.kernel.inference_linear import inference_linear, supports_inference_linear
from tercet.kernel.short_attention import short_attention, supports_short_attention
from tercet.kernel.training_linear import supports_training_linear, training_linear


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
    """softmax(q kT / sqrt(K) + bias) v.

    Args:
        q: (B, H, T, K).
        k, v: (B, G, S, K); heads next to each other share one of the G.
        mask: (B or 1, 1, T or 1, S) bool: True where a query may see a key. One that sees none takes zeros.
        bias: (B or 1, H, T, S), added to the scores.
        causal: query t sees keys 0..t, and there is no mask.
        dropout: the share of attention weights set to zero.

    Returns:
        (B, H, T, K).
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
    """(x @ weight.T) * scale + bias.

    Args:
        x: (..., K).
        weight: (N, K), of parameters or in fewer bits.
        scale: (N) of an int8 weight, else None.
        bias: (N).

    Returns:
        (..., N).
    """
    if supports_inference_linear(x, weight, scale, bias):
        return inference_linear(x, weight, scale, bias)
    if supports_training_linear(x, weight, bias):
        return training_linear(x, weight, bias)
    return None


def activation(x: Tensor, name: str) -> Tensor | None:
    """relu, gelu, gelu_tanh, silu or relu_squared of each number of x, of any shape."""
    return activate(x, name) if supports_activation(x) else None
