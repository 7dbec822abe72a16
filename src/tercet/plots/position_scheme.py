"""A position scheme and its numbers: of a trained model, or by itself before any training."""

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
    """A position scheme and what is drawn of it, for positions 0 to P - 1; P is `length`, at most MOST.

    Attributes:
        length: tokens of the context.
        d_head: width of a head, which rotary turns.
        is_initial: whether its numbers are those before any training.
    """

    spec: Position
    module: PositionScheme
    d_head: int
    length: int
    is_initial: bool = False

    @property
    def vectors(self) -> Tensor | None:
        """(P, D) what is added to the embeddings, where something is."""
        with torch.no_grad():
            vectors = self.module.embed(self._positions)
        return None if vectors is None else vectors[0].float().cpu()

    @property
    def angles(self) -> Tensor | None:
        """(P, R) the cosine of the angle by which each pair of a head's numbers is turned, where they are."""
        rotation = self.module.rotation(self._positions)
        return None if rotation is None else rotation[0][0].float().cpu()

    @property
    def wavelengths(self) -> list[float]:
        """Of each pair of a rotary scheme, after how many tokens it stands as it stood; none for other schemes."""
        rotation = self.module.rotation(self._positions.new_ones(1, 1))
        if rotation is None:
            return []
        cos, sin = (table[0, 0].double() for table in rotation)  # of position 1, whose angle is the frequency
        return (2 * math.pi / torch.atan2(sin, cos)).tolist()

    @property
    def bias(self) -> Tensor | None:
        """(H, P, P) what is added to the scores, query by key, where something is: in the first layer, if each has its
        own."""
        with torch.no_grad():
            bias = self.module.bias(self._positions, self._positions)
        return None if bias is None else bias[0].float().cpu()

    def to_dict(self) -> dict[str, Any]:
        """The scheme's settings and what is drawn of it."""
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
    """A scheme before any training; what it learns is drawn from N(0, 0.02), as in GPT-2.

    Raises:
        NothingToDraw: for no positions at all.
        ValueError: for sizes that do not fit together.
    """
    if isinstance(spec, NoPosition):
        raise NothingToDraw("position: none tells nothing, so there is nothing to draw; leave it out")
    if d_head is None and d_model % n_heads:
        raise ValueError(f"d_model={d_model} must be divisible by n_heads={n_heads}")
    d_head = d_model // n_heads if d_head is None else d_head
    module = spec.build(d_model=d_model, d_head=d_head, n_heads=n_heads, n_layers=1, max_len=length, causal=False)
    if list(module.parameters()):
        initialize(module, Normal(), seed=seed)
    return DrawnScheme(spec=spec, module=module, d_head=d_head, length=length, is_initial=True)
