"""Position schemes, which make attention depend on the order of the tokens.

A scheme acts in at most one of three places:

    embed      a vector added to the token embedding       Learned (GPT-2), Sinusoidal (Vaswani et al. 2017, 3.5)
    rotation   an angle that rotates queries and keys      Rotary (Su et al. 2021)
    bias       a number added to the attention scores      ALiBi (Press et al. 2021), RelativeBias (Raffel et al. 2020)

Each scheme has a spec (`specs.py`), which builds its module. The caller passes the positions, integers of shape (B, T),
because a token's position differs from its column if there is padding or if rows contain several documents.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import repeat

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from tercet.nn.rotary_scaling import attention_factor, dynamic_base, scale_frequencies
from tercet.nn.scaling_specs import DynamicScaling, Scaling, YaRNScaling

Positions = Int[Tensor, "#B T"]
Rotation = tuple[Float[Tensor, "#B T R"], Float[Tensor, "#B T R"]]  # cosines and sines of the angles of R pairs


class PositionScheme(nn.Module):
    """Base class of position schemes. The base class has no effect on attention.

    Each scheme overrides one of the methods `embed`, `rotation` and `bias`.

    Attributes:
        has_bias: True if the scheme adds numbers to the attention scores.
        rotations_differ: True if some layers rotate queries and keys in another way, or not at all.
    """

    has_bias = False
    rotations_differ = False

    def embed(self, positions: Positions) -> Float[Tensor, "#B T D"] | None:
        """Return the vectors to add to the token embeddings; None if the scheme has none."""
        return None

    def rotation(self, positions: Positions) -> Rotation | None:
        """Return the cosines and sines that rotate queries and keys; None if the scheme has none."""
        return None

    def rotations(self, positions: Positions, is_local: Sequence[bool]) -> Iterable[Rotation | None]:
        """Return one rotation for each layer. `is_local` is True for layers with a window."""
        return repeat(self.rotation(positions), len(is_local))

    def bias(self, queries: Positions, keys: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"] | None:
        """Return the numbers to add to the scores of queries and keys at these positions; None if there are none."""
        return None

    def biases(
        self, queries: Positions, keys: Int[Tensor, "#B S"], n_layers: int
    ) -> Iterable[Float[Tensor, "#B H T S"] | None]:
        """Return one bias for each of `n_layers` layers: the result of `bias`, or a table per layer (umT5)."""
        return repeat(self.bias(queries, keys), n_layers)


class LearnedPositions(PositionScheme):
    """A learned vector for each position from 0 to max_len - 1."""

    def __init__(self, max_len: int, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len, d_model)

    def embed(self, positions: Positions) -> Float[Tensor, "#B T D"]:
        return self.table(positions)


class SinusoidalPositions(PositionScheme):
    """Sines and cosines of each position; see `specs.Sinusoidal` for the formula.

    Raises:
        ValueError: If d_model is odd.
    """

    def __init__(self, d_model: int, base: float) -> None:
        super().__init__()
        if d_model % 2:
            raise ValueError(f"d_model={d_model} must be even for sinusoidal positions, which come in pairs")
        self.width, self.base = d_model, base

    def embed(self, positions: Positions) -> Float[Tensor, "#B T D"]:
        angles = positions[..., None] * _frequencies(positions, self.width, self.base)  # (B, T, D/2)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(-2)  # (B, T, D)


class RotaryPositions(PositionScheme):
    """Angles that rotate a share of each head; see `specs.Rotary`.

    Raises:
        ValueError: If the number of rotated elements, d_head * share rounded down, is odd, or if this number or the
            base is too small for `scaling`.
    """

    def __init__(
        self,
        d_head: int,
        base: float,
        share: float,
        scaling: Scaling | None = None,
        *,
        local_base: float | None = None,
        skip_layers: Sequence[int] = (),
    ) -> None:
        super().__init__()
        width = int(d_head * share)
        if width % 2:
            raise ValueError(f"d_head={d_head} x share={share} must be even for rotary positions, which rotate pairs")
        if isinstance(scaling, DynamicScaling) and width < 4:
            raise ValueError(f"d_head={d_head} x share={share} must be at least 4 for dynamic scaling")
        if isinstance(scaling, YaRNScaling) and base <= 1:
            raise ValueError(f"base={base} must be above 1 for YaRN")
        self.width, self.base, self.scaling = width, base, scaling
        self.skip_layers = skip_layers
        self.local = None if local_base is None else RotaryPositions(d_head, local_base, share)
        self.rotations_differ = self.local is not None or len(skip_layers) > 0

    def rotation(self, positions: Positions) -> Rotation:
        angles = positions[..., None] * self.frequencies(positions)  # (B, T, R)
        gain = attention_factor(self.scaling)
        return (angles.cos(), angles.sin()) if gain == 1 else (angles.cos() * gain, angles.sin() * gain)

    def rotations(self, positions: Positions, is_local: Sequence[bool]) -> Iterable[Rotation | None]:
        rotation = self.rotation(positions)
        local = rotation if self.local is None else self.local.rotation(positions)
        return [
            None if layer in self.skip_layers else local if has_window else rotation
            for layer, has_window in enumerate(is_local)
        ]

    def frequencies(self, positions: Positions) -> Float[Tensor, "*B R"]:
        """Return the frequencies after scaling, in radians per token, of tokens at these positions."""
        scaling, base = self.scaling, self.base
        if isinstance(scaling, DynamicScaling):
            base = dynamic_base(scaling, base, self.width, positions)  # (B, 1, 1)
        return scale_frequencies(scaling, _frequencies(positions, self.width, base), base=self.base)


def rotate(x: Float[Tensor, "B H T K"], rotation: Rotation) -> Float[Tensor, "B H T K"]:
    """Rotate the R pairs of elements (i, i + R) of each head, with 0 <= i < R.

    The remaining elements are not changed. Cosines and sines are converted from float32 to the dtype of `x`.
    """
    cos, sin = (table[:, None].to(x.dtype) for table in rotation)  # (B, 1, T, R)
    width = cos.shape[-1]
    first, second, rest = x.split((width, width, x.shape[-1] - 2 * width), dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


class ALiBiPositions(PositionScheme):
    """A bias of minus slope times distance, with the slopes of `alibi_slopes`, one for each head."""

    has_bias = True

    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.n_heads = n_heads

    def bias(self, queries: Positions, keys: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"]:
        distance = (queries[:, :, None] - keys[:, None, :]).abs()  # (B, T, S)
        slopes = alibi_slopes(self.n_heads, device=queries.device)
        return -slopes[:, None, None] * distance[:, None]  # (B, H, T, S)


def alibi_slopes(n_heads: int, *, device: torch.device | None = None) -> Float[Tensor, " H"]:
    """Return one slope for each head: 2^(-8/n), 2^(-16/n) and so on, with n = n_heads.

    If n_heads is not a power of two, n is the next lower power of two. The missing slopes are then the first, third and
    so on of those for 2n heads.
    """
    power = 2 ** math.floor(math.log2(n_heads))
    slopes = torch.arange(1, power + 1, device=device) * (-8 / power)
    rest = torch.arange(1, 2 * (n_heads - power) + 1, 2, device=device) * (-4 / power)
    return torch.cat((slopes, rest)).exp2()


class RelativeBiasPositions(PositionScheme):
    """A learned bias for each head and each bucket of distances.

    Short distances have one bucket each. From `near` = n / 2 on, buckets cover ranges that grow logarithmically, with n
    the number of buckets per direction:

        bucket(d) = d                                                                for d < near
                    near + floor(ln(d / near) / ln(max_distance / near) * (n - near))   otherwise, at most n - 1

    Raffel et al., "Exploring the Limits of Transfer Learning" (T5, 2020), 2.1. If attention is not causal, the second
    half of the buckets is for keys after the query. One table serves all layers, or each layer has its own (umT5: Chung
    et al. 2023). `initialize` adds `alibi_biases` to the tables if `alibi_init` is True.

    Raises:
        ValueError: If n_buckets is odd, or max_distance is not greater than `near`.
    """

    has_bias = True

    def __init__(
        self,
        n_buckets: int,
        max_distance: int,
        n_heads: int,
        *,
        causal: bool,
        n_tables: int = 1,
        alibi_init: bool = False,
    ) -> None:
        super().__init__()
        n = n_buckets if causal else n_buckets // 2
        if n_buckets % 2 or max_distance <= n // 2:
            raise ValueError(
                f"n_buckets={n_buckets} must be even and max_distance={max_distance} must be more than {n // 2}, "
                "the number of distances with one bucket each"
            )
        self.n, self.max_distance, self.causal, self.alibi_init = n, max_distance, causal, alibi_init
        self.tables = nn.ModuleList(nn.Embedding(n_buckets, n_heads) for _ in range(n_tables))

    def bias(self, queries: Positions, keys: Int[Tensor, "#B S"]) -> Float[Tensor, "#B H T S"]:
        return next(iter(self.biases(queries, keys, 1)))

    def biases(
        self, queries: Positions, keys: Int[Tensor, "#B S"], n_layers: int
    ) -> Iterable[Float[Tensor, "#B H T S"]]:
        buckets = self.buckets(queries[:, :, None] - keys[:, None, :])  # (B, T, S)
        biases = (table(buckets).permute(0, 3, 1, 2) for table in self.tables)  # (B, H, T, S)
        return repeat(next(biases), n_layers) if len(self.tables) == 1 else biases

    def buckets(self, distance: Int[Tensor, "#B T S"]) -> Int[Tensor, "#B T S"]:
        """Return the bucket of each distance. A distance is the position of the query minus that of the key."""
        near, d = self.n // 2, distance.clamp(min=0) if self.causal else distance.abs()
        log_ratio = (d.clamp(min=near).float() / near).log() / math.log(self.max_distance / near)
        far = (near + (log_ratio * (self.n - near)).long()).clamp(max=self.n - 1)
        later_offset = 0 if self.causal else (distance < 0) * self.n
        return torch.where(d < near, d, far) + later_offset

    def alibi_biases(self) -> Float[Tensor, "N H"]:
        """Return a table with the bias of `ALiBiPositions` at the mean distance, up to max_distance, of each bucket."""
        n_buckets, n_heads = next(self.tables.parameters()).shape
        distance = torch.arange(-self.max_distance, self.max_distance + 1)
        buckets = self.buckets(distance[None, :, None]).flatten()
        absolute = (distance.clamp(min=0) if self.causal else distance.abs()).float()
        counts, sums = (  # not `bincount`, which has no form without data
            torch.zeros(n_buckets).scatter_add(0, buckets, x) for x in (torch.ones_like(absolute), absolute)
        )
        mean = sums / counts.clamp(min=1)  # some buckets have no distance
        return -mean[:, None] * alibi_slopes(n_heads)


def _frequencies(positions: Positions, width: int, base: float | Tensor) -> Float[Tensor, "*B R"]:
    """Return R = width / 2 frequencies, the angles at position 1, on the device of the positions.

    They are computed in each forward pass, because a table in a buffer would be converted to bfloat16 with the model,
    and bfloat16 represents only the integers up to 256 exactly.
    """
    exponents = torch.arange(0, width, 2, device=positions.device, dtype=torch.float32) / -width
    return base**exponents
