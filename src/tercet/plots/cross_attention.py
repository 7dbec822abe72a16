"""The cross-attention of finished translations, one panel per sentence.

Rows are target tokens, columns are source tokens, and the color is the attention weight, averaged over the heads of one
layer. Rows sum to one.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tercet.config import UserError
from tercet.inspect.cross_attention import CrossAttentionMap
from tercet.inspect.token_text import label_token
from tercet.plots.figure import add_title, new_figure
from tercet.plots.picture_file import check_picture, disable_mathtext, save

FLAG = "--attention"
DPI = 130
MAX_SENTENCES = 8


def draw_cross_attention(maps: Sequence[CrossAttentionMap], path: Path) -> None:
    """Write a picture with one panel per sentence, one below the other. Empty translations are left out.

    Raises:
        UserError: If there are no sentences or too many for one picture, or the path cannot be written.
    """
    check_picture(path, FLAG)
    if maps and not any(sentence.target for sentence in maps):
        raise UserError(f"{FLAG} has nothing to draw: all translations are empty; pass other sentences")
    maps = [sentence for sentence in maps if sentence.target]
    if not 1 <= len(maps) <= MAX_SENTENCES:
        raise UserError(f"--attention draws 1 to {MAX_SENTENCES} sentences, got {len(maps)}; pass 1 to {MAX_SENTENCES}")
    widths = [max(4.5, 0.34 * len(sentence.source) + 2.6) for sentence in maps]
    heights = [max(1.6, 0.26 * len(sentence.target) + 1.7) for sentence in maps]
    figure = new_figure(max(widths), sum(heights) + 0.5)
    panels = figure.subplots(len(maps), 1, squeeze=False, height_ratios=heights)[:, 0]
    images = [_draw_panel(panel, sentence) for panel, sentence in zip(panels, maps, strict=True)]
    add_title(figure, "Cross-attention of each target token", size=11)
    bar = figure.colorbar(images[0], ax=list(panels), fraction=0.04, shrink=min(1.0, 3 / sum(heights)))
    heads = f"mean of {len(maps[0].weights)} heads of decoder block {maps[0].layer}"
    bar.set_label(f"attention weight\n({heads})", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    save(figure, path, flag=FLAG, dpi=DPI)


def _draw_panel(panel: Any, sentence: CrossAttentionMap) -> Any:
    weights = sentence.weights.mean(0).numpy()  # (T, S)
    image = panel.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    panel.set_xticks(range(len(sentence.source)), [label_token(token) for token in sentence.source], rotation=90)
    panel.set_yticks(range(len(sentence.target)), [label_token(token) for token in sentence.target])
    panel.tick_params(length=0, labelsize=8)
    disable_mathtext([*panel.get_xticklabels(), *panel.get_yticklabels()])
    panel.set_xlabel("source tokens", fontsize=9)
    panel.set_ylabel("target tokens", fontsize=9)
    for words, line in zip(sentence.words, (panel.axvline, panel.axhline), strict=True):
        for word in words:
            line(word.stop - 0.5, color="#8a8a8a", linewidth=0.7)  # between words
    return image
