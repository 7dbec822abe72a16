"""How a model tells where a token stands: its position scheme, asked as the model asks it.

learned, sinusoidal   the vectors that are added, and the cosine of any two of them
rotary                the angles by which pairs of a head's numbers are turned, and how far apart they repeat
alibi                 what is added to a score at each distance, in each head
"""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from matplotlib import colormaps
from matplotlib.figure import Figure, SubFigure
from matplotlib.ticker import MaxNLocator, StrMethodFormatter
from torch import Tensor

from tercet.checkpoint import Trained
from tercet.config import UserError, nearest
from tercet.inspect.pictures import NothingToDraw
from tercet.inspect.plots.figure import DARK, LINES, MIDDLE, RED, SMALL, add_title, sheet
from tercet.models import EncoderDecoder
from tercet.models.stack import Stack

MOST = 512  # positions that a picture's points can tell apart; to skip some would draw waves that are not there


def stacks(trained: Trained, stack: str | None = None) -> dict[str, Stack]:
    """The stacks of a model by name, or the one that is asked for.

    Raises:
        UserError: for a stack that the model does not have.
    """
    model = trained.model
    every = {"encoder": model.encoder, "decoder": model.decoder} if isinstance(model, EncoderDecoder) else {}
    if not isinstance(model, EncoderDecoder):
        every = {"stack": model.stack}
    if stack is not None and stack not in every:
        raise UserError(f"--stack {stack}: {trained.folder} has no such stack{nearest(stack, every)}")
    return every if stack is None else {stack: every[stack]}


def plot_positions(trained: Trained, *, stack: str | None = None) -> Figure:
    """The position scheme of a stack, or of each one below the other.

    Raises:
        NothingToDraw: for a model without positions.
        UserError: for a stack that it does not have.
    """
    chosen = {name: part for name, part in stacks(trained, stack).items() if part.spec.position.kind != "none"}
    if not chosen:
        raise NothingToDraw(
            f"{trained.folder} has no position scheme (position: none): nothing tells its tokens where they stand"
        )
    chosen = _together(chosen)
    figure = sheet(11, 5 * len(chosen))
    name = trained.card.name or trained.folder.name
    add_title(figure, f"{name}: how the model tells positions apart")
    for part, (name, one) in zip(figure.subfigures(len(chosen), 1, squeeze=False)[:, 0], chosen.items(), strict=True):
        _draw(part, "" if name == "stack" else f"{name}: ", one, trained.model.max_len)
    return figure


def _together(chosen: dict[str, Stack]) -> dict[str, Stack]:
    """Two stacks that tell positions in one and the same way, drawn once."""
    ways = {(s.position, s.d_model, s.head_width, s.n_heads) for s in (stack.spec for stack in chosen.values())}
    if len(chosen) > len(ways) == 1 and not any(list(stack.position.parameters()) for stack in chosen.values()):
        return {" and ".join(chosen): next(iter(chosen.values()))}
    return chosen


@torch.no_grad()
def _draw(figure: SubFigure, name: str, stack: Stack, length: int) -> None:
    positions = torch.arange(min(length, MOST), device=next(stack.parameters()).device)[None]  # (1, P)
    vectors = stack.position.embed(positions)  # (1, P, D)
    if vectors is not None:
        _vectors(figure, name, stack, vectors[0].float().cpu(), length)
    elif (rotation := stack.position.rotation(positions)) is not None:
        _angles(figure, name, stack, rotation[0][0].float().cpu(), length)
    else:
        _penalties(figure, name, stack, length)


def _vectors(figure: SubFigure, name: str, stack: Stack, vectors: Tensor, length: int) -> None:
    rows, width = vectors.shape
    left, right = figure.subplots(1, 2)
    most = float(vectors.abs().max())
    strength = max(
        min(most, 5 * float(vectors.square().mean().sqrt())), 1e-12
    )  # a few great numbers outshine no others
    end = rows - 0.5
    image = left.imshow(
        vectors.numpy(),
        cmap="RdBu_r",
        vmin=-strength,
        vmax=strength,
        aspect="auto",
        extent=(-0.5, width - 0.5, end, -0.5),
    )
    kind = {"learned": "a learned vector", "sinusoidal": "sines and cosines"}[stack.spec.position.kind]
    _label(left, "dimension of the vector", "position", f"{name}{kind} for each position{_beginning(length)}")
    _bar(figure, image, left, "value added to the embedding", extend="both" if most > strength else "neither")
    alike = F.normalize(vectors, dim=-1)
    image = right.imshow(
        (alike @ alike.T).numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", extent=(-0.5, end, end, -0.5)
    )  # fmt: skip
    _label(right, "position", "position", f"{name}how alike the vectors of two positions are")
    _bar(figure, image, right, "cosine similarity")


