"""Tokens with similar embeddings: nearest tokens by cosine similarity, and a map of the vocabulary.

The map projects the first tokens of the vocabulary onto the two principal components of their embeddings, by singular
value decomposition. In a trained tokenizer, the first tokens are roughly the most frequent.
"""

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from tercet.checkpoint import TrainedModel, Translator
from tercet.config import UserError, suggest
from tercet.inspect.token_text import label_with_spaces
from tercet.plots.figure import DARK, MIDDLE, PALE, RED, SMALL, add_title, new_figure
from tercet.plots.picture_file import NothingToDraw, disable_mathtext, ignore_missing_glyphs
from tercet.plots.positions import choose_stacks
from tercet.tokens import Tokenizer

MAP_TOKENS = 400  # tokens of the map
DEFAULT_ROWS, NEIGHBORS_PER_ROW = 8, 6  # rows of the table by default, and neighbors per row
MAX_ROWS = 24  # limit for readable rows
CANDIDATES = 1000  # tokens considered for the rows


def plot_neighbors(
    trained_model: TrainedModel, tokens: Sequence[str] | None = None, *, stack: str | None = None
) -> Figure:
    """Plot a table of nearest tokens, and the map.

    Args:
        trained_model: Model with the embeddings.
        tokens: Tokens of the rows, at most 24 (default: 8 words with close neighbors).
        stack: Side of a translator whose vocabulary is plotted, `encoder` or `decoder` (default: `decoder`).

    Raises:
        NothingToDraw: If the vocabulary has a single token.
        UserError: If a token is not in the vocabulary, `tokens` is empty or too long, or the model has no such stack.
    """
    tokenizer, table = embeddings(trained_model, stack)
    texts = tokenizer.tokens(range(tokenizer.vocab_size))
    if len(texts) < 2:
        raise NothingToDraw(f"{trained_model.folder} has a vocabulary of one token, which has no neighbors")
    if tokens is not None and not 1 <= len(tokens) <= MAX_ROWS:
        raise UserError(f"the picture shows 1 to {MAX_ROWS} tokens, got {len(tokens)}; pass 1 to {MAX_ROWS}")
    ids = (
        choose_distinctive_tokens(tokenizer, table)
        if tokens is None
        else [find_token(tokenizer, word) for word in tokens]
    )
    neighbors = nearest_tokens(table, ids, NEIGHBORS_PER_ROW)
    figure = new_figure(14, max(6.0, 0.42 * len(ids) + 1.5))
    side = f", {stack}" if stack else ""
    name = trained_model.card.name or trained_model.folder.name
    add_title(figure, f"{name}: nearest token embeddings{side}")
    left, right = figure.subplots(1, 2, width_ratios=(1, 1.15))
    _draw_table(left, [label_with_spaces(texts[token]) for token in ids], neighbors, texts)
    _draw_map(figure, right, tokenizer, table, ids, texts)
    return figure


def embeddings(trained_model: TrainedModel, stack: str | None = None) -> tuple[Tokenizer, Float[Tensor, "V D"]]:
    """Return the tokenizer of a stack and the embeddings of its vocabulary, without rows that pad the vocabulary.

    Args:
        trained_model: The model.
        stack: Stack of a translator: "encoder" or "decoder" (default: "decoder").

    Raises:
        UserError: If the model has no such stack.
    """
    choose_stacks(trained_model, stack)
    part, tokenizer = trained_model.model.embedding, trained_model.tokenizer
    if isinstance(trained_model, Translator) and stack == "encoder":
        part, tokenizer = trained_model.model.source_embedding, trained_model.source_tokenizer
    return tokenizer, part.weight.detach()[: tokenizer.vocab_size].float().cpu()


def nearest_tokens(table: Float[Tensor, "V D"], ids: Sequence[int], count: int) -> list[list[tuple[int, float]]]:
    """Return the `count` tokens with the largest cosine similarity to each id, without the token itself.

    They are pairs (id, cosine) in descending order of the cosine.
    """
    unit = F.normalize(table, dim=-1)
    cosines = unit[list(ids)] @ unit.T  # (N, V)
    cosines[range(len(ids)), list(ids)] = -torch.inf
    values, neighbor_ids = cosines.topk(min(count, len(table) - 1), dim=-1)
    return [list(zip(*row, strict=True)) for row in zip(neighbor_ids.tolist(), values.tolist(), strict=True)]


