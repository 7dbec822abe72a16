"""Comparison of a student's result with the reference and with the results of common mistakes."""

from collections.abc import Callable, Mapping
from types import ModuleType

import torch
from torch import Tensor

Checks = dict[str, Callable[[ModuleType], str | None]]

ABSOLUTE, RELATIVE = 1e-6, 1e-5  # tolerances; float32 results of different formulas differ by less


def normal(*shape: int, seed: int = 1) -> Tensor:
    """Return random numbers from a normal distribution, which are the same in each call."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def is_close(result: Tensor, expected: Tensor, *, absolute: float = ABSOLUTE) -> bool:
    """Return whether two tensors have the same shape and are equal within the tolerances."""
    if result.shape != expected.shape:
        return False
    # Mistakes may lead to NaN; references never do.
    both = result.detach().double(), expected.detach().double()
    return torch.allclose(*both, atol=absolute, rtol=RELATIVE, equal_nan=True)


def explain(
    result: object,
    expected: Tensor,
    mistakes: Mapping[str, Tensor] | None = None,
    *,
    name: str = "the result",
    absolute: float = ABSOLUTE,
) -> str | None:
    """Return None if a result equals the reference, else one line about the mistake.

    Args:
        result: Result of the student's code.
        expected: Result of the reference.
        mistakes: For the description of each common mistake, the result that it leads to.
        name: Name of the result in the line.
        absolute: Absolute tolerance of the comparison with the reference.
    """
    shape = tuple(expected.shape)
    if result is None:
        return "the function returns None; add a `return`"
    if not isinstance(result, Tensor):
        return f"{name} must be a tensor of shape {shape}, not {type(result).__name__}"
    if is_close(result, expected, absolute=absolute) and (result.dtype == torch.bool or expected.dtype != torch.bool):
        return None
    for mistake, wrong in (mistakes or {}).items():
        if not is_close(wrong, expected) and is_close(result, wrong):
            return mistake
    if result.shape != expected.shape:
        return f"{name} has the shape {tuple(result.shape)}; it must be {shape}"
    if expected.dtype == torch.bool and result.dtype != torch.bool:
        return f"{name} has the dtype {result.dtype}; a mask must be torch.bool"
    if not torch.isfinite(result.detach().double()).all() and torch.isfinite(expected.double()).all():
        return f"{name} contains NaN or infinite numbers"
    return _largest_difference(result.detach(), expected.detach(), name)


def _largest_difference(result: Tensor, expected: Tensor, name: str) -> str:
    difference = (result.double() - expected.double()).abs().nan_to_num(nan=torch.inf)
    place = tuple(int(index) for index in torch.unravel_index(difference.argmax(), difference.shape))
    where = f" at {list(place)}" if place else ""
    return f"{name} differs from the reference: {result[place].item():.6g}{where}, not {expected[place].item():.6g}"
