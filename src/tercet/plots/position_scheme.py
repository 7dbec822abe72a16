"""A position scheme with its parameters, which are those of a trained model or those before training."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tercet.config import to_plain
from tercet.nn.init import initialize
from tercet.nn.positions import PositionScheme
from tercet.nn.specs import NoPosition, Normal, Position
from tercet.plots.picture_file import NothingToDraw

MAX_POSITIONS = 512  # a picture cannot show more; drawing every second one would show false waves


@dataclass(frozen=True, kw_only=True)
class DrawnScheme:
    """A position scheme and its tensors for the first P positions, at most MAX_POSITIONS.

    Attributes:
        spec: Settings of the scheme.
        module: Module that computes the scheme.
        d_head: Width of a head, of which rotary positions rotate a share.
        length: Number of tokens in the context.
        is_initial: If True, the parameters are those before training.
    """

    spec: Position
    module: PositionScheme
    d_head: int
    length: int
    is_initial: bool = False

    @property
    def vectors(self) -> Tensor | None:
        """(P, D) vectors that are added to the embeddings; None for other schemes."""
        with torch.no_grad():
            vectors = self.module.embed(self._positions)
        return None if vectors is None else vectors[0].float().cpu()

    @property
    def angles(self) -> Tensor | None:
        """(P, R) cosines of the angles that rotate R pairs of elements of a head; None for other schemes."""
        rotation = self.module.rotation(self._positions)
        return None if rotation is None else rotation[0][0].float().cpu()

    @property
    def wavelengths(self) -> list[float]:
        """Number of tokens per full turn of each pair of elements; empty for schemes other than rotary."""
        rotation = self.module.rotation(self._positions.new_ones(1, 1))
        if rotation is None:
            return []
        cos, sin = (table[0, 0].double() for table in rotation)  # of position 1, whose angle is the frequency
        return (2 * math.pi / torch.atan2(sin, cos)).tolist()

    @property
    def bias(self) -> Tensor | None:
        """(H, P, P) numbers added to the score of each query and key; None for other schemes.

        If the layers differ, these are the numbers of the first layer.
        """
        with torch.no_grad():
            bias = self.module.bias(self._positions, self._positions)
        return None if bias is None else bias[0].float().cpu()

    def to_dict(self) -> dict[str, Any]:
        """Return the scheme's settings and the plotted tensors."""
        tensors = {"vectors": self.vectors, "cosines": self.angles, "bias": self.bias}
        numbers = {name: tensor.tolist() for name, tensor in tensors.items() if tensor is not None}
        return to_plain(self.spec) | numbers | ({"wavelengths": self.wavelengths} if "cosines" in numbers else {})

    @property
    def _positions(self) -> Tensor:
        device = next((parameter.device for parameter in self.module.parameters()), None)
        return torch.arange(min(self.length, MAX_POSITIONS), device=device)[None]  # (1, P)


def initial_scheme(
    spec: Position, *, d_model: int, n_heads: int, length: int, d_head: int | None = None, seed: int = 0
) -> DrawnScheme:
    """Return a scheme before training; learned parameters are drawn from N(0, 0.02), as in GPT-2.

    Raises:
        NothingToDraw: If the spec has no positions.
        ValueError: If the sizes do not fit together.
    """
    if isinstance(spec, NoPosition):
        raise NothingToDraw("nothing to draw for position: none; leave it out")
    if d_head is None and d_model % n_heads:
        raise ValueError(f"d_model={d_model} must be divisible by n_heads={n_heads}")
    d_head = d_model // n_heads if d_head is None else d_head
    module = spec.build(d_model=d_model, d_head=d_head, n_heads=n_heads, n_layers=1, max_len=length, causal=False)
    if list(module.parameters()):
        initialize(module, Normal(), seed=seed)
    return DrawnScheme(spec=spec, module=module, d_head=d_head, length=length, is_initial=True)
