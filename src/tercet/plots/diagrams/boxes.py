"""Boxes of a diagram, with the properties of a module."""

from dataclasses import dataclass
from typing import Literal

from torch import nn

from tercet.models import StackSpec
from tercet.models.stack import Stack
from tercet.nn import Attention, FeedForward
from tercet.nn.norm import JointRMSNorm
from tercet.nn.specs import Activation, ALiBi, CustomActivation, Learned, Position, RelativeBias, Rotary, Sinusoidal

BoxKind = Literal[
    "input",
    "embedding",
    "position",
    "norm",
    "attention",
    "feedforward",
    "linear",
    "softmax",
    "product",
    "pool",
    "outside",
]
Size = int | str
Shape = tuple[Size, ...]

NORM_TITLES = {"LayerNorm": "Layer norm", "StdLayerNorm": "Layer norm, by the deviation", "RMSNorm": "RMS norm"}
ACTIVATION_TITLES: dict[Activation, str] = {
    "relu": "ReLU", "gelu": "GELU", "gelu_tanh": "GELU (by tanh)", "silu": "SiLU", "relu_squared": "ReLU²",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Box:
    """A box of a diagram.

    Attributes:
        kind: Kind of box, which determines its color.
        title: First line of the box.
        name: Name of the module, as in the weights file, with `*` for the number of the block; "" if there is none.
        details: Further lines of the box.
        shape: Output shape, with letters for unknown sizes: B rows, T tokens, S source tokens, V vocabulary, L labels.
        dropout: Dropout rate of the output.
    """

    kind: BoxKind
    title: str
    name: str = ""
    details: tuple[str, ...] = ()
    shape: Shape
    dropout: float = 0.0


def read_norm(part: nn.Module, name: str, shape: Shape) -> Box | None:
    """Describe a norm. Return None for `nn.Identity`, which stands for no norm."""
    if isinstance(part, nn.Identity):
        return None
    title = NORM_TITLES.get(type(part).__name__, type(part).__name__)
    bias = "weight and bias" if getattr(part, "bias", None) is not None else "weight, no bias"
    details = (f"eps {part.eps:g}, {bias}",) if type(part).__name__ in NORM_TITLES else ()
    return Box(kind="norm", title=title, name=name, details=details, shape=shape)


def read_attention(part: Attention, name: str, shape: Shape, *, sees: str, position: Position | None) -> Box:
    """Describe an attention module.

    Args:
        part: Attention module.
        name: Name of the module.
        shape: Output shape.
        sees: Description of the mask.
        position: Position scheme of the stack; None if it does not act in this attention.
    """
    groups = "" if part.n_kv_heads == part.n_heads else f", {part.n_kv_heads} key/value heads"
    keys = "k, v" if part.n_kv_heads != part.n_heads else "q, k, v"
    query = f"q {format_sizes(part.query)}; " if keys == "k, v" else ""
    details = [
        *([] if type(part) is Attention else [type(part).__name__]),
        f"{part.n_heads} heads of {part.d_head}{groups}",
        sees,
        f"{query}{keys} {format_sizes(part.key)}; out {format_sizes(part.out)}",
        format_biases(part),
    ]
    if position is not None and (acts := format_position(position)):
        details.append(acts)
    if not isinstance(part.query_norm, nn.Identity):
        joint = isinstance(part.query_norm, JointRMSNorm)
        details.append(f"RMS norm on {'all heads' if joint else 'each head'}'s queries and keys")
    if part.softcap is not None:
        details.append(f"scores bounded by {part.softcap:g} tanh(scores / {part.softcap:g})")
    if part.dropout:
        details.append(f"dropout {part.dropout:g} on the weights")
    return Box(kind="attention", title="", name=name, details=tuple(details), shape=shape)


def read_feedforward(part: nn.Module, spec: StackSpec, name: str, shape: Shape) -> Box:
    if not isinstance(part, FeedForward):
        return Box(
            kind="feedforward", title="Feed-forward network", name=name, details=(type(part).__name__,), shape=shape
        )
    wide, narrow, act = part.up.out_features, part.down.out_features, format_activation(spec.activation)
    if part.gate is None:
        sizes = f"{part.up.in_features} → {wide} → {narrow}, {act}"
    else:
        sizes = f"{part.up.in_features} → {wide} twice, {act} of one times the other, → {narrow}"
    linears = [linear for linear in (part.up, part.gate, part.down) if linear is not None]
    details = [sizes, "with biases" if all(has_bias(linear) for linear in linears) else "no biases"]
    if part.dropout:
        details.append(f"dropout {part.dropout:g} on the activations")
    return Box(kind="feedforward", title="Feed-forward network", name=name, details=tuple(details), shape=shape)


def format_activation(activation: Activation) -> str:
    return type(activation).__name__ if isinstance(activation, CustomActivation) else ACTIVATION_TITLES[activation]


def read_linear(part: nn.Linear, name: str, shape: Shape, *, title: str, extra_details: tuple[str, ...] = ()) -> Box:
    details = (f"{format_sizes(part)}, {'with bias' if has_bias(part) else 'no bias'}", *extra_details)
    return Box(kind="linear", title=title, name=name, details=details, shape=shape)


def read_position(stack: Stack, name: str, shape: Shape) -> Box | None:
    """Describe the position vectors added to the embeddings; return None for schemes without such vectors."""
    match stack.spec.position:
        case Learned():
            rows, width = next(stack.position.parameters()).shape
            title, details = "Learned positions", f"{rows} × {width}"
        case Sinusoidal(base=base):
            title, details = "Sinusoidal positions", f"sines and cosines, base {base:g}"
        case _:
            return None
    return Box(kind="position", title=title, name=f"{name}.position", details=(details,), shape=shape)


def format_position(position: Position) -> str:
    """Describe the effect of a position scheme in attention; return "" for schemes without such an effect."""
    match position:
        case Rotary(base=base, share=share, scaling=scaling):
            part = "" if share == 1 else f", {share:.0%} of each head"
            scaled = "" if scaling is None else f", {scaling.kind} scaling"
            return f"rotary positions, base {base:g}{part}{scaled}"
        case ALiBi():
            return "ALiBi: scores fall with distance"
        case RelativeBias(n_buckets=n, per_layer=per_layer):
            sharing = "each block's own" if per_layer else "shared by all blocks"
            return f"learned bias of {n} buckets of distance, {sharing}"
        case _:
            return ""


def format_sizes(part: nn.Linear) -> str:
    return f"{part.in_features} → {part.out_features}"


def has_bias(part: nn.Linear) -> bool:
    return part.bias is not None  # pyright: ignore[reportUnnecessaryComparison] - Linear says there always is one


def format_biases(part: Attention) -> str:
    qkv, out = has_bias(part.query), has_bias(part.out)
    return {
        (True, True): "with biases", (False, False): "no biases",
        (True, False): "biases on q, k, v only", (False, True): "a bias on out only",
    }[qkv, out]  # fmt: skip
