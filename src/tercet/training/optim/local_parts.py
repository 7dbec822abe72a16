"""What a rank has of tensors that several ranks hold in pieces (DTensor)."""

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor


def is_sharded(tensor: Tensor) -> bool:
    """Whether a rank holds a piece of it: a DTensor, whose module takes most of a second to import."""
    return hasattr(tensor, "full_tensor")


def local_parts(tensors: Iterable[Tensor]) -> list[Tensor]:
    """What this rank has of each."""
    return [cast(Any, x).to_local() if is_sharded(x) else x for x in tensors]
