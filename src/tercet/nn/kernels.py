"""The CPU kernels that replace PyTorch operations.

Each function returns None if no kernel supports the tensors. The caller then uses PyTorch.

This is the only module of `nn` that imports the kernel package. If that package is not installed, every function
returns None.
"""

from typing import Any

try:
    from tercet.kernel import activation, attention, linear
except ModuleNotFoundError as error:
    if error.name != "tercet.kernel":
        raise

    def _no_kernel(*tensors: Any, **options: Any) -> None:
        return None

    activation = attention = linear = _no_kernel

__all__ = ["activation", "attention", "linear"]
