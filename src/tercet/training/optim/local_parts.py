"""This rank's parts of tensors that are sharded over several ranks (DTensor)."""

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Return whether a tensor is a DTensor.

    The check avoids the import of `torch.distributed.tensor`, which would take most of a second.
    """
    return hasattr(tensor, "full_tensor")


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return this rank's part of each tensor; a tensor that is not sharded is returned unchanged."""
    return [cast(Any, x).to_local() if is_sharded(x) else x for x in tensors]
