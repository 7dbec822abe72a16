"""Where a token stands. Attention alone sees a bag of tokens; a position scheme acts in at most one of three places:

    embed      a vector added to the token's embedding     Learned (GPT-2), Sinusoidal (Vaswani et al. 2017, 3.5)
    rotation   an angle for queries and keys               Rotary (Su et al. 2021)
    bias       a number added to the attention scores      ALiBi (Press et al. 2021)

A spec (frozen, what a recipe holds) stands beside the module it makes. Positions are integers (B, T) and are given,
not counted here: padding and packed documents make them unlike the column.
"""

import math
from typing import Annotated, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.spec import Context, Interval, ShareAboveZero, spec

Base = Annotated[float, Interval(gt=0, le=10**12)]

Positions = Int[Tensor, "#B T"]
Rotation = tuple[Float[Tensor, "#B T R"], Float[Tensor, "#B T R"]]


class PositionScheme(nn.Module):
    """Acts nowhere; each scheme overrides one method."""

    def embed(self, positions: Positions) -> Float[Tensor, "#B T D"] | None:
        return None

    def rotation(self, positions: Positions) -> Rotation | None:
        return None

    def bias(self, queries: Positions, keys: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"] | None:
        return None


@spec
class NoPosition:
    """None at all: a causal model still tells order by what it may see (Haviv et al. 2022)."""

    kind: Literal["none"] = "none"

    def build(self, *, d_model: int, d_head: int, n_heads: int, max_len: int) -> PositionScheme:
        return PositionScheme()


@spec
class Learned:
    """One learned vector for each position.

    Args:
        size: how many; max_len by default. More of them leave room for a longer context later.
    """

    kind: Literal["learned"] = "learned"
    size: Context | None = None

    def build(self, *, d_model: int, d_head: int, n_heads: int, max_len: int) -> PositionScheme:
        size = max_len if self.size is None else self.size
        if size < max_len:
            raise ValueError(f"a table of {size} positions is too short for max_len={max_len}; set its size to more")
        return LearnedPositions(size, d_model)


class LearnedPositions(PositionScheme):
    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len, d_model)

    def embed(self, positions: Positions) -> Float[Tensor, "#B T D"]:
        return self.table(positions)


@spec
class Sinusoidal:
    """sin(p / base^(2i/D)) in the even columns, cos in the odd ones."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Base = 10_000.0

    def build(self, *, d_model: int, d_head: int, n_heads: int, max_len: int) -> PositionScheme:
        return SinusoidalPositions(d_model, self.base)


class SinusoidalPositions(PositionScheme):
    def __init__(self, d_model: int, base: float) -> None:
        super().__init__()
        if d_model % 2:
            raise ValueError(f"sinusoidal positions come in pairs: d_model={d_model} must be even")
        self.width, self.base = d_model, base

    def embed(self, positions: Positions) -> Float[Tensor, "#B T D"]:
        angles = _angles(positions, self.width, self.base)  # (B, T, D/2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (B, T, D)


@spec
class Rotary:
    """Each pair of a head's numbers turns by an angle that grows with the position, so that the product of a query and
    a key depends on their distance only. Pairs are (i, i + K/2), as in Llama; `share` < 1 leaves the rest unturned."""

    kind: Literal["rotary"] = "rotary"
    base: Base = 10_000.0
    share: ShareAboveZero = 1.0

    def build(self, *, d_model: int, d_head: int, n_heads: int, max_len: int) -> PositionScheme:
        return RotaryPositions(d_head, self.base, self.share)


class RotaryPositions(PositionScheme):
    def __init__(self, d_head: int, base: float, share: float) -> None:
        super().__init__()
        width = int(d_head * share)
        if width % 2:
            raise ValueError(f"rotary positions turn pairs: d_head={d_head} x share={share} must be even")
        self.width, self.base = width, base

    def rotation(self, positions: Positions) -> Rotation:
        angles = _angles(positions, self.width, self.base)  # (B, T, R)
        return angles.cos(), angles.sin()


def rotate(x: Float[Tensor, "B H T K"], rotation: Rotation) -> Float[Tensor, "B H T K"]:
    """Turn the first 2R numbers of each head; the tables are float32, the result has x's dtype."""
    cos, sin = (table[:, None].to(x.dtype) for table in rotation)  # (B, 1, T, R)
    width = cos.shape[-1]
    first, second, rest = x.split((width, width, x.shape[-1] - 2 * width), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


@spec
class ALiBi:
    """A penalty that grows with the distance, with another slope in each head."""

    kind: Literal["alibi"] = "alibi"

    def build(self, *, d_model: int, d_head: int, n_heads: int, max_len: int) -> PositionScheme:
        return ALiBiPositions(n_heads)


class ALiBiPositions(PositionScheme):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def bias(self, queries: Positions, keys: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"]:
        distance = (queries[:, :, None] - keys[:, None, :]).abs()  # (B, T, S)
        slopes = alibi_slopes(self.n_heads, device=queries.device)
        return -slopes[:, None, None] * distance[:, None]  # (B, H, T, S)


def alibi_slopes(n_heads: int, *, device: torch.device | None = None) -> Float[Tensor, " H"]:
    """2^(-8/n), 2^(-16/n) ...; where n is no power of two, the rest come from every other one of the next power."""
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = torch.arange(1, power + 1, device=device) * (-8 / power)
    rest = torch.arange(1, 2 * (n_heads - power) + 1, 2, device=device) * (-4 / power)
    return torch.cat((slopes, rest)).exp2()


def _angles(positions: Positions, width: int, base: float) -> Float[Tensor, "#B T R"]:
    """Worked out anew at each pass: a table in a buffer would follow the model to bfloat16, which counts to 256."""
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width
    return positions[..., None] * base**exponents


Position = Learned | Sinusoidal | Rotary | ALiBi | NoPosition
