"""The tokens of a vocabulary on which a model loses most, summed over their occurrences or on average."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int

from tercet.evaluate.errors.selection import ErrorSelection
from tercet.inspect.token_text import label_token, label_with_spaces
from tercet.messages import one_line
from tercet.notebook import Table
from tercet.tokens import Tokenizer

MIN_OCCURRENCES = 3  # of a token in the list of the highest means, which rare accidents would fill otherwise
BEFORE, AFTER = 12, 6  # tokens of context
CONTINUED = "##"  # start of a WordPiece token within a word


@dataclass(frozen=True, kw_only=True)
class WorstToken:
    """A token of the vocabulary and the losses of its occurrences.

    Attributes:
        token: Text of the token, with its space.
        id: Id of the token.
        count: Number of scored occurrences.
        total_loss, mean_loss: Sum and mean of their losses, in nats.
        train_count: Number of occurrences in the training data; None if it was not counted.
        highest_loss: Loss of the worst occurrence.
        before, after: Text around the worst occurrence.
        predicted: Token that the model considers most likely there; None if it is not known.
    """

    token: str
    id: int
    count: int
    total_loss: float
    mean_loss: float
    train_count: int | None
    highest_loss: float
    before: str
    after: str
    predicted: str | None = None


@dataclass(frozen=True, kw_only=True)
class ScoredTokens:
    """Tokens with their losses.

    Attributes:
        ids: Ids of all texts, concatenated.
        losses: -ln p of each, or NaN if it is not scored.
        starts: Start of each text, and the end of the last one.
        tokenizer: Tokenizer of the ids.
        predicted: Most likely id instead of each scored one; None if it is not known.
        train_counts: (V,) number of occurrences of each id in the training data; None if they are not counted.
    """

    ids: Int[np.ndarray, " N"]
    losses: Float[np.ndarray, " N"]
    starts: Int[np.ndarray, " D+1"]
    tokenizer: Tokenizer
    predicted: Int[np.ndarray, " N"] | None = None
    train_counts: Int[np.ndarray, " V"] | None = None

    @property
    def scored(self) -> Bool[np.ndarray, " N"]:
        return ~np.isnan(self.losses)

    @property
    def lengths(self) -> Int[np.ndarray, " D"]:
        """Number of tokens of each text, without special tokens."""
        is_special = np.isin(self.ids, sorted(self.tokenizer.special_ids))
        marked = np.append(0, np.cumsum(~is_special))
        return np.diff(marked[self.starts])

    def is_rare(self, rare: int) -> Bool[np.ndarray, " N"]:
        """Return which tokens occur at most `rare` times in the training data."""
        assert self.train_counts is not None
        return (self.train_counts <= rare)[self.ids]


def worst_tokens(
    tokens: ScoredTokens, used: Bool[np.ndarray, " N"], selection: ErrorSelection
) -> tuple[tuple[WorstToken, ...], tuple[WorstToken, ...]]:
    """Return the tokens with the highest total losses, and those with the highest mean losses.

    The second list contains only tokens with at least `MIN_OCCURRENCES` occurrences, if there are any.

    Args:
        tokens: Tokens with their losses.
        used: Occurrences to use, all of which are scored.
        selection: Length of the lists.
    """
    ids = np.asarray(tokens.ids)[used].astype(np.int64)
    size = tokens.tokenizer.vocab_size
    counts = np.bincount(ids, minlength=size)
    totals = np.bincount(ids, weights=tokens.losses[used].astype(np.float64), minlength=size)
    means = totals / np.maximum(counts, 1)
    enough = counts >= min(MIN_OCCURRENCES, int(counts.max(initial=0)))
    by_total = selection.rank(np.where(counts > 0, totals, -np.inf))
    by_mean = selection.rank(np.where(enough & (counts > 0), means, -np.inf))
    positions, described = np.flatnonzero(used), dict[int, WorstToken]()
    for token in dict.fromkeys([*by_total.tolist(), *by_mean.tolist()]):
        places = positions[ids == token]
        worst = int(places[tokens.losses[places].argmax()])
        before, after = _context(tokens, worst)
        described[token] = WorstToken(
            token=token_text(tokens.tokenizer, token),
            id=token,
            count=int(counts[token]),
            total_loss=float(totals[token]),
            mean_loss=float(means[token]),
            train_count=None if tokens.train_counts is None else int(tokens.train_counts[token]),
            highest_loss=float(tokens.losses[worst]),
            before=before,
            after=after,
            predicted=None if tokens.predicted is None else token_text(tokens.tokenizer, int(tokens.predicted[worst])),
        )
    first, second = (tuple(described[token] for token in order.tolist()) for order in (by_total, by_mean))
    return first, second


def token_text(tokenizer: Tokenizer, token: int) -> str:
    """Return the readable text of a token."""
    return tokenizer.tokens([token])[0]


def spaced_tokens(tokenizer: Tokenizer, ids: Sequence[int]) -> tuple[str, ...]:
    """Return the readable text of each token, with the space before it; together they are a readable text."""
    names = tokenizer.tokens(ids)
    if tokenizer.kind != "wordpiece" and not any(name.startswith(CONTINUED) for name in names):
        return tuple(names)
    return tuple(name.removeprefix(CONTINUED) if name.startswith(CONTINUED) else f" {name}" for name in names)


def _context(tokens: ScoredTokens, place: int) -> tuple[str, str]:
    """Return the text before and after a token within its document."""
    text = int(np.searchsorted(tokens.starts, place, side="right")) - 1
    start, end = tokens.starts[text : text + 2].tolist()
    tokenizer, ids = tokens.tokenizer, tokens.ids[place : min(end, place + 1 + AFTER)].tolist()
    before = tokenizer.decode(tokens.ids[max(start, place - BEFORE) : place].tolist())
    # Decoding removes the space before the first token.
    spaces = [name[: len(name) - len(name.lstrip(" "))] for name in spaced_tokens(tokenizer, ids[:2])]
    after = tokenizer.decode(ids[1:]).lstrip(" ")
    return before + (spaces[0] if before else ""), "".join(spaces[1:]) + after


def token_table(tokens: Sequence[WorstToken], *, title: str) -> Table:
    """Return a table of tokens, with `title` as the heading of the first column."""
    counted, guessed = (
        any(getattr(token, name) is not None for token in tokens) for name in ("train_count", "predicted")
    )
    header = (title, "nats", "count", "nats per token", *(["in training"] if counted else []))
    rows = [
        (
            label_with_spaces(token.token),
            f"{token.total_loss:,.1f}",
            f"{token.count:,}",
            f"{token.mean_loss:.3f}",
            *([f"{token.train_count:,}"] if counted else []),
            *([label_with_spaces(token.predicted or "")] if guessed else []),
            worst_place(token),
        )
        for token in tokens
    ]
    last = len(header) + guessed
    header = (*header, *(["predicted"] if guessed else []), "worst place")
    return Table(header=header, rows=rows, left=(0, *range(last - guessed, last + 1)), flush=True)


def worst_place(token: WorstToken, *, width: int = 48) -> str:
    """Return the worst occurrence in brackets, with the end of the text before it and the beginning of that after it.

    Args:
        token: The token.
        width: Maximum number of characters before it; half as many after it.
    """
    before, after = token.before[-width:], token.after[: width // 2]
    return one_line(f"{before}[{label_token(token.token)}]{after}")
