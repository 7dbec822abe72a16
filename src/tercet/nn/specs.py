"""Settings of the building blocks, as stored in recipes and `config.json`.

They are frozen, comparable and importable without torch.

position    how positions are represented            `build` returns a module from `positions.py`
init        how weights are initialized              `initialize` in `init.py` fills a model
adapter     trainable adapters on frozen weights     `add_lora` in `lora.py` adds them to a model
activation, norm, placement, pooling                 names of the choices in `feedforward.py`, `norm.py` and so on
Custom...   parts of other packages                  `build` returns a module

`build` of a position scheme takes the sizes d_model, d_head, n_heads, n_layers and max_len of the stack, and whether it
is causal.
"""

from typing import TYPE_CHECKING, Annotated, Literal

from tercet.nn.scaling_specs import DynamicScaling as DynamicScaling
from tercet.nn.scaling_specs import LinearScaling as LinearScaling
from tercet.nn.scaling_specs import Llama3Scaling as Llama3Scaling
from tercet.nn.scaling_specs import Scaling as Scaling
from tercet.nn.scaling_specs import YaRNScaling as YaRNScaling
from tercet.spec import Context, Custom, Deviation, Index, Interval, ShareAboveZero, ShareBelowOne, spec

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor, nn

    from tercet.nn.positions import PositionScheme

ActivationName = Literal["relu", "gelu", "gelu_tanh", "silu", "relu_squared"]
NormName = Literal["layer", "layer_std", "rms"]
Placement = Literal["pre", "post", "sandwich", "branch"]
Parallel = bool | Literal["separate_norms"]
QKNorm = bool | Literal["all_heads"]
Pooling = Literal["mean", "first", "max"]
PoolerActivation = Literal["tanh", "relu"]

Base = Annotated[float, Interval(gt=0, le=10**12)]


