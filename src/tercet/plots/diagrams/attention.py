"""A diagram of the attention of a block, with the shape of each tensor as `record` returns it.

q, k, v = x split into heads;  scores = q kᵀ / √K;  weights = softmax(scores + mask);  heads = weights v;
out = heads concatenated and projected
"""

from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure
from torch import nn

from tercet.models import AnySpec, EncoderDecoder
from tercet.models.stack import Stack
from tercet.nn import Attention, Block
from tercet.nn.linear import Linear
from tercet.nn.norm import JointRMSNorm
from tercet.nn.specs import ALiBi, NoPosition, Position, RelativeBias, Rotary
from tercet.plots.diagrams.boxes import Box, Shape, format_position, format_sizes, has_bias
from tercet.plots.diagrams.canvas import SOFT, TITLE, Canvas, format_letters, format_shape
from tercet.plots.diagrams.description import SEES_ALL, SEES_EARLIER, SEES_SOURCE, build_on_meta, resolve_sizes

BOX_WIDTH, COLUMN_DISTANCE, GAP = 2.3, 2.75, 0.42  # inches: boxes, column centers, arrows


@dataclass(frozen=True, kw_only=True)
class AttentionDiagram:
    """The attention of a block as boxes with shapes.

    Attributes:
        name: Name of the module, as in the weights file, with `*` for the number of the block.
        description: Kind of attention, in words.
        inputs: Inputs of the queries and of the keys and values; a single input for self-attention.
        columns: Boxes of query, key and value from bottom to top. The last one has the shape (B, heads, tokens, K).
        scores, weights, heads, concatenated, out: Boxes above the columns.
        letters: Meaning of the letters in shapes.
    """

    name: str
    description: str
    inputs: tuple[Box, ...]
    columns: dict[str, tuple[Box, ...]]
    scores: Box
    weights: Box
    heads: Box
    concatenated: Box
    out: Box
    letters: dict[str, str]


def describe_attention(
    spec: AnySpec, *, which: str | None = None, batch: int | None = None, length: int | None = None,
    source_length: int | None = None,
) -> AttentionDiagram:  # fmt: skip
    """Describe the attention of a block, which is the same in all blocks.

    Args:
        spec: Spec of the model.
        which: `encoder`, `decoder` or `cross` for translators (default: `encoder`); `self` for other models.
        batch, length, source_length: Numbers for the letters B, T and S in shapes. By default the letters are kept, and
            S is T if T has a number.

    Raises:
        ValueError: If the model has no such attention, or as for `describe_model`.
    """
    model, _ = build_on_meta(spec)
    letters, b, t, s = resolve_sizes(spec, batch, length, source_length)
    if isinstance(model, EncoderDecoder):
        kinds = {
            "encoder": (model.encoder, "self"),
            "decoder": (model.decoder, "self"),
            "cross": (model.decoder, "cross"),
        }
        which = which or "encoder"
    else:
        kinds = {"self": (model.stack, "self")}
        which = which or "self"
    if which not in kinds:
        raise ValueError(f"which={which!r}: the {spec.family} family has {' and '.join(kinds)}; choose one of them")
    stack, kind = kinds[which]
    block = stack.blocks[0]
    assert isinstance(block, Block)
    part = block.self_attention if kind == "self" else block.cross_attention
    assert part is not None
    side = "stack" if which == "self" else "encoder" if which == "encoder" else "decoder"
    queries, keys = (s, s) if which == "encoder" else (t, s if kind == "cross" else t)
    position = stack.spec.position if kind == "self" else NoPosition()
    if which != "cross" and isinstance(model, EncoderDecoder):
        letters.pop("T" if which == "encoder" else "S", None)
    return AttentionDiagram(
        name=f"{side}.blocks.*.{kind}_attention",
        description={"self": "self-attention", "encoder": "the encoder's self-attention",
               "decoder": "the decoder's self-attention", "cross": "the decoder's cross-attention"}[which],
        **_describe_steps(part, stack, position, kind=kind, b=(b,), queries=(queries,), keys=(keys,)),
        letters=letters,
    )  # fmt: skip


