"""Plots of position schemes, computed by the model's own modules.

learned, sinusoidal   the vectors added to the embeddings, and the cosine similarity of any two of them
rotary                the angles that rotate pairs of elements of a head, and their wavelengths
alibi, relative_bias  the bias of a score at each distance in each head, and the biases of the first head

The scheme is that of a trained model, or one before training.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from torch import Tensor

from tercet.checkpoint import TrainedModel
from tercet.config import UserError, suggest
from tercet.inspect.lens import stacks_of
from tercet.models import Stack
from tercet.nn.positions import RelativeBiasPositions
from tercet.nn.specs import Position
from tercet.plots.figure import DARK, LINES, MIDDLE, RED, SMALL, add_title, new_figure
from tercet.plots.picture_file import NothingToDraw
from tercet.plots.position_scheme import MAX_POSITIONS, DrawnScheme

NARROW = 256  # maximum width of vectors that fit into half of a figure of normal width


def choose_stacks(trained_model: TrainedModel, stack: str | None = None) -> dict[str, Stack]:
    """Return the stacks of a model by name, or only the one that is requested.

    Raises:
        UserError: If the model has no such stack.
    """
    stacks = stacks_of(trained_model.model)
    if stack is not None and stack not in stacks:
        raise UserError(f"--stack {stack}: {trained_model.folder} has no such stack{suggest(stack, stacks)}")
    return stacks if stack is None else {stack: stacks[stack]}


def plot_positions(trained_model: TrainedModel, *, stack: str | None = None) -> Figure:
    """Plot the position scheme of one stack, or of each stack.

    Raises:
        NothingToDraw: If the model has no position scheme.
        UserError: If the model has no such stack.
    """
    stacks = {
        name: part for name, part in choose_stacks(trained_model, stack).items() if part.spec.position.kind != "none"
    }
    if not stacks:
        raise NothingToDraw(f"{trained_model.folder} has no position scheme (position: none)")
    stacks = _merge_equal_stacks(stacks)
    length = trained_model.model.max_len
    schemes = {
        "" if name == "stack" else f"{name}: ": DrawnScheme(
            spec=part.spec.position, module=part.position, d_head=part.spec.head_width, length=length
        )
        for name, part in stacks.items()
    }
    title = f"{trained_model.card.name or trained_model.folder.name}: position scheme"
    return _plot_schemes(schemes, title, context="the context")


def plot_position_schemes(schemes: Sequence[DrawnScheme]) -> Figure:
    """Plot position schemes before training, one below the other."""
    names = [f"{_format_spec(scheme.spec)}: " if len(schemes) > 1 else "" for scheme in schemes]
    title = f"{_format_spec(schemes[0].spec)}: position scheme" if len(schemes) == 1 else "Position schemes"
    return _plot_schemes(dict(zip(names, schemes, strict=True)), title, context="the length")


def _format_spec(spec: Position) -> str:
    """Return the kind with the settings that are not defaults."""
    changes = [
        f"{name}={value:g}" if isinstance(value, float) else f"{name}={value}"
        for name, value in vars(spec).items()
        if value != getattr(type(spec)(), name)
    ]
    return f"{spec.kind} ({', '.join(changes)})" if changes else spec.kind


def _merge_equal_stacks(stacks: dict[str, Stack]) -> dict[str, Stack]:
    """Merge two stacks with the same fixed position scheme."""
    distinct = {(s.position, s.d_model, s.head_width, s.n_heads) for s in (stack.spec for stack in stacks.values())}
    if len(stacks) > len(distinct) == 1 and not any(list(stack.position.parameters()) for stack in stacks.values()):
        return {" and ".join(stacks): next(iter(stacks.values()))}
    return stacks


def _plot_schemes(schemes: dict[str, DrawnScheme], title: str, *, context: str) -> Figure:
    is_wide = any(scheme.vectors is not None and scheme.vectors.shape[1] > NARROW for scheme in schemes.values())
    figure = new_figure(16 if is_wide else 11, 5 * len(schemes))
    add_title(figure, title)
    parts = figure.subfigures(len(schemes), 1, squeeze=False)[:, 0]
    for part, (name, scheme) in zip(parts, schemes.items(), strict=True):
        if (vectors := scheme.vectors) is not None:
            _draw_vectors(part, name, scheme, vectors)
        elif (angles := scheme.angles) is not None:
            _draw_angles(part, name, scheme, angles, context)
        elif (bias := scheme.bias) is not None:
            draw = _draw_learned_bias if isinstance(scheme.module, RelativeBiasPositions) else _draw_bias
            draw(part, name, scheme, bias)
    return figure


def _draw_vectors(figure: SubFigure, name: str, scheme: DrawnScheme, vectors: Tensor) -> None:
    rows, width = vectors.shape
    left, right = figure.subplots(1, 2, width_ratios=(2.2 if width > NARROW else 1, 1))
    largest = float(vectors.abs().max())
    strength = max(min(largest, 5 * float(vectors.square().mean().sqrt())), 1e-12)  # limits the effect of outliers
    end = rows - 0.5
    image = left.imshow(
        vectors.numpy(),
        cmap="RdBu_r",
        vmin=-strength,
        vmax=strength,
        aspect="auto",
        extent=(-0.5, width - 0.5, end, -0.5),
    )
    kind_names = {"learned": "a learned vector", "sinusoidal": "sines and cosines"}
    kind = kind_names.get(scheme.spec.kind, f"the vector of {scheme.spec.kind}")  # for third-party schemes
    if scheme.is_initial and list(scheme.module.parameters()):
        kind += ", before training,"
    title = f"{name}{kind} for each position{_describe_cut(scheme.length)}"
    _label_axes(left, "dimension of the vector", "position", title)
    _add_colorbar(
        figure, image, left, "value added to the embedding", extend="both" if largest > strength else "neither"
    )
    unit = F.normalize(vectors, dim=-1)
    image = right.imshow(
        (unit @ unit.T).numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", extent=(-0.5, end, end, -0.5)
    )  # fmt: skip
    _label_axes(right, "position", "position", f"{name}similarity of the vectors of two positions")
    _add_colorbar(figure, image, right, "cosine similarity")


def _draw_angles(figure: SubFigure, name: str, scheme: DrawnScheme, cos: Tensor, context: str) -> None:
    wavelengths, length = scheme.wavelengths, scheme.length
    left, right = figure.subplots(1, 2)
    image = left.imshow(
        cos.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="nearest",
        extent=(-0.5, cos.shape[1] - 0.5, len(cos) - 0.5, -0.5),
    )  # fmt: skip
    n_unturned = scheme.d_head - 2 * len(wavelengths)
    unturned_note = f"; {2 * len(wavelengths)} of {scheme.d_head} numbers rotated" if n_unturned else ""
    _label_axes(
        left,
        f"pair of a head's numbers{unturned_note}",
        "position",
        f"{name}rotation angle of each pair{_describe_cut(length)}",
    )
    _add_colorbar(figure, image, left, "cosine of the angle")
    right.plot(
        range(len(wavelengths)), wavelengths, color=DARK, marker="o", markersize=3, linewidth=1.2, label="wavelength"
    )
    right.axhline(length, color=RED, linestyle="--", linewidth=1, label=f"{context}: {length:,} tokens")
    right.set_yscale("log")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    right.grid(color=LINES)
    right.legend(fontsize=SMALL)
    short = int((np.array(wavelengths) <= length).sum())
    title = f"{short} of {len(wavelengths)} pairs make a full turn within {context}"
    _label_axes(right, "pair", "tokens for a full turn (logarithmic scale)", title)


def _draw_bias(figure: SubFigure, name: str, scheme: DrawnScheme, bias: Tensor) -> None:
    """Draw one line per head for the bias of each distance, and the biases of the first head."""
    axes, map_axes = figure.subplots(1, 2)
    lines = bias[:, 0]  # (H, P) of the first query, whose distance to key s is s
    colors = colormaps["viridis"](np.linspace(0, 0.88, len(lines)))
    for head, (line, color) in enumerate(zip(lines, colors, strict=True)):
        slope = float(line[1]) if len(line) > 1 else 0.0
        style = ("-", "--", ":")[head % 3]
        axes.plot(
            range(len(line)), line.numpy(), color=color, linestyle=style, label=f"head {head}: {slope:.4g} per token"
        )
    axes.grid(color=LINES)
    axes.legend(fontsize=SMALL - 1, ncols=-(-len(lines) // 16), loc="lower left")
    is_alibi = scheme.spec.kind == "alibi"
    title = "distance penalty (ALiBi)" if is_alibi else f"bias of {scheme.spec.kind} at each distance"
    _label_axes(axes, "distance to the key (tokens)", "added to the score", f"{name}{title}")
    image = map_axes.imshow(bias[0].numpy(), cmap="Blues_r", aspect="auto", vmax=0)
    _label_axes(
        map_axes,
        "key position",
        "query position",
        f"{name}bias of head 0{_describe_cut(scheme.length)}",
    )
    _add_colorbar(figure, image, map_axes, "added to the score")


def _draw_learned_bias(figure: SubFigure, name: str, scheme: DrawnScheme, bias: Tensor) -> None:
    """Draw one line per head for the bias of each distance in both directions, and the biases of head 0."""
    axes, map_axes = figure.subplots(1, 2)
    causal = getattr(scheme.module, "causal", False)
    past, future = bias[:, -1], bias[:, 0, 1:]  # (H, P) of the last query, (H, P - 1) of the first
    lines = past if causal else torch.cat((past, future), dim=1)
    distances = range(1 - past.shape[1], 1 if causal else past.shape[1])
    colors = colormaps["viridis"](np.linspace(0, 0.88, len(lines)))
    for head, (line, color) in enumerate(zip(lines, colors, strict=True)):
        axes.plot(distances, line.numpy(), color=color, linestyle=("-", "--", ":")[head % 3], label=f"head {head}")
    axes.grid(color=LINES)
    axes.legend(fontsize=SMALL - 1, ncols=-(-len(lines) // 16))
    kind = "learned bias of each distance" + (", before training" if scheme.is_initial else "")
    layer = " (of block 0)" if getattr(scheme.spec, "per_layer", False) else ""
    _label_axes(axes, "key position minus query position (tokens)", "added to the score", f"{name}{kind}{layer}")
    visible_bias = bias[0].masked_fill(torch.ones_like(bias[0]).triu(1) > 0, math.nan) if causal else bias[0]
    largest = max(float(bias[0].abs().max()), 1e-12)
    image = map_axes.imshow(
        visible_bias.numpy(), cmap="RdBu_r", vmin=-largest, vmax=largest, aspect="auto", interpolation="nearest"
    )
    title = f"{name}bias of head 0{_describe_cut(scheme.length)}"
    _label_axes(map_axes, "key position", "query position", title)
    _add_colorbar(figure, image, map_axes, "added to the score")


def _label_axes(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, fontsize=MIDDLE)
    axes.set_ylabel(y, fontsize=MIDDLE)
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=SMALL)


def _add_colorbar(figure: SubFigure, image: Any, axes: Any, words: str, *, extend: Any = "neither") -> None:
    bar = figure.colorbar(image, ax=axes, fraction=0.05, extend=extend)
    bar.set_label(words, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)


def _describe_cut(length: int) -> str:
    return "" if length <= MAX_POSITIONS else f" (the first {MAX_POSITIONS} of {length:,})"