def choose_distinctive_tokens(tokenizer: Tokenizer, table: Float[Tensor, "V D"]) -> list[int]:
    """Choose words with close neighbors among the first words of the vocabulary; none is a neighbor of another.

    Training moves the embeddings of all rare tokens in the same direction, so that these are close to each other
    without being similar in meaning. Therefore only the quarter of the words that is farthest from the mean of the
    vocabulary is considered.
    """
    unit = F.normalize(table, dim=-1)
    words = torch.tensor(first_tokens(tokenizer, CANDIDATES))
    distances = (unit[words] - unit.mean(0)).norm(dim=-1)
    words = words[distances >= distances.quantile(0.75)] if len(words) > 4 * DEFAULT_ROWS else words
    cosines = unit[words] @ unit.T  # (N, V)
    cosines[range(len(words)), words] = -torch.inf
    near = cosines.topk(min(NEIGHBORS_PER_ROW, len(table) - 1), dim=-1)
    chosen: list[int] = []
    excluded = set[int]()
    for place in near.values.mean(-1).argsort(descending=True, stable=True).tolist():
        if len(chosen) < DEFAULT_ROWS and int(words[place]) not in excluded:
            chosen.append(int(words[place]))
            excluded |= {chosen[-1], *near.indices[place].tolist()}
    return chosen


def find_token(tokenizer: Tokenizer, word: str) -> int:
    """Return the id of a single token, as encoded in a text or as named in the vocabulary.

    Raises:
        UserError: If the word is not a single token. The message contains the tokens that it is encoded as.
    """
    texts = tokenizer.tokens(range(tokenizer.vocab_size))
    try:
        ids = tokenizer.encode(word)
    except UserError:
        ids = []
    if len(ids) == 1 and ids[0] != tokenizer.unk_id:
        return ids[0]
    if word in texts:
        return texts.index(word)
    is_readable = len(ids) > 1 and tokenizer.unk_id not in ids
    read_as = f"; it is encoded as {' + '.join(map(label_with_spaces, tokenizer.tokens(ids)))}" if is_readable else ""
    names = {label_with_spaces(text) for text in texts}
    hint = suggest(word, names) if not is_readable else ""
    raise UserError(
        f"--token {word!r} is not a token of the vocabulary{read_as}{hint if len(hint) < 200 else ''}; pass one token"
    )


def first_tokens(tokenizer: Tokenizer, count: int) -> list[int]:
    """Return at most `count` first tokens of the vocabulary that represent text: words, if there are enough.

    A word has two or more characters and only letters.
    """
    texts = tokenizer.tokens(range(tokenizer.vocab_size))
    real = [token for token in range(len(texts)) if token not in tokenizer.special_ids and texts[token]]
    words = [
        token for token in real if len(texts[token].strip().strip("#")) > 1 and texts[token].strip("# ▁").isalpha()
    ]
    return (words if len(words) >= min(count, MAP_TOKENS) // 4 else real or list(range(len(texts))))[:count]


def components(rows: Float[Tensor, "N D"]) -> tuple[Float[Tensor, "N 2"], list[float]]:
    """Project rows onto their two principal components; also return the components' shares of variance.

    The sign of a component is chosen so that its element with the largest magnitude is positive.
    """
    centered = rows.double() - rows.double().mean(0)
    _, strengths, directions = torch.linalg.svd(centered, full_matrices=False)
    wide = directions[:2]
    signs = wide.gather(1, wide.abs().argmax(1, keepdim=True)).sign()
    shares = strengths.square() / strengths.square().sum().clamp(min=1e-300)
    return (centered @ (wide * signs).T).float(), shares[:2].tolist()


def _draw_table(axes: Axes, names: list[str], neighbors: list[list[tuple[int, float]]], texts: list[str]) -> None:
    cosines = torch.tensor([[cosine for _, cosine in row] for row in neighbors])
    axes.imshow(cosines.numpy(), cmap="Blues", vmin=0, vmax=1.7, aspect="auto")  # text stays readable
    for row, line in enumerate(neighbors):
        for column, (token, cosine) in enumerate(line):
            name = _shorten(label_with_spaces(texts[token]))
            size = MIDDLE * min(1.0, 11 / len(name))
            disable_mathtext([axes.text(column, row - 0.12, name, ha="center", va="center", fontsize=size)])
            axes.text(column, row + 0.27, f"{cosine:.2f}", ha="center", va="center", fontsize=7, color="#222222")
    axes.set_yticks(range(len(names)), [_shorten(name) for name in names], fontsize=10, fontweight="bold")
    disable_mathtext(axes.get_yticklabels())
    axes.set_xticks(range(cosines.shape[1]), [f"{number + 1}." for number in range(cosines.shape[1])])
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)
    axes.set_xticks([place - 0.5 for place in range(1, cosines.shape[1])], minor=True)
    axes.set_yticks([place - 0.5 for place in range(1, len(names))], minor=True)
    axes.grid(which="minor", color="white", linewidth=2)
    axes.tick_params(which="minor", length=0)
    axes.xaxis.tick_top()
    axes.set_title("nearest tokens, with the cosine similarity", fontsize=10)


