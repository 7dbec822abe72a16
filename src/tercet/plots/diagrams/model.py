"""A diagram of a model, from its tokens at the bottom to its scores at the top, as in papers."""

from matplotlib.figure import Figure

from tercet.plots.diagrams.boxes import Box
from tercet.plots.diagrams.canvas import SOFT, TITLE, Canvas, format_letters, format_shape
from tercet.plots.diagrams.description import ModelDiagram, StackDiagram, Sublayer

BOX_WIDTH, SIDE_WIDTH = 3.3, 2.0  # inches: width of boxes, and of boxes at the side
GAP, LONG_GAP = 0.3, 0.42  # inches: length of arrows, and of arrows out of a block
PARALLEL = 2.5  # inches: width of parallel boxes
GUTTER = 1.5  # inches between the frames of the encoder and the decoder
EDGE = 0.45  # inches from the boxes of a block to its frame, for the residual connections
HEADS = 3.6  # inches between heads


def plot_model(diagram: ModelDiagram, *, name: str = "", note: str = "") -> Figure:
    """Draw a described model, from its tokens at the bottom to its scores at the top.

    Args:
        diagram: Description of the model.
        name: Name of the model, for the title (default: its family).
        note: Text for a line at the bottom.
    """
    canvas = Canvas()
    halves = [max(map(_measure_half_width, side.sublayers)) + EDGE for side in diagram.sides]
    middle = halves[0] + GUTTER + halves[-1] if len(halves) > 1 else 0.0  # center of the last column
    ends: list[float] = []
    crossings: list[tuple[float, float]] = []
    for number, side in enumerate(diagram.sides):
        outer = 1 if number else -1
        end, crossing = _draw_side(canvas, side, number * middle, outer)
        ends.append(end)
        crossings += crossing
    if crossings:
        _draw_memory(canvas, ends[0], halves[0] + GUTTER / 2, crossings, format_shape(diagram.sides[0].shape))
    _draw_heads(canvas, diagram, middle, ends[-1])
    summary = [diagram.family]
    if diagram.parameters is not None:
        summary.append(f"{diagram.parameters:,} parameters")
    left, bottom = canvas.left, canvas.bottom
    top = canvas.top + 0.35
    canvas.draw_text(" · ".join(summary), left, top, size=TITLE, color=SOFT, align="left")
    canvas.draw_text(name or diagram.family, left, top + 0.25, size=13, weight="bold", align="left")
    for number, line in enumerate(line for line in (format_letters(diagram.letters), note) if line):
        canvas.draw_text(line, left, bottom - 0.25 - 0.17 * number, color=SOFT, align="left")
    return canvas.finish()


def _draw_side(canvas: Canvas, side: StackDiagram, x: float, outer: int) -> tuple[float, list[tuple[float, float]]]:
    """Draw a stack, from its tokens to its last norm; return its upper end and the ends of cross-attention's arrows.

    Args:
        canvas: Canvas to draw on.
        side: Description of the stack.
        x: Center of the stack.
        outer: Direction of the figure's outer side, where additions and residual connections are drawn: -1 is left, 1
            is right.
    """
    y = canvas.draw_box(side.tokens, x, 0, BOX_WIDTH)
    y = _draw_arrow(canvas, x, y, side.tokens)
    y = canvas.draw_box(side.embedding, x, y, BOX_WIDTH)
    shape = side.embedding
    for number, step in enumerate(side.additions):
        y = _draw_arrow(canvas, x, y, shape, gap=LONG_GAP if number else GAP)
        middle = y + 0.1
        side_x = x + outer * (0.95 + SIDE_WIDTH / 2)  # outside the shapes and the dropout
        canvas.draw_box(step, side_x, middle - 0.25, SIDE_WIDTH)
        canvas.draw_arrow((side_x - outer * SIDE_WIDTH / 2, middle), (x + outer * 0.1, middle))
        y = canvas.draw_plus(x, y)
    if side.embedding_norm is not None:
        y = canvas.draw_box(side.embedding_norm, x, _draw_arrow(canvas, x, y, shape), BOX_WIDTH)
    y = _draw_dropout(canvas, side.dropout, x, y)
    y = _draw_arrow(canvas, x, y, shape)
    floor, crossings = y, []
    half = max(_measure_half_width(sublayer) for sublayer in side.sublayers)
    for sublayer in side.sublayers:
        y, crossing = _draw_sublayer(canvas, sublayer, x, y, outer, side)
        crossings += [(crossing_x, crossing_y) for crossing_x, crossing_y in crossing]
    ceiling = y + 0.12
    canvas.draw_frame(x - half - EDGE, floor, 2 * (half + EDGE), ceiling - floor, fill="#f6f7f9", background=True)
    times = x + outer * (half + 0.6)
    canvas.draw_text(f"{side.n_layers} ×", times, (floor + ceiling) / 2, size=14, weight="bold",
                 align="left" if outer > 0 else "right")  # fmt: skip
    if side.final_norm is not None:
        y = canvas.draw_box(side.final_norm, x, _draw_arrow(canvas, x, y, shape, gap=LONG_GAP), BOX_WIDTH)
    return y, crossings


