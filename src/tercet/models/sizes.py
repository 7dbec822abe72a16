"""Depth, heads and feed-forward width of a model from its width: the key `model.size` of a recipe.

    layers = 12 (width / 768)^0.6, rounded, at least 2
    heads  = width / 32 below 512, width / 64 from 512 on

Depth grows more slowly than width. The formula returns 4 layers for a width of 128 and the 12 layers of GPT-2 small for
768, and the heads of both. The feed-forward network has the default width of its kind (see `StackSpec.d_ff`).
"""

from collections.abc import Mapping
from typing import Any

from tercet.config import Plain, UserError
from tercet.messages import show

STEP = 32  # a width is a multiple of the width of a head
LARGE, LARGE_HEAD = 512, 64  # width from which on heads are wider, and their width
MAX_SIZE = 16_384
STACKS = ("stack", "encoder", "decoder")


def size_keys(preset: Mapping[str, Any], size: Any, *, name: str = "model.size") -> Plain:
    """Return the keys of a model section that follow from its width.

    Args:
        preset: Settings of the model without the size, which determine its stacks.
        size: Width of the residual stream.
        name: Name of the key in error messages.

    Raises:
        UserError: If the size is not a multiple of the width of a head, or out of range.
    """
    step = LARGE_HEAD if isinstance(size, int) and size >= LARGE else STEP
    if not isinstance(size, int) or isinstance(size, bool) or not step <= size <= MAX_SIZE or size % step:
        raise UserError(
            f"{name}={show(size)}: expected the width of the model, a multiple of {STEP} below {LARGE} and of "
            f"{LARGE_HEAD} from there up to {MAX_SIZE:,}, such as 128"
        )
    stack: Plain = {"d_model": size, "n_layers": layers_of(size), "n_heads": size // step, "d_ff": None}
    return {part: dict(stack) for part in STACKS if part in preset}


def layers_of(size: int) -> int:
    """Return the number of layers of a model with a width."""
    return max(2, round(12 * (size / 768) ** 0.6))