@spec
class NoPosition:
    """No positions: a causal model can still infer the order of tokens from the mask (Haviv et al. 2022)."""

    kind: Literal["none"] = "none"

    def build(self, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import PositionScheme

        return PositionScheme()


@spec
class Learned:
    """One learned vector for each position.

    Args:
        size: Number of positions, at least max_len (default: max_len). A larger table allows a longer context later.
    """

    kind: Literal["learned"] = "learned"
    size: Context | None = None

    def build(self, *, d_model: int, max_len: int, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import LearnedPositions

        size = max_len if self.size is None else self.size
        if size < max_len:
            raise ValueError(
                f"position table too short: {size} positions for max_len={max_len}; "
                f"set position.size to at least {max_len}"
            )
        return LearnedPositions(size, d_model)


@spec
class Sinusoidal:
    """Fixed sinusoids of the position p: sin(p / base^(2i/D)) in column 2i and the cosine in column 2i + 1.

    Args:
        base: Base of the wavelengths, which are 2π base^(2i/D).
    """

    kind: Literal["sinusoidal"] = "sinusoidal"
    base: Base = 10_000.0

    def build(self, *, d_model: int, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import SinusoidalPositions

        return SinusoidalPositions(d_model, self.base)


@spec
class Rotary:
    """Rotary positions: pairs of elements of a head are rotated by an angle proportional to the position.

    The product of a query and a key then depends only on their distance. Pairs are (i, i + n/2), with n the number of
    rotated elements of the head, as in Llama.

    Args:
        base: Base of the frequencies, which are base^(-2i/n).
        share: Share of the elements of each head that are rotated; the first ones are.
        scaling: Change of the frequencies for a context longer than that of the first training; None for no change.
        local_base: Base in layers with a window, whose frequencies are not scaled; None for no difference (Gemma 3).
        skip_layers: Numbers, from 0, of the layers without positions (SmolLM3; Yang et al., "Rope to Nope and Back
            Again", 2025).
    """

    kind: Literal["rotary"] = "rotary"
    base: Base = 10_000.0
    share: ShareAboveZero = 1.0
    scaling: Scaling | None = None
    local_base: Base | None = None
    skip_layers: tuple[Index, ...] = ()

    def build(self, *, d_head: int, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import RotaryPositions

        return RotaryPositions(
            d_head, self.base, self.share, self.scaling, local_base=self.local_base, skip_layers=self.skip_layers
        )


@spec
class ALiBi:
    """A penalty on the attention scores that grows linearly with the distance, with another slope in each head."""

    kind: Literal["alibi"] = "alibi"

    def build(self, *, n_heads: int, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import ALiBiPositions

        return ALiBiPositions(n_heads)


@spec
class RelativeBias:
    """A learned number for each head and bucket of distances, added to the scores (T5).

    The scheme itself does not limit the length of the text.

    Args:
        n_buckets: Number of buckets. An encoder uses half of them for keys before a token and half for keys after it.
        max_distance: Distance from which on all distances share one bucket.
        per_layer: If True, each layer learns its own table (umT5), else all layers share one.
        alibi_init: If True, the numbers start as the biases of ALiBi, so that each head first attends to near tokens.
    """

    kind: Literal["relative_bias"] = "relative_bias"
    n_buckets: Annotated[int, Interval(ge=4, le=1 << 16)] = 32
    max_distance: Annotated[int, Interval(ge=2, le=1 << 20)] = 128
    per_layer: bool = False
    alibi_init: bool = False

    def build(self, *, n_heads: int, n_layers: int, causal: bool, **sizes: int) -> "PositionScheme":
        from tercet.nn.positions import RelativeBiasPositions

        n_tables = n_layers if self.per_layer else 1
        return RelativeBiasPositions(
            self.n_buckets, self.max_distance, n_heads, causal=causal, n_tables=n_tables, alibi_init=self.alibi_init
        )


class CustomPosition(Custom):
    """Base class of the specs of position schemes in other packages."""

    def build(
        self, *, d_model: int, d_head: int, n_heads: int, n_layers: int, max_len: int, causal: bool
    ) -> "PositionScheme":
        """Return the module of the scheme.

        Args:
            d_model: Width of the residual stream.
            d_head: Width of a head.
            n_heads: Number of query heads.
            n_layers: Number of blocks.
            max_len: Context length.
            causal: If True, tokens attend only to earlier tokens.

        Raises:
            ValueError: If the settings do not fit the sizes.
        """
        raise NotImplementedError(f"{self.kind} has no method build")


class CustomActivation(Custom):
    """Base class of the specs of activation functions in other packages."""

    def build(self) -> "Callable[[Tensor], Tensor]":
        """Return the function: from a tensor to one of the same shape and dtype, each element from the same element.

        It may be an `nn.Module` with parameters. Each feed-forward network calls `build` once.

        Raises:
            ValueError: If the settings do not fit together.
        """
        raise NotImplementedError(f"{self.kind} has no method build")


class CustomNorm(Custom):
    """Base class of the specs of norms in other packages."""

    def build(self, *, d_model: int, eps: float, bias: bool) -> "nn.Module":
        """Return a new norm, a module that maps (..., D) to the same shape and dtype, each vector by itself.

        Args:
            d_model: Width D of the residual stream.
            eps: `norm_eps` of the stack.
            bias: `norm_bias` of the stack.

        Raises:
            ValueError: If the settings do not fit together.
        """
        raise NotImplementedError(f"{self.kind} has no method build")


class CustomFeedForward(Custom):
    """Base class of the specs of feed-forward networks in other packages."""

    def build(
        self, *, d_model: int, d_ff: int, activation: "Activation", gated: bool, bias: bool, dropout: float
    ) -> "nn.Module":
        """Return a new network, a module that maps (B, T, D) to the same shape and dtype, each token by itself.

        The arguments are the settings of the stack, with those names and meanings that `FeedForward` has.

        Raises:
            ValueError: If the settings do not fit together.
        """
        raise NotImplementedError(f"{self.kind} has no method build")


class CustomAttention(Custom):
    """Base class of the specs of attention in other packages."""

    def build(
        self,
        *,
        d_model: int,
        n_heads: int,
        n_kv_heads: int | None,
        d_head: int | None,
        bias: bool,
        out_bias: bool,
        qk_norm: QKNorm,
        dropout: float,
        softcap: float | None,
    ) -> "nn.Module":
        """Return a new attention module: an instance of a subclass of `Attention`.

        The arguments are the settings of the stack, with those names and meanings that `Attention` has. The subclass
        overrides `attend`, `keys_values` or `forward`, with the same arguments and shapes. It is built for
        self-attention, and in a decoder of a translator also for cross-attention.

        Raises:
            ValueError: If the settings do not fit together.
        """
        raise NotImplementedError(f"{self.kind} has no method build")


Activation = ActivationName | CustomActivation
Norm = NormName | CustomNorm
Position = Learned | Sinusoidal | Rotary | ALiBi | RelativeBias | NoPosition | CustomPosition


@spec
class Window:
    """Sliding-window attention: in some layers, a token attends only to nearby tokens.

    Beltagy et al., "Longformer" (2020); Jiang et al., "Mistral 7B" (2023).

    Args:
        size: Length W of the window in tokens. In a causal stack a token attends to itself and the W - 1 tokens before
            it, in other stacks to the tokens at a distance of at most W / 2, rounded down.
        global_layers: Numbers, from 0, of the layers that attend to all tokens.
    """

    size: Context
    global_layers: tuple[Index, ...] = ()


@spec
class Normal:
    """Normal distribution (GPT-2); see `init.py`.

    Args:
        std: Standard deviation of the weights. Matrices that write to the residual stream have a smaller one.
    """

    kind: Literal["normal"] = "normal"
    std: Deviation = 0.02


@spec
class Xavier:
    """Uniform distribution by Glorot and Bengio; see `init.py`."""

    kind: Literal["xavier"] = "xavier"


@spec
class ZeroProjections:
    """Zeros in output layers and in the last matrix of each branch; see `init.py`.

    Args:
        gain: Factor of the standard deviation of the other matrices, which is gain / sqrt(fan in).
        embedding_std: Standard deviation of the embeddings.
    """

    kind: Literal["zero_projections"] = "zero_projections"
    gain: Deviation = 0.5
    embedding_std: Deviation = 0.02


@spec
class PyTorch:
    """The default initialization of `nn.Linear` and `nn.Embedding`."""

    kind: Literal["pytorch"] = "pytorch"


Init = Normal | Xavier | ZeroProjections | PyTorch


@spec
class LoRA:
    """Low-rank adaptation (Hu et al. 2022) of selected linear layers. Other weights are frozen.

    Args:
        rank: Rank r of the product of the two matrices.
        alpha: α; the product is multiplied by α/r.
        targets: Linear layers of the blocks to adapt: `query`, `key`, `value`, `out`, `up`, `gate`, `down`, longer
            names ("self_attention.query"), patterns ("decoder.*.value"), or "all". New heads and classifiers are always
            trained.
        dropout: Dropout rate of the input of the two matrices.
    """

    kind: Literal["lora"] = "lora"
    rank: Annotated[int, Interval(ge=1, le=1 << 16)] = 8
    alpha: Annotated[float, Interval(gt=0, le=10**6)] = 16.0
    targets: tuple[str, ...] = ("query", "value")
    dropout: ShareBelowOne = 0.0

    def __post_init__(self) -> None:
        if not self.targets:
            raise ValueError("targets is empty; set it to a list such as [query, value], or to [all]")