def _draw_map(
    picture: Figure, axes: Axes, tokenizer: Tokenizer, table: Tensor, ids: Sequence[int], texts: list[str]
) -> None:
    map_ids = list(dict.fromkeys([*ids, *first_tokens(tokenizer, MAP_TOKENS)]))
    points, shares = components(table[map_ids])
    x, y = (points[:, 0].tolist(), points[:, 1].tolist() if points.shape[1] > 1 else [0.0] * len(points))
    axes.scatter(x, y, s=5, color=PALE, linewidths=0)
    axes.scatter(x[: len(ids)], y[: len(ids)], s=16, color=RED, linewidths=0, label="tokens of the table")
    axes.margins(0.06)
    labels = [f"component {number} ({share:.1%} of the variance)" for number, share in enumerate([*shares, 0.0][:2], 1)]
    axes.set(xlabel=labels[0], ylabel=labels[1], xticks=[], yticks=[])
    axes.set_title(
        f"map of {len(map_ids)} of {tokenizer.vocab_size:,} tokens; overlapping labels are left out", fontsize=10
    )
    axes.legend(fontsize=SMALL, loc="best")
    with ignore_missing_glyphs():
        picture.draw_without_rendering()  # positions are known after the layout
    free = _LabelSpace(picture, axes)
    for number, token in enumerate(map_ids):
        is_row = number < len(ids)
        label, size = _shorten(label_with_spaces(texts[token])), MIDDLE if is_row else 7
        if (at := free.place(x[number], y[number], label, size, far=is_row)) is not None:
            words = axes.annotate(
                label, (x[number], y[number]), xytext=at, textcoords="offset points", va="center",
                arrowprops={"arrowstyle": "-", "color": RED, "linewidth": 0.6} if is_row else None,
                fontsize=size, color=RED if is_row else DARK, fontweight="bold" if is_row else "normal",
            )  # fmt: skip
            disable_mathtext([words])


class _LabelSpace:
    """The area of the map that labels cover, in points from its corner."""

    def __init__(self, picture: Figure, axes: Axes) -> None:
        self.axes, self.scale = axes, 72 / picture.dpi
        (left, bottom), (right, top) = axes.bbox.get_points() * self.scale
        self.bounds = left, bottom, right, top
        self.boxes: list[tuple[float, float, float, float]] = []

    def place(self, x: float, y: float, label: str, size: float, *, far: bool) -> tuple[float, float] | None:
        """Return an offset of the label from (x, y) without overlap; None if there is none.

        With `far`, the search covers a larger area, and a label that fits nowhere is placed next to its point.
        """
        left, bottom = self.axes.transData.transform((x, y)) * self.scale
        width, height = 0.68 * size * len(label), 1.25 * size
        offsets = [(3.0, 0.0), (-3.0 - width, 0.0), (-width / 2, height * 0.8), (-width / 2, -height * 0.8)]
        for ring in range(1, 16) if far else ():
            angles = [math.tau * turn / 16 for turn in range(16)]
            reach = 1.2 * ring * height
            offsets += [(reach * math.cos(turn) - width / 2, reach * math.sin(turn)) for turn in angles]
        for dx, dy in offsets:
            box = (left + dx, bottom + dy - height / 2, left + dx + width, bottom + dy + height / 2)
            if self._free(box):
                self.boxes.append(box)
                return dx, dy
        return offsets[0] if far else None

    def _free(self, box: tuple[float, float, float, float]) -> bool:
        low_x, low_y, high_x, high_y = self.bounds
        if box[0] < low_x or box[1] < low_y or box[2] > high_x or box[3] > high_y:
            return False
        return not any(
            box[0] < existing[2] and existing[0] < box[2] and box[1] < existing[3] and existing[1] < box[3]
            for existing in self.boxes
        )


def _shorten(text: str) -> str:
    return text if len(text) <= 14 else f"{text[:13]}…"
