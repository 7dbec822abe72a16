"""The variants of the parts, as a recipe and `config.json` hold them: frozen, comparable, and known without torch.

position   where a token stands                 `positions.py` has the module that each builds, from what it asks for of
                                                d_model, d_head, n_heads, n_layers, max_len and causal
init       how weights begin                    `init.py` fills a model by each
adapter    what learns beside weights that rest `lora.py` puts it into a model
norm, placement, activation, pooling ...        words; the file of that part has a table of what each stands for
"""

from typing import TYPE_CHECKING, Annotated, Literal

from tercet.spec import Context, Deviation, Interval, ShareAboveZero, ShareBelowOne, spec

if TYPE_CHECKING:
    from tercet.nn.positions import PositionScheme

Activation = Literal["relu", "gelu", "gelu_tanh", "silu", "relu_squared"]
Norm = Literal["layer", "layer_std", "rms"]
Placement = Literal["pre", "post", "sandwich", "branch"]
Pooling = Literal["mean", "first"]
PoolerActivation = Literal["tanh", "relu"]

Base = Annotated[float, Interval(gt=0, le=10**12)]


@spec
class NoPosition:
    """None at all: a causal model still tells order by what it may see (Haviv et al. 2022)."""

    kind: Literal["none"] = "none"

    def build(self, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import PositionScheme

        return PositionScheme()


@spec
class Learned:
    """One learned vector for each position.

    Args:
        size: how many; max_len by default. More of them leave room for a longer context later.
    """

    kind: Literal["learned"] = "learned"
    size: Context | None = None

    def build(self, *, d_model: int, max_len: int, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import LearnedPositions

        size = max_len if self.size is None else self.size
        if size < max_len:
            raise ValueError(f"a table of {size} positions is too short for max_len={max_len}; set its size to more")
        return LearnedPositions(size, d_model)


@spec
class Sinusoidal:
    """sin(p / base^(2i/D)) in the even columns, cos in the odd ones."""

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Base = 10_000.0

    def build(self, *, d_model: int, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import SinusoidalPositions

        return SinusoidalPositions(d_model, self.base)


@spec
class Rotary:
    """Each pair of a head's numbers turns by an angle that grows with the position, so that the product of a query and
    a key depends on their distance only. Pairs are (i, i + K/2), as in Llama; `share` < 1 leaves the rest unturned."""

    kind: Literal["rotary"] = "rotary"
    base: Base = 10_000.0
    share: ShareAboveZero = 1.0

    def build(self, *, d_head: int, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import RotaryPositions

        return RotaryPositions(d_head, self.base, self.share)


@spec
class ALiBi:
    """A penalty that grows with the distance, with another slope in each head."""

    kind: Literal["alibi"] = "alibi"

    def build(self, *, n_heads: int, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import ALiBiPositions

        return ALiBiPositions(n_heads)


@spec
class RelativeBias:
    """A learned number for each head and bucket of distances, added to the scores (T5). It has no longest text.

    Args:
        n_buckets: how many; an encoder has half of them for what stands before a token, half for what stands behind.
        max_distance: from here on all distances are in one bucket.
        per_layer: each layer learns its own (umT5), or all share one.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    n_buckets: Annotated[int, Interval(ge=4, le=1 << 16)] = 32
    max_distance: Annotated[int, Interval(ge=2, le=1 << 20)] = 128
    per_layer: bool = False

    def build(self, *, n_heads: int, n_layers: int, causal: bool, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import RelativeBiasPositions

        n_tables = n_layers if self.per_layer else 1
        return RelativeBiasPositions(self.n_buckets, self.max_distance, n_heads, causal=causal, n_tables=n_tables)


Position = Learned | Sinusoidal | Rotary | ALiBi | RelativeBias | NoPosition


@spec
class Normal:
    kind: Literal["normal"] = "normal"
    std: Deviation = 0.02


@spec
class Xavier:
    kind: Literal["xavier"] = "xavier"


@spec
class ZeroProjections:
    kind: Literal["zero_projections"] = "zero_projections"
    gain: Deviation = 0.5
    embedding_std: Deviation = 0.02


@spec
class PyTorch:
    """What `nn.Linear` and `nn.Embedding` begin with when nobody says otherwise."""

    kind: Literal["pytorch"] = "pytorch"


Init = Normal | Xavier | ZeroProjections | PyTorch


@spec
class LoRA:
    """Low-rank adaptation (Hu et al. 2022): beside chosen linear layers two thin matrices learn, and nothing else.

    Args:
        rank: r, of the two matrices' product.
        alpha: α; the product is multiplied by α/r.
        targets: which linear layers of the blocks: names as "query", patterns as "decoder.*.value", or "all".
        dropout: on what the two matrices read.
    """

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Interval(ge=1, le=1 << 16)] = 8
    alpha: Annotated[float, Interval(gt=0, le=10**6)] = 16.0
    targets: tuple[str, ...] = ("query", "value")
    dropout: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError("targets names no layer; give such as [query, value], or [all]")
