"""Argument types of the C++ functions, with which ctypes converts tensors and numbers."""

import ctypes
import struct
from collections.abc import Sequence
from typing import Any

from torch import Tensor


class Address:
    """A tensor, or None, passed as the address of its first element."""

    @classmethod
    def from_param(cls, tensor: Tensor | None) -> ctypes.c_void_p | None:
        return None if tensor is None else ctypes.c_void_p(tensor.data_ptr())


class Integers:
    """Integers, passed as an array of 64 bits each. `struct` is several times as fast as an array of ctypes."""

    @classmethod
    def from_param(cls, numbers: Sequence[int]) -> bytes:
        return pack_integers(numbers)


def pack_integers(numbers: Sequence[int]) -> bytes:
    return struct.pack(f"{len(numbers)}q", *numbers)


POINTER, SIZE, FLOAT, FLAG, THREADS = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int, ctypes.c_int
LINEAR = [*[Address] * 5, *[SIZE] * 3, THREADS]
CROSS_ENTROPY = [Address, *[SIZE] * 3, Address, *[FLOAT] * 2, FLAG, *[Address] * 2, POINTER, THREADS]
SOFTMAX = [*[Address] * 3, Integers, THREADS]
FLASH_ATTENTION = [Integers, *[Address] * 2, Integers, THREADS]
LINEAR_FORWARD, LINEAR_BACKWARD = [*[Address] * 4, *[SIZE] * 3, THREADS], [*[Address] * 6, *[SIZE] * 3, THREADS]
ACTIVATE = [*[Address] * 3, *[SIZE] * 2, THREADS]
SIGNATURES: dict[str, list[Any]] = {
    "linear_float32": LINEAR,
    "linear_bfloat16": LINEAR,
    "linear_int8": LINEAR,
    "decode_attention": [Address, Integers, *[Address] * 2, Integers, THREADS],
    "top_tokens": [*[Address] * 2, *[SIZE] * 5, Address, *[SIZE] * 2, *[Address] * 4, THREADS],
    "cross_entropy_float32": CROSS_ENTROPY,
    "cross_entropy_bfloat16": CROSS_ENTROPY,
    "flash_attention_forward_float32": FLASH_ATTENTION,
    "flash_attention_forward_bfloat16": FLASH_ATTENTION,
    "flash_attention_backward_float32": FLASH_ATTENTION,
    "flash_attention_backward_bfloat16": FLASH_ATTENTION,
    "linear_forward_float32": LINEAR_FORWARD,
    "linear_forward_bfloat16": LINEAR_FORWARD,
    "linear_backward_float32": LINEAR_BACKWARD,
    "linear_backward_bfloat16": LINEAR_BACKWARD,
    "adam": [*[Integers] * 2, SIZE, POINTER, FLOAT, POINTER, THREADS],
    "gradient_norm": [*[Integers] * 2, SIZE, POINTER, THREADS],
    "activate_float32": ACTIVATE,
    "activate_bfloat16": ACTIVATE,
    "softmax_float32": SOFTMAX,
    "softmax_bfloat16": SOFTMAX,
    "softmax_backward_float32": SOFTMAX,
    "softmax_backward_bfloat16": SOFTMAX,
    "flush_denormals": [FLAG, THREADS],
    "fused_step": [POINTER, SIZE, *[Address] * 6, *[Integers] * 2, POINTER, THREADS],
}
# Only on CPUs that multiply bfloat16.
BFLOAT16 = {
    f"{name}_bfloat16"
    for name in ("linear_forward", "linear_backward", "flash_attention_forward", "flash_attention_backward")
}
