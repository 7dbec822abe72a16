"""Worst texts and tokens of models that are scored by token: language models, masked models and chat models.

A long document is listed in passages of nearly equal length. Each scored token is in one passage, so the losses of all
passages sum to the loss that `tercet evaluate` reports, times its number of tokens.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Int

from tercet.config import UserError
from tercet.evaluate.errors.selection import ErrorSelection, Ranking, count_marked
from tercet.evaluate.errors.token_errors import (
    ScoredTokens,
    WorstToken,
    spaced_tokens,
    token_table,
    token_text,
    worst_tokens,
)
from tercet.evaluate.score_summary import ScoreSummary
from tercet.messages import counted, one_line
from tercet.notebook import Table, View

PASSAGE = 128  # maximum tokens of a passage
MAX_SHOWN = 160  # characters of a text in a table


@dataclass(frozen=True, kw_only=True)
class WorstText:
    """A text, or a passage of a long one, and the losses of its tokens.

    Attributes:
        index: Number of the text in the data, from 0.
        start: Number of tokens of the text before the passage.
        text: Text of the passage.
        tokens: Its tokens, with their spaces.
        losses: Loss of each token in nats; None for tokens that are not scored.
        predicted: Most likely token instead of each scored one, and None elsewhere; None if it is not known.
        scored: Number of scored tokens.
        total_loss, mean_loss: Sum and mean of the losses of the scored tokens.
    """

    index: int
    start: int
    text: str
    tokens: tuple[str, ...]
    losses: tuple[float | None, ...]
    predicted: tuple[str | None, ...] | None
    scored: int
    total_loss: float
    mean_loss: float


@dataclass(frozen=True, kw_only=True, repr=False)
class TextErrors(ScoreSummary):
    """Worst texts and tokens of a model.

    Attributes:
        mean_loss: Nats per scored token of all data, as `tercet evaluate` reports it.
        tokens: Number of scored tokens of all data.
        texts: Number of texts.
        selected: Number of passages that the filters select.
        rank_by: Order of `worst`.
        worst: Worst passages.
        tokens_by_total, tokens_by_mean: Tokens with the highest total and mean loss in the selected passages.
    """

    mean_loss: float
    tokens: int
    texts: int
    selected: int
    rank_by: Ranking
    worst: tuple[WorstText, ...]
    tokens_by_total: tuple[WorstToken, ...]
    tokens_by_mean: tuple[WorstToken, ...]

    def view(self) -> View:
        """Return the tables of tokens and texts."""
        rows = [
            [
                f"{text.index:,}", f"{text.start:,}", f"{text.mean_loss:.3f}", f"{text.total_loss:,.1f}",
                f"{text.scored:,}", excerpt(text),
            ]
            for text in self.worst
        ]  # fmt: skip
        header = "text", "from token", "nats per token", "nats", "tokens", "passage around its worst token"
        facts = (
            f"{self.mean_loss:.4f} nats per token over {self.tokens:,} tokens of "
            f"{counted(self.texts, 'text', 'texts')}; {counted(self.selected, 'passage', 'passages')} selected"
        )
        return View((
            token_table(self.tokens_by_total, title="highest total loss"), "",
            token_table(self.tokens_by_mean, title="highest mean loss"), "",
            Table(header=header, rows=rows, left=(5,), flush=True), "",
            facts,
        ))  # fmt: skip


def excerpt(text: WorstText) -> str:
    """Return the part of a passage around its worst token, which is in brackets."""
    worst = max(range(len(text.losses)), key=lambda place: -1.0 if (loss := text.losses[place]) is None else loss)
    before, after = "".join(text.tokens[max(0, worst - 12) : worst]), "".join(text.tokens[worst + 1 : worst + 25])
    shown = f"{before}[{text.tokens[worst]}]{after}"
    line = one_line(shown)
    return line if len(line) <= MAX_SHOWN else f"{line[:MAX_SHOWN]}..."


def find_text_errors(tokens: ScoredTokens, selection: ErrorSelection) -> TextErrors:
    """Return the worst texts and tokens.

    Args:
        tokens: Tokens of all texts with their losses.
        selection: Errors to list.

    Raises:
        UserError: If no token is scored, or no text matches the selection.
    """
    scored = tokens.scored
    if not scored.any():
        raise UserError("no token is scored; pass more text")
    texts, starts = _cut_passages(tokens.starts)
    n_scored = count_marked(scored, starts)
    rare = None if selection.rare is None else scored & tokens.is_rare(selection.rare)
    selected = selection.select(tokens.lengths[texts], None if rare is None else count_marked(rare, starts))
    selected &= n_scored > 0
    passage = np.repeat(np.arange(len(texts)), np.diff(starts))
    totals = np.bincount(passage[scored], weights=tokens.losses[scored].astype(np.float64), minlength=len(texts))
    means = totals / np.maximum(n_scored, 1)
    order = selection.rank(np.where(selected, totals if selection.rank_by == "total" else means, -np.inf))
    used = (scored if rare is None else rare) & selected[passage]
    by_total, by_mean = worst_tokens(tokens, used, selection)
    return TextErrors(
        mean_loss=float(totals.sum() / scored.sum()),
        tokens=int(scored.sum()),
        texts=len(tokens.starts) - 1,
        selected=int(selected.sum()),
        rank_by=selection.rank_by,
        worst=tuple(
            _describe(
                tokens, int(texts[number]), range(*starts[number : number + 2].tolist()),
                total=float(totals[number]), scored=int(n_scored[number]),
            )
            for number in order.tolist()
        ),
        tokens_by_total=by_total,
        tokens_by_mean=by_mean,
    )  # fmt: skip


def _cut_passages(starts: Int[np.ndarray, " D+1"]) -> tuple[Int[np.ndarray, " P"], Int[np.ndarray, " P+1"]]:
    """Return the text of each passage, and the start of each passage and the end of the last one."""
    lengths = np.diff(starts)
    parts = np.maximum(1, -(-lengths // PASSAGE))
    texts = np.repeat(np.arange(len(lengths)), parts)
    part = np.arange(len(texts)) - np.repeat(np.cumsum(parts) - parts, parts)
    return texts, np.append(starts[texts] + part * lengths[texts] // parts[texts], starts[-1])


def _describe(tokens: ScoredTokens, text: int, places: range, *, total: float, scored: int) -> WorstText:
    ids, losses = tokens.ids[places.start : places.stop].tolist(), tokens.losses[places.start : places.stop].tolist()
    predicted = None
    if tokens.predicted is not None:
        predicted = tuple(
            None if token < 0 else token_text(tokens.tokenizer, token)
            for token in tokens.predicted[places.start : places.stop].tolist()
        )
    return WorstText(
        index=text,
        start=places.start - int(tokens.starts[text]),
        text=tokens.tokenizer.decode(ids),
        tokens=spaced_tokens(tokens.tokenizer, ids),
        losses=tuple(None if np.isnan(loss) else loss for loss in losses),
        predicted=predicted,
        scored=scored,
        total_loss=total,
        mean_loss=total / scored,
    )
