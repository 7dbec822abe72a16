"""Attention maps of one text: small maps of all heads, or large maps of one block with token labels.

Rows are query tokens, columns are key tokens, and each row sums to one. Masked keys are gray. Colors grow with the
square root of the weight, so that attention spread over a hundred tokens stays visible.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from numpy import ma

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.inspect.recording import Recording, Side, read
from tercet.inspect.token_text import label_token, label_with_spaces
from tercet.plots.figure import MIDDLE, SMALL, add_title, new_figure
from tercet.plots.picture_file import NothingToDraw, disable_mathtext, thin_labels
from tercet.plots.positions import choose_stacks

KINDS = {
    ("stack", "self"): "self-attention",
    ("encoder", "self"): "encoder self-attention",
    ("decoder", "self"): "decoder self-attention",
    ("decoder", "cross"): "cross-attention: translation to source",
}
TICKS = (0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0)
MAX_LABELS = 40  # per axis
MAX_TITLE_CHARACTERS = 100  # of the text in a title


@dataclass(frozen=True, kw_only=True)
class AttentionMaps:
    """Attention weights of one kind of attention.

    Attributes:
        description: Kind of attention, in words.
        weights: (H, T, S) weights of each block, as masked arrays. The masked elements are keys that the attention mask
            hides.
        queries: Labels of the T query tokens.
        keys: Labels of the S key tokens.
    """

    description: str
    weights: list[ma.MaskedArray]
    queries: list[str]
    keys: list[str]


def plot_attention(
    trained_model: TrainedModel,
    text: str,
    *,
    target: str | None = None,
    ids: Sequence[int] | None = None,
    stack: str | None = None,
    layer: int | None = None,
    heads: Sequence[int] | None = None,
    scale: float = 1.0,
) -> Figure:
    """Plot the attention maps of one text.

    Args:
        trained_model: Model that reads the text.
        text: Text to read.
        target: Text that a translator's decoder reads (default: the model's own translation).
        ids: Token ids to use instead of `text`, including special tokens.
        stack: `encoder`, or `decoder` with its cross-attention, of a translator (default: both).
        layer: Index of a block, from 0, to plot only its heads, enlarged (default: plot all blocks).
        heads: Indices of the heads to plot, from 0 (default: all heads of the block).
        scale: Size of the labels of enlarged maps, for example 2 for a projector.

    Raises:
        UserError: If `read` rejects the text or the target, or the model has no such stack, block or head.
    """
    check_layer(trained_model, stack=stack, layer=layer)
    check_heads(trained_model, stack=stack, layer=layer, heads=heads)
    recording = read(trained_model, text, target=target, ids=ids, only=["*.weights", "*.mask"])
    kinds = [maps for maps in attention_maps(recording, stack=stack) if layer is None or layer < len(maps.weights)]
    if not kinds:
        raise NothingToDraw(
            f"{trained_model.folder} has attention of another package, which does not record its weights"
        )
    name = trained_model.card.name or trained_model.folder.name
    if layer is None:
        return _plot_overview(kinds, f"{name}: attention of every head", _describe_texts(recording))
    title = f"{name}: attention of block {layer}"
    return _plot_heads(kinds, layer, title, _describe_texts(recording), heads=heads, scale=scale)


def check_layer(trained_model: TrainedModel, *, stack: str | None, layer: int | None) -> None:
    """Check that the model has this stack and block.

    Raises:
        UserError: If it does not.
    """
    depths = {name: len(part.blocks) for name, part in choose_stacks(trained_model, stack).items()}
    if layer is not None and not 0 <= layer < max(depths.values()):
        blocks = ", ".join(f"{'' if name == 'stack' else f'{name} '}0 to {n - 1}" for name, n in depths.items())
        raise UserError(f"--layer {layer}: {trained_model.folder} has no such block; blocks are {blocks}")


def check_heads(
    trained_model: TrainedModel, *, stack: str | None, layer: int | None, heads: Sequence[int] | None
) -> None:
    """Check that a block is chosen and has these heads.

    Raises:
        UserError: If it does not.
    """
    if heads is None:
        return
    if layer is None:
        raise UserError("--head requires --layer, the block whose heads are plotted; pass for example --layer 0")
    n_heads = min(part.spec.n_heads for part in choose_stacks(trained_model, stack).values())
    if outside := [head for head in heads if not 0 <= head < n_heads]:
        raise UserError(f"--head {outside[0]}: {trained_model.folder} has no such head; heads are 0 to {n_heads - 1}")


def attention_maps(recording: Recording, *, stack: str | None = None) -> list[AttentionMaps]:
    """Return the recorded attention weights of each kind of attention, in the order of the model."""
    maps: list[AttentionMaps] = []
    for (stack_name, kind), description in KINDS.items():
        if stack_name not in recording.sides or stack not in (None, stack_name):
            continue
        names: list[str] = []
        while (name := f"{stack_name}.blocks.{len(names)}.{kind}_attention") + ".weights" in recording.activations:
            names.append(name)
        if not names:  # attention of another package
            continue
        weights: list[ma.MaskedArray] = []
        for name in names:
            heads = recording.activations[f"{name}.weights"][0].float().cpu()  # (H, T, S)
            mask = recording.activations[f"{name}.mask"][0].cpu().expand_as(heads)
            weights.append(ma.masked_array(heads.numpy(), ~mask.numpy()))
        queries = [label_token(token) for token in recording.sides[stack_name].texts]
        keys = [label_token(token) for token in recording.sides["encoder"].texts] if kind == "cross" else queries
        maps.append(AttentionMaps(description=description, weights=weights, queries=queries, keys=keys))
    return maps


def _describe_texts(recording: Recording) -> str:
    parts = [f"{'' if name == 'stack' else f'{name} reads: '}{_quote(side)}" for name, side in recording.sides.items()]
    return "\n".join([*parts, *(["truncated to the context"] if recording.truncated else [])])


def _quote(side: Side) -> str:
    """Return the text on one line, shortened, and its number of tokens."""
    text, n = (
        label_with_spaces(" ".join(side.tokenizer.decode(side.ids, skip_special=False).split())).replace("␣", " "),
        len(side.ids),
    )
    return (
        f"{text if len(text) <= MAX_TITLE_CHARACTERS else f'{text[: MAX_TITLE_CHARACTERS - 1]}…'}  "
        f"({n} {'token' if n == 1 else 'tokens'})"
    )


def _plot_overview(kinds: list[AttentionMaps], title: str, texts: str) -> Figure:
    """Plot a grid of small maps for each kind of attention: a row per block, a column per head."""
    heads = [len(maps.weights[0]) for maps in kinds]
    deepest = max(len(maps.weights) for maps in kinds)
    side = min(1.5, max(0.75, 11 / sum(heads)))
    figure = new_figure(
        max(5.5, side * sum(heads) + 0.5 * len(kinds) + 1), max(3.2, side * deepest + 1.2 + 0.25 * len(kinds))
    )
    parts = figure.subfigures(1, len(kinds), squeeze=False, width_ratios=heads)[0]
    image: Any = None
    for number, (part, maps, n_heads) in enumerate(zip(parts, kinds, heads, strict=True)):
        grid = part.subplots(deepest, n_heads, squeeze=False)
        for layer, row in enumerate(grid):
            for head, axes in enumerate(row):
                if layer >= len(maps.weights):
                    axes.set_axis_off()
                    continue
                image = _draw_map(axes, maps.weights[layer][head])
                axes.set(xticks=[], yticks=[])
                if layer == 0:
                    axes.set_title(f"head {head}", fontsize=SMALL - (n_heads > 8), pad=3)
                if head == 0:
                    axes.set_ylabel(f"block {layer}", fontsize=SMALL)
        if len(kinds) > 1:
            add_title(part, maps.description, size=MIDDLE)
        if number == len(kinds) - 1:
            _add_colorbar(part, image, grid)
    return _add_header(figure, title, texts, gray=_has_masked(kinds))


def _plot_heads(
    kinds: list[AttentionMaps], layer: int, title: str, texts: str, *, heads: Sequence[int] | None, scale: float
) -> Figure:
    """Plot a row of large maps for each kind of attention, with token labels."""
    widest = max(len(maps.keys) for maps in kinds)
    shown = [range(len(maps.weights[layer])) if heads is None else list(dict.fromkeys(heads)) for maps in kinds]
    n_heads = max(map(len, shown))
    columns = math.ceil(n_heads / math.ceil(n_heads / 4))
    side = min(5.0 * scale, max(2.4, 0.17 * scale * widest))
    lines = [math.ceil(len(numbers) / columns) for numbers in shown]
    margin = 0.07 * scale * max(len(text) for maps in kinds for text in (*maps.queries, *maps.keys))
    space = 1 + scale  # factor of the space for titles and labels
    figure = new_figure(
        columns * (side + 0.2 * space) + margin + 0.6 * space,
        sum(lines) * (side + 0.25 * space) + len(kinds) * (margin + 0.2 * space) + 1.0,
    )
    parts = figure.subfigures(len(kinds), 1, squeeze=False, height_ratios=lines)[:, 0]
    for part, maps, numbers, n_lines in zip(parts, kinds, shown, lines, strict=True):
        grid = part.subplots(n_lines, columns, squeeze=False, sharex=True, sharey=True)
        image: Any = None
        for axes in grid.flat[len(numbers) :]:
            axes.set_axis_off()
        for head, axes in zip(numbers, grid.flat, strict=False):
            image = _draw_map(axes, maps.weights[layer][head])
            axes.set_title(f"block {layer}, head {head}", fontsize=scale * MIDDLE)
            axes.set_xticks(*thin_labels(maps.keys, MAX_LABELS), rotation=90)
            axes.set_yticks(*thin_labels(maps.queries, MAX_LABELS))
            axes.tick_params(length=0, labelsize=scale * SMALL)
            disable_mathtext([*axes.get_xticklabels(), *axes.get_yticklabels()])
        part.supxlabel("key token", fontsize=scale * MIDDLE)
        part.supylabel("query token", fontsize=scale * MIDDLE)
        if len(kinds) > 1:
            add_title(part, maps.description, size=scale * 10)
        _add_colorbar(part, image, grid, scale=scale)
    return _add_header(figure, title, texts, gray=_has_masked(kinds))


def _draw_map(axes: Any, weights: np.ndarray) -> Any:
    colors = colormaps["Blues"].with_extremes(bad="#ebebeb")
    image = axes.imshow(weights, cmap=colors, norm=PowerNorm(0.5, vmin=0, vmax=1), aspect="auto")
    for edge in axes.spines.values():
        edge.set(color="#b0b0b0", linewidth=0.6)
    return image


def _has_masked(kinds: list[AttentionMaps]) -> bool:
    return any(ma.getmaskarray(weights).any() for maps in kinds for weights in maps.weights)


def _add_colorbar(part: Any, image: Any, grid: np.ndarray, *, scale: float = 1.0) -> None:
    bar = part.colorbar(image, ax=grid.ravel().tolist(), fraction=0.03, ticks=TICKS, aspect=30)
    bar.ax.set_yticklabels([f"{tick:g}" for tick in TICKS])
    bar.set_label("attention weight", fontsize=scale * SMALL)
    bar.ax.tick_params(labelsize=scale * SMALL)


def _add_header(figure: Figure, title: str, texts: str, *, gray: bool) -> Figure:
    hint = "rows: query tokens, sum 1; columns: key tokens; the first tokens are at the top and left"
    unseen = "; gray: masked" if gray else ""
    add_title(figure, f"{title}\n{texts}\n{hint}{unseen}", size=MIDDLE)
    return figure
