"""Tensors as JSON: base64 numbers, little-endian, row-major; exact, or quantized in equal steps.

    {"shape": [2, 3], "type": "uint16", "low": -1.5, "step": 0.0001, "data": "..."}      value = low + step * number

A step is 1/255 or 1/65,535 of the range, so the rounding error is at most half a step.
"""

import base64
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from tercet.config import Plain, UserError

PackedType = Literal["float32", "uint16", "uint8", "bool"]
DTYPES: dict[PackedType, str] = {"float32": "<f4", "uint16": "<u2", "uint8": "u1", "bool": "u1"}
STEPS: dict[PackedType, int] = {"uint16": 2**16 - 1, "uint8": 2**8 - 1}


def pack(tensor: Tensor, kind: PackedType = "float32") -> Plain:
    """Return a tensor as an object for JSON, with numbers of type `kind`; boolean tensors always have type "bool".

    Raises:
        UserError: If a number is not finite, which JSON cannot represent.
    """
    low, step = 0.0, 1.0
    if tensor.dtype == torch.bool or kind == "bool":
        kind, numbers = "bool", tensor.bool().cpu().numpy()
    else:
        numbers = tensor.detach().to("cpu", torch.float32).numpy()
        if not np.isfinite(numbers).all():
            raise UserError(
                "the model's outputs are not finite (NaN or infinity): its training diverged, or an edit broke "
                "the pass; use an earlier checkpoint, or remove the edit"
            )
        if kind in STEPS and numbers.size:
            float64s = numbers.astype(np.float64)  # the range of float32 numbers may overflow float32
            low = float(float64s.min())
            step = (float(float64s.max()) - low) / STEPS[kind]
            numbers = np.rint((float64s - low) / step) if step > 0 else np.zeros_like(float64s)
    data = np.ascontiguousarray(numbers).astype(DTYPES[kind]).tobytes()
    shape = list(tensor.shape)
    return {"shape": shape, "type": kind, "low": low, "step": step, "data": base64.b64encode(data).decode("ascii")}


def unpack(packed: Plain) -> Tensor:
    """Return the tensor of a result of `pack`; quantized numbers differ from the original by at most half a step."""
    numbers = np.frombuffer(base64.b64decode(packed["data"]), DTYPES[packed["type"]]).reshape(packed["shape"])
    match packed["type"]:
        case "bool":
            return torch.from_numpy(numbers.astype(bool))
        case "float32":
            return torch.from_numpy(numbers.astype(np.float32))
        case _:
            return torch.from_numpy(packed["low"] + packed["step"] * numbers.astype(np.float64)).float()


def packed_size(shape: torch.Size | list[int], kind: PackedType) -> int:
    """Return the number of base64 characters of a packed tensor."""
    count = int(np.prod(shape, dtype=np.int64))
    return (count * np.dtype(DTYPES[kind]).itemsize + 2) // 3 * 4