def _draw_sublayer(
    canvas: Canvas, sublayer: Sublayer, x: float, y: float, outer: int, side: StackDiagram
) -> tuple[float, list[tuple[float, float]]]:
    split = y + 0.12
    half = _measure_half_width(sublayer)
    canvas.draw_arrow((x, y), (x, split), head=False)
    y = split
    stream = side.embedding
    if sublayer.before is not None:
        y = _draw_arrow(canvas, x, y, stream)
        y = canvas.draw_box(sublayer.before, x, y, BOX_WIDTH)
    places, width = _place_branches(sublayer, x)
    if len(places) > 1:
        canvas.draw_arrow((x, y), (x, y + 0.14), head=False)
        y += 0.14
        canvas.draw_arrow((min(places), y), (max(places), y), head=False)
    tops: list[float] = []
    crossings: list[tuple[float, float]] = []
    # Cross-attention is on the left, next to the encoder.
    branches = sorted(sublayer.branches, key=lambda branch: not branch.body.name.endswith("cross_attention"))
    for branch, place in zip(branches, places, strict=True):
        low = _draw_arrow(canvas, place, y, stream)
        if branch.before is not None:
            low = _draw_arrow(canvas, place, canvas.draw_box(branch.before, place, low, width), stream)
        top = canvas.draw_box(branch.body, place, low, width)
        if branch.body.name.endswith("cross_attention"):
            crossings.append((place - width / 2, (low + top) / 2))
        if branch.norm is not None:
            top = canvas.draw_box(branch.norm, place, _draw_arrow(canvas, place, top, branch.body), width)
        tops.append(_draw_dropout(canvas, branch.body.dropout, place, top))
    top = max(tops)
    if len(places) > 1:
        top += 0.25
        for place, low in zip(places, tops, strict=True):
            offset = 0.1 if place > x else -0.1
            ends = [(x, top)] if place == x else [(place, top + 0.1), (x + offset, top + 0.1)]
            canvas.draw_arrow((place, low), *ends)
        top = canvas.draw_plus(x, top)
    top = _draw_arrow(canvas, x, top, stream)
    skip_x = x + outer * (half + 0.25)
    canvas.draw_arrow((x, split), (skip_x, split), (skip_x, top + 0.1), (x + outer * 0.1, top + 0.1))
    y = canvas.draw_plus(x, top)
    if sublayer.after is not None:
        y = canvas.draw_box(sublayer.after, x, _draw_arrow(canvas, x, y, stream), BOX_WIDTH)
    return y, crossings


def _draw_memory(canvas: Canvas, end: float, gutter: float, crossings: list[tuple[float, float]], shape: str) -> None:
    """Draw the arrow from the top of the encoder to the decoder's cross-attention."""
    ((x, y),) = crossings
    canvas.draw_arrow((0, end), (0, end + LONG_GAP), (gutter, end + LONG_GAP), (gutter, y), (x, y))
    canvas.draw_text(f"memory {shape}", gutter / 2 + 0.05, end + LONG_GAP + 0.1, color=SOFT)


def _draw_heads(canvas: Canvas, diagram: ModelDiagram, x: float, y: float) -> None:
    last_side = diagram.sides[-1]
    last = last_side.final_norm or last_side.embedding
    places = [x + (n - (len(diagram.heads) - 1) / 2) * HEADS for n in range(len(diagram.heads))]
    if len(places) > 1:
        canvas.draw_arrow((x, y), (x, y + 0.25), head=False)
        y += 0.25
        canvas.draw_arrow((min(places), y), (max(places), y), head=False)
    for place, head in zip(places, diagram.heads, strict=True):
        top, previous, gap = y, last, LONG_GAP
        for step in head:
            top = canvas.draw_box(step, place, _draw_arrow(canvas, place, top, previous, gap=gap), BOX_WIDTH)
            previous, gap = step, GAP
        _draw_arrow(canvas, place, top, previous)
    if not places:
        _draw_arrow(canvas, x, y, last, gap=LONG_GAP)


def _draw_arrow(canvas: Canvas, x: float, y: float, step: Box, *, gap: float = GAP) -> float:
    """Draw an upward arrow with the output shape of `step`; return its end."""
    canvas.draw_arrow((x, y), (x, y + gap))
    canvas.draw_shape(step.shape, x, y + gap / 2)
    return y + gap


def _draw_dropout(canvas: Canvas, rate: float, x: float, y: float) -> float:
    if not rate:
        return y
    canvas.draw_arrow((x, y), (x, y + 0.1), head=False)
    return canvas.draw_chip(f"dropout {rate:g}", x, y + 0.1)


def _place_branches(sublayer: Sublayer, x: float) -> tuple[list[float], float]:
    """Return the centers of a sublayer's branches, and the width of their boxes."""
    count = len(sublayer.branches)
    if count == 1:
        return [x], BOX_WIDTH
    return [x + (n - (count - 1) / 2) * (PARALLEL + 0.15) for n in range(count)], PARALLEL


def _measure_half_width(sublayer: Sublayer) -> float:
    places, width = _place_branches(sublayer, 0.0)
    return max(places) + width / 2
