"""Position schemes with faults that a user could write; each docstring names the fault."""

import torch
from torch import Tensor, nn

from tercet.nn import CustomPosition
from tercet.nn.positions import PositionScheme
from tercet.spec import spec


@spec
class RelativeProgress(CustomPosition):
    """Positions are divided by the last position of the text, which depends on later tokens."""

    def build(self, *, d_model: int, **sizes: int) -> PositionScheme:
        return Progress(d_model)


class Progress(PositionScheme):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.mix = nn.Linear(2, d_model)

    def embed(self, positions: Tensor) -> Tensor:
        progress = positions / positions.amax(-1, keepdim=True).clamp(min=1)
        features = torch.stack((progress, progress.square()), dim=-1)
        return self.mix(features.to(self.mix.weight.dtype))


@spec
class ColumnPositions(CustomPosition):
    """Columns are used instead of the positions of the argument: wrong with padding, documents and a KV cache."""

    def build(self, *, d_model: int, max_len: int, **sizes: int) -> PositionScheme:
        return Columns(d_model, max_len)


class Columns(PositionScheme):
    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        self.table = nn.Embedding(max_len, d_model)

    def embed(self, positions: Tensor) -> Tensor:
        return self.table(torch.arange(positions.shape[-1], device=positions.device))[None]


@spec
class PlainTensorTable(CustomPosition):
    """The table is a tensor but not a buffer, so it stays on the CPU if the model is moved to another device."""

    def build(self, *, d_model: int, max_len: int, **sizes: int) -> PositionScheme:
        return PlainTable(d_model, max_len)


class PlainTable(PositionScheme):
    def __init__(self, d_model: int, max_len: int) -> None:
        super().__init__()
        waves = 10_000.0 ** -torch.linspace(0, 1, d_model)
        self.table = (torch.arange(max_len)[:, None] * waves).sin()
        self.gain = nn.Parameter(torch.ones(d_model))

    def embed(self, positions: Tensor) -> Tensor:
        return self.table[positions].to(self.gain.dtype) * self.gain


@spec
class SilentBias(CustomPosition):
    """`has_bias` is not set, so attention over packed documents on a GPU ignores the bias."""

    def build(self, *, n_heads: int, **sizes: int) -> PositionScheme:
        return Distance(n_heads)


class Distance(PositionScheme):
    def __init__(self, n_heads: int) -> None:
        super().__init__()
        self.slopes = nn.Parameter(torch.linspace(0.1, 1.0, n_heads))

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        distance = (queries[:, None, :, None] - keys[:, None, None, :]).abs()
        return -self.slopes[:, None, None] * distance


@spec
class FixedTable(CustomPosition):
    """The table has 128 rows whatever `max_len` is; later positions use the last row."""

    def build(self, *, d_model: int, **sizes: int) -> PositionScheme:
        return Clamped(d_model)


class Clamped(PositionScheme):
    def __init__(self, d_model: int) -> None:
        super().__init__()
        self.table = nn.Embedding(128, d_model)

    def embed(self, positions: Tensor) -> Tensor:
        return self.table(positions.clamp(max=127))
