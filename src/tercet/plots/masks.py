"""Attention masks of given sentences, as a model computes them.

The sentences are passed through a model with one small block, and the figure shows the recorded masks of its attention.
The weights do not matter: masks depend on the lengths and on the kind of stack.

    encoder   each real token attends to all real tokens; padding is masked
    decoder   token t attends to tokens 0..t, without padding ("look-ahead mask")
    cross     each target token attends to all real source tokens

In training, targets are padded on the right. No real token attends to padding there, because it comes later, so that no
padding mask is needed. Here the mask is passed, as it is for targets with padding elsewhere.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from torch import Tensor

from tercet.inspect.token_text import label_token
from tercet.models import EncoderDecoder, EncoderDecoderSpec, StackSpec, record
from tercet.plots.figure import MIDDLE, SMALL, add_title, new_figure
from tercet.plots.picture_file import disable_mathtext

PAD = "<pad>"
ALLOWED_COLOR, HIDDEN_COLOR = "#9ec3e6", "#f4f4f4"
MAX_LABELED_WORDS = 24  # per side; larger masks have no numbers
DESCRIPTIONS = {
    "encoder": "encoder: all real tokens",
    "decoder": "decoder: no later tokens",
    "cross": "cross-attention: target to source",
}


@dataclass(frozen=True, kw_only=True)
class WordMask:
    """A mask with its words.

    Attributes:
        kind: `encoder`, `decoder` or `cross`.
        queries: (T) query words.
        keys: (S) key words.
        allowed: (T, S) True if the query attends to the key.
    """

    kind: str
    queries: tuple[str, ...]
    keys: tuple[str, ...]
    allowed: np.ndarray

    def to_dict(self) -> dict[str, Any]:
        return {"kind": self.kind, "queries": self.queries, "keys": self.keys, "allowed": self.allowed.tolist()}


def record_sentence_masks(sentences: Sequence[Sequence[str]], *, kind: str) -> list[WordMask]:
    """Return the self-attention mask of each sentence, padded to the longest; `kind` is `encoder` or `decoder`."""
    masks = _record_masks(sentences, sentences)[kind]
    rows = _pad_sentences(sentences)
    return [WordMask(kind=kind, queries=row, keys=row, allowed=mask) for row, mask in zip(rows, masks, strict=True)]


def record_pair_masks(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> list[list[WordMask]]:
    """Return three masks per sentence pair: source self-attention, target self-attention, cross-attention.

    Raises:
        ValueError: If the numbers of sources and targets differ.
    """
    if len(sources) != len(targets):
        raise ValueError(f"{len(sources)} sources and {len(targets)} targets; pass one target per source")
    masks = _record_masks(sources, targets)
    sides = {
        "encoder": (_pad_sentences(sources), _pad_sentences(sources)),
        "decoder": (_pad_sentences(targets), _pad_sentences(targets)),
        "cross": (_pad_sentences(targets), _pad_sentences(sources)),
    }
    return [
        [
            WordMask(kind=kind, queries=queries[n], keys=keys[n], allowed=masks[kind][n])
            for kind, (queries, keys) in sides.items()
        ]
        for n in range(len(sources))
    ]


def plot_masks(grid: Sequence[Sequence[WordMask]]) -> Figure:
    """Plot one row of panels per row of masks; query words are on the left, key words at the top."""
    longest = max(len(word) for row in grid for mask in row for word in (*mask.queries, *mask.keys))
    size = max(len(side) for row in grid for mask in row for side in (mask.queries, mask.keys))
    edge = max(2.4, min(7.0, 0.42 * size))
    margin = 0.085 * longest + 0.3
    columns = max(map(len, grid))
    shares = [len(mask.keys) for mask in max(grid, key=len)]  # so that cells of all panels have the same size
    width = sum(shares) / size * edge + columns * margin
    figure = new_figure(max(5.0, width), len(grid) * (edge + margin + 0.3) + 0.8)
    panels = figure.subplots(len(grid), columns, squeeze=False, width_ratios=shares)
    for line, row in zip(panels, grid, strict=True):
        for axes, mask in zip(line, row, strict=False):
            _draw_mask(axes, mask)
        for axes in line[len(row) :]:
            axes.set_axis_off()
    handles = [
        Patch(facecolor=ALLOWED_COLOR, edgecolor="#b0b0b0", label="allowed: 0 is added to the score"),
        Patch(facecolor=HIDDEN_COLOR, edgecolor="#b0b0b0", label="masked: −∞ is added to the score"),
    ]
    figure.legend(handles=handles, loc="outside lower center", ncols=2, fontsize=SMALL, frameon=False)
    add_title(figure, "Attention masks: rows are query words, columns are key words", size=MIDDLE + 1)
    return figure


def _draw_mask(axes: Any, mask: WordMask) -> None:
    axes.imshow(mask.allowed, cmap=ListedColormap([HIDDEN_COLOR, ALLOWED_COLOR]), vmin=0, vmax=1)
    n_queries, n_keys = mask.allowed.shape
    axes.set_xticks(range(n_keys), [label_token(word) for word in mask.keys], rotation=90)
    axes.set_yticks(range(n_queries), [label_token(word) for word in mask.queries])
    axes.xaxis.tick_top()
    axes.tick_params(length=0, labelsize=MIDDLE)
    disable_mathtext([*axes.get_xticklabels(), *axes.get_yticklabels()])
    axes.set_xticks(np.arange(0.5, n_keys - 1), minor=True)
    axes.set_yticks(np.arange(0.5, n_queries - 1), minor=True)
    axes.grid(which="minor", color="white", linewidth=1.5)
    axes.tick_params(which="minor", length=0)
    for edge in axes.spines.values():
        edge.set(color="#b0b0b0", linewidth=0.6)
    if max(n_queries, n_keys) <= MAX_LABELED_WORDS:
        for query, key in np.ndindex(mask.allowed.shape):
            allowed = mask.allowed[query, key]
            axes.text(
                key, query, "0" if allowed else "−∞", ha="center", va="center", fontsize=SMALL,
                color="#1f3a56" if allowed else "#8a8a8a",
            )  # fmt: skip
    axes.set_xlabel(DESCRIPTIONS[mask.kind], fontsize=MIDDLE)


@torch.no_grad()
def _record_masks(sources: Sequence[Sequence[str]], targets: Sequence[Sequence[str]]) -> dict[str, np.ndarray]:
    """Return the masks (B, T, S) of each kind in a translator with one token per word."""
    source, source_token_mask = _number_words(sources)
    target, target_token_mask = _number_words(targets)
    stack = StackSpec(d_model=2, n_layers=1, n_heads=1)
    spec = EncoderDecoderSpec(vocab_size=2, max_len=max(source.shape[1], target.shape[1]), encoder=stack, decoder=stack)
    model = EncoderDecoder(spec).eval()
    names = {
        "encoder": "encoder.blocks.0.self_attention.mask",
        "decoder": "decoder.blocks.0.self_attention.mask",
        "cross": "decoder.blocks.0.cross_attention.mask",
    }
    with record(model, patterns=list(names.values())) as activations:
        model(source, target, source_token_mask=source_token_mask, target_token_mask=target_token_mask)
    shapes = {
        "encoder": (source.shape[1],) * 2,
        "decoder": (target.shape[1],) * 2,
        "cross": (target.shape[1], source.shape[1]),
    }
    return {kind: activations[name][:, 0].expand(len(source), *shapes[kind]).numpy() for kind, name in names.items()}


def _number_words(sentences: Sequence[Sequence[str]]) -> tuple[Tensor, Tensor | None]:
    """Return (B, T) ids, whose values do not matter, and the token mask; None without padding."""
    lengths = torch.tensor([len(sentence) for sentence in sentences])
    real = torch.arange(int(lengths.max())) < lengths[:, None]  # (B, T)
    return real.long(), None if real.all() else real


def _pad_sentences(sentences: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    longest = max(map(len, sentences))
    return [(*sentence, *[PAD] * (longest - len(sentence))) for sentence in sentences]