def _angles(figure: SubFigure, name: str, stack: Stack, cos: Tensor, length: int) -> None:
    wavelengths = turns(stack)
    left, right = figure.subplots(1, 2)
    image = left.imshow(
        cos.numpy(), cmap="RdBu_r", vmin=-1, vmax=1, aspect="auto", interpolation="nearest",
        extent=(-0.5, cos.shape[1] - 0.5, len(cos) - 0.5, -0.5),
    )  # fmt: skip
    rest = stack.spec.head_width - 2 * len(wavelengths)
    unturned = f"; {rest} of {stack.spec.head_width} numbers are not turned" if rest else ""
    _label(
        left,
        f"pair of a head's numbers{unturned}",
        "position",
        f"{name}the angle that turns each pair{_beginning(length)}",
    )
    _bar(figure, image, left, "cosine of the angle")
    right.plot(
        range(len(wavelengths)), wavelengths, color=DARK, marker="o", markersize=3, linewidth=1.2, label="wavelength"
    )
    right.axhline(length, color=RED, linestyle="--", linewidth=1, label=f"the context: {length:,} tokens")
    right.set_yscale("log")
    for axes in (left, right):
        axes.xaxis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    right.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
    right.grid(color=LINES)
    right.legend(fontsize=SMALL)
    short = int((np.array(wavelengths) <= length).sum())
    about = f"{short} of {len(wavelengths)} pairs turn full circle within the context"
    _label(right, "pair", "tokens for a full turn (logarithmic scale)", f"{name}{about}")


@torch.no_grad()
def turns(stack: Stack) -> list[float]:
    """Of each pair of a rotary scheme, after how many tokens it stands as it stood."""
    device = next(stack.parameters()).device
    rotation = stack.position.rotation(torch.ones(1, 1, dtype=torch.long, device=device))
    assert rotation is not None
    cos, sin = (table[0, 0].double() for table in rotation)  # of position 1, whose angle is the frequency
    return (2 * math.pi / torch.atan2(sin, cos)).tolist()


def _penalties(figure: SubFigure, name: str, stack: Stack, length: int) -> None:
    device = next(stack.parameters()).device
    distance = torch.arange(length, device=device)[None]
    bias = stack.position.bias(torch.zeros(1, 1, dtype=torch.long, device=device), distance)
    assert bias is not None
    lines = bias[0, :, 0].float().cpu()  # (H, S)
    axes = figure.subplots()
    colors = colormaps["viridis"](np.linspace(0, 0.88, len(lines)))
    for head, (line, color) in enumerate(zip(lines, colors, strict=True)):
        slope = float(line[1]) if length > 1 else 0.0
        style = ("-", "--", ":")[head % 3]
        axes.plot(range(length), line.numpy(), color=color, linestyle=style, label=f"head {head}: {slope:.4g} a token")
    axes.grid(color=LINES)
    axes.legend(fontsize=SMALL, ncols=-(-len(lines) // 16), loc="center left", bbox_to_anchor=(1.01, 0.5))
    _label(
        axes, "distance to the token looked at (tokens)", "added to the score", f"{name}the penalty of distance (ALiBi)"
    )


def _label(axes: Any, x: str, y: str, title: str) -> None:
    axes.set_xlabel(x, fontsize=MIDDLE)
    axes.set_ylabel(y, fontsize=MIDDLE)
    axes.set_title(title, fontsize=10)
    axes.tick_params(labelsize=SMALL)


def _bar(figure: SubFigure, image: Any, axes: Any, words: str, *, extend: Any = "neither") -> None:
    bar = figure.colorbar(image, ax=axes, fraction=0.05, extend=extend)
    bar.set_label(words, fontsize=SMALL)
    bar.ax.tick_params(labelsize=SMALL)


def _beginning(length: int) -> str:
    return "" if length <= MOST else f" (the first {MOST} of {length:,})"
