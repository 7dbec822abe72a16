"""Where a translator looks while it writes: the cross-attention of finished translations, as alignments and a picture.

A row of the picture is a token of the translation, a column one of the source, and its colour the share of the look
that went there, the mean over the heads of one layer; a row sums to one. The layer is the last but one, whose look is
nearest to what people call an alignment (Garg et al. 2019); of two layers that is the first.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from tercet.config import UserError
from tercet.generation import Translation, cross_attention, word_alignment, words_of
from tercet.generation.protocol import device_of
from tercet.inspect import pictures
from tercet.inspect.pictures import as_written, shown
from tercet.models import EncoderDecoder
from tercet.tokens import Tokenizer

FLAG = "--attention"
DPI = 130
MOST_SENTENCES = 8
END = "(end)"


@dataclass(frozen=True, kw_only=True)
class Look:
    """What a translator looked at in one sentence.

    Attributes:
        source: the text of each token, and the end's.
        opening: how many of the source's tokens stand before its text.
        target: the same of the translation.
        ended: the translation's last token is its end.
        weights: of each target token on each source token, for all heads of one layer.
        layer: which, counted from 0; the same in each model of an ensemble, whose heads stand side by side.
    """

    source: tuple[str, ...]
    target: tuple[str, ...]
    ended: bool
    opening: int = 0
    weights: Float[Tensor, "H T S"]
    layer: int

    @property
    def words(self) -> tuple[list[range], list[range]]:
        """Which tokens make up each word of the source, and each of the translation; what frames them is no word."""
        words = words_of(self.source[self.opening : -1])
        moved = [range(word.start + self.opening, word.stop + self.opening) for word in words]
        return moved, words_of(self.target[:-1] if self.ended else self.target)

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """The word of the source that each word of the translation looks at most, as (source, target) from 0."""
        source_words, target_words = self.words
        if not source_words or not target_words:
            return []
        found = word_alignment(self.weights[None], source_words, target_words, layer=0)
        return sorted((source, target) for target, source in enumerate(found))

    @property
    def pharaoh(self) -> str:
        """The alignment as tools of the field write it: `0-0 1-2`."""
        return " ".join(f"{source}-{target}" for source, target in self.alignment)


def look(
    models: Sequence[EncoderDecoder],
    tokenizer: Tokenizer,
    translation: Translation,
    *,
    source_tokenizer: Tokenizer | None = None,
    prefix: str = "",
) -> Look:
    """Read a translation again and note the cross-attention, which is what it was while it was written.

    Args:
        models: the one that wrote it, or the members of an ensemble.
        prefix: how the translation was made to begin.

    Raises:
        UserError: for an ensemble of models of unequal depth.
    """
    of_source = tokenizer if source_tokenizer is None else source_tokenizer
    if not translation.ids or of_source.eos_id is None or tokenizer.bos_id is None:  # an empty line was not asked
        return Look(source=(), target=(), ended=False, weights=torch.zeros(1, 0, 0), layer=0)
    depths = sorted({len(model.decoder.blocks) for model in models})
    if len(depths) > 1:
        raise UserError(f"models of {depths} layers have no layer in common to look at; ask one of them alone")
    layer = max(depths[0] - 2, 0)
    room = min(model.max_len for model in models)
    source = of_source.frame(of_source.encode(translation.source), max_len=room)
    target = [*tokenizer.encode(prefix), *translation.ids]
    device = device_of(models[0])
    read = torch.tensor([[tokenizer.bos_id, *target[:-1]]], device=device)
    weights = [cross_attention(model, torch.tensor([source], device=device), read)[layer, 0] for model in models]
    ended = translation.finish == "eos"
    written = tokenizer.tokens(target[:-1] if ended else target)
    return Look(
        source=(*of_source.tokens(source[:-1]), END),
        target=(*written, *([END] if ended else [])),
        ended=ended,
        opening=len(of_source.opening),
        weights=torch.cat(weights).float().cpu(),
        layer=layer,
    )


def check_picture(path: Path) -> None:
    """UserError where no picture can be drawn there: told before the translating."""
    pictures.check_picture(path, FLAG)


def draw_attention(looks: Sequence[Look], path: Path) -> None:
    """Draw a panel for each sentence, one below the other.

    Raises:
        UserError: for more sentences than can be read in one picture, or none, or a path that cannot be written.
    """
    check_picture(path)
    looks = [one for one in looks if one.target]
    if not 1 <= len(looks) <= MOST_SENTENCES:
        raise UserError(
            f"--attention draws 1 to {MOST_SENTENCES} sentences, and there are {len(looks)}; give it a few of them"
        )
    from tercet.inspect.plots.figure import add_title, sheet

    widths = [max(4.5, 0.34 * len(one.source) + 2.6) for one in looks]
    heights = [max(1.6, 0.26 * len(one.target) + 1.7) for one in looks]
    figure = sheet(max(widths), sum(heights) + 0.5)
    panels = figure.subplots(len(looks), 1, squeeze=False, height_ratios=heights)[:, 0]
    images = [_draw(panel, one) for panel, one in zip(panels, looks, strict=True)]
    add_title(figure, "Where the translator looks as it writes each token", size=11)
    bar = figure.colorbar(images[0], ax=list(panels), fraction=0.04, shrink=min(1.0, 3 / sum(heights)))
    heads = f"mean of {len(looks[0].weights)} heads of decoder block {looks[0].layer}"
    bar.set_label(f"share of the look\n({heads})", fontsize=8)
    bar.ax.tick_params(labelsize=7)
    pictures.save(figure, path, flag=FLAG, dpi=DPI)


def _draw(panel: Any, one: Look) -> Any:
    weights = one.weights.mean(0).numpy()  # (T, S)
    image = panel.imshow(weights, cmap="Blues", vmin=0, vmax=1, aspect="auto")
    panel.set_xticks(range(len(one.source)), [shown(piece) for piece in one.source], rotation=90)
    panel.set_yticks(range(len(one.target)), [shown(piece) for piece in one.target])
    panel.tick_params(length=0, labelsize=8)
    as_written([*panel.get_xticklabels(), *panel.get_yticklabels()])
    panel.set_xlabel("source: what is read", fontsize=9)
    panel.set_ylabel("translation:\nwhat is written", fontsize=9)
    for words, line in zip(one.words, (panel.axvline, panel.axhline), strict=True):
        for word in words:
            line(word.stop - 0.5, color="#8a8a8a", linewidth=0.7)  # between words; tokens of one stand together
    return image