def plot_attention_shapes(diagram: AttentionDiagram, *, name: str = "") -> Figure:
    """Draw the attention of a block with the shape of each tensor.

    Args:
        diagram: Description of the attention.
        name: Name of the model, for the title.
    """
    canvas = Canvas()
    places = {"query": -COLUMN_DISTANCE, "key": 0.0, "value": COLUMN_DISTANCE}
    wide, (query, key, value) = 2 * COLUMN_DISTANCE + BOX_WIDTH, places.values()
    middles = [0.0] if len(diagram.inputs) == 1 else [query, (key + value) / 2]
    sizes = [wide] if len(diagram.inputs) == 1 else [BOX_WIDTH, COLUMN_DISTANCE + BOX_WIDTH]
    floor = max(
        canvas.draw_box(step, x, 0, width) for step, x, width in zip(diagram.inputs, middles, sizes, strict=True)
    )
    tops: dict[str, float] = {}
    last: dict[str, Box] = {}
    for column, x in places.items():
        y, previous = floor, diagram.inputs[0 if column == "query" else -1]
        for step in diagram.columns[column]:
            y = canvas.draw_box(step, x, _draw_arrow(canvas, x, y, previous), BOX_WIDTH)
            previous = step
        tops[column], last[column] = y, previous
    level = max(tops["query"], tops["key"])
    for column in ("query", "key"):
        _draw_arrow(canvas, places[column], tops[column], last[column], to=level + GAP)
    middle = (query + key) / 2
    y = canvas.draw_box(diagram.scores, middle, level + GAP, COLUMN_DISTANCE + BOX_WIDTH)
    y = canvas.draw_box(
        diagram.weights, middle, _draw_arrow(canvas, middle, y, diagram.scores), COLUMN_DISTANCE + BOX_WIDTH
    )
    if diagram.weights.dropout:
        canvas.draw_arrow((middle, y), (middle, y + 0.1), head=False)
        y = canvas.draw_chip(f"dropout {diagram.weights.dropout:g}", middle, y + 0.1)
    top = _draw_arrow(canvas, middle, y, diagram.weights)
    _draw_arrow(canvas, value, tops["value"], last["value"], to=top)
    y = canvas.draw_box(diagram.heads, 0.0, top, wide)
    y = canvas.draw_box(diagram.concatenated, 0.0, _draw_arrow(canvas, 0.0, y, diagram.heads), wide)
    y = canvas.draw_box(diagram.out, 0.0, _draw_arrow(canvas, 0.0, y, diagram.concatenated), wide)
    _draw_arrow(canvas, 0.0, y, diagram.out)
    left, bottom, high = canvas.left, canvas.bottom, canvas.top + 0.35
    canvas.draw_text(diagram.description, left, high, size=TITLE, color=SOFT, align="left")
    canvas.draw_text(name or "Attention", left, high + 0.25, size=13, weight="bold", align="left")
    canvas.draw_text(format_letters(diagram.letters), left, bottom - 0.25, color=SOFT, align="left")
    return canvas.finish()


def _describe_steps(
    part: Attention, stack: Stack, position: Position, *, kind: str, b: Shape, queries: Shape, keys: Shape
) -> dict[str, Any]:
    width, n_heads, n_groups, d_head = stack.spec.d_model, part.n_heads, part.n_kv_heads, part.d_head
    q_shape, k_shape = (*b, n_heads, *queries, d_head), (*b, n_groups, *keys, d_head)
    scores_shape = (*b, n_heads, *queries, *keys)
    inputs = [Box(kind="input", title="x", details=("hidden states",), shape=(*b, *queries, width))]
    if kind == "cross":
        memory = "the encoder's output"
        inputs.append(Box(kind="input", title="memory", details=(memory,), shape=(*b, *keys, width)))
    columns: dict[str, tuple[Box, ...]] = {}
    for name, linear, norm, shape in (
        ("query", part.query, part.query_norm, q_shape),
        ("key", part.key, part.key_norm, k_shape),
        ("value", part.value, None, k_shape),
    ):
        turns = isinstance(position, Rotary) and name != "value"
        columns[name] = _describe_column(name, linear, norm, shape, position if turns else None)
    shares = "" if n_groups == n_heads else f"{n_heads // n_groups} query heads share each key/value head"
    bias = format_position(position) if isinstance(position, ALiBi | RelativeBias) else ""
    cap = "" if part.softcap is None else f"then {part.softcap:g} tanh(scores / {part.softcap:g})"
    sees = SEES_SOURCE if kind == "cross" else SEES_EARLIER if stack.causal else SEES_ALL
    return {
        "inputs": tuple(inputs),
        "columns": columns,
        "scores": Box(kind="product", title=f"q kᵀ / √{d_head}", name="scores", shape=scores_shape,
                       details=tuple(text for text in (shares, cap, bias) if text)),
        "weights": Box(kind="softmax", title="Mask, then softmax over the keys", name="weights", shape=scores_shape,
                        details=(f"{sees}; padding is masked", "each query's weights sum to 1"),
                        dropout=part.dropout),
        "heads": Box(kind="product", title="weights · v", name="heads", shape=q_shape,
                      details=("weighted sum of the values, for each query and head",)),
        "concatenated": Box(kind="pool", title="Concatenate the heads", shape=(*b, *queries, n_heads * d_head)),
        "out": _describe_linear("Output projection", part.out, (*b, *queries, width)),
    }  # fmt: skip


def _describe_column(
    name: str, linear: Linear, norm: nn.Module | None, shape: Shape, position: Position | None
) -> tuple[Box, ...]:
    """Describe a projection, its split into heads, and the operations on each head."""
    batch, heads, tokens, width = shape
    assert isinstance(heads, int)
    assert isinstance(width, int)
    flat = _describe_linear(f"{name.capitalize()} projection", linear, (batch, tokens, heads * width))
    split = f"Split into {heads} {'head' if heads == 1 else 'heads'} of {width}"
    steps = [flat, Box(kind="pool", title=split, name=name[0], shape=shape)]
    if norm is not None and not isinstance(norm, nn.Identity):
        scope = "of all heads together" if isinstance(norm, JointRMSNorm) else "of each head"
        steps.append(Box(kind="norm", title="RMS norm", name=f"{name}_norm", details=(scope,), shape=shape))
    if position is not None:
        steps.append(Box(kind="position", title="Rotation", details=(format_position(position),), shape=shape))
    return tuple(steps)


def _describe_linear(title: str, part: Linear, shape: Shape) -> Box:
    bias = "with bias" if has_bias(part) else "no bias"
    return Box(kind="linear", title=title, details=(f"{format_sizes(part)}, {bias}",), shape=shape)


def _draw_arrow(canvas: Canvas, x: float, y: float, step: Box, *, to: float | None = None) -> float:
    to = y + GAP if to is None else to
    canvas.draw_arrow((x, y), (x, to))
    canvas.draw_text(format_shape(step.shape), x + 0.07, min(y + GAP, to) - GAP / 2, color=SOFT, align="left")
    return to
