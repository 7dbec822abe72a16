"""Worst sentences of a translator, by the loss of their references or by the chrF of its translations."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from tercet.checkpoint import Translator
from tercet.evaluate.errors.selection import ErrorSelection, Ranking, count_marked
from tercet.evaluate.errors.token_errors import ScoredTokens, WorstToken, spaced_tokens, token_table, worst_tokens
from tercet.evaluate.pairs import TargetLogprobs, score_targets
from tercet.evaluate.score_summary import ScoreSummary
from tercet.evaluate.translation import sentence_chrf
from tercet.generation import Translation, translate
from tercet.inspect.cross_attention import CrossAttentionMap, read_cross_attention
from tercet.messages import one_line, shorten
from tercet.notebook import Table, View

MAX_SHOWN = 200  # characters of a sentence in a table


@dataclass(frozen=True, kw_only=True)
class WorstPair:
    """A sentence pair, the losses of the reference, and the translation of the model.

    Attributes:
        index: Number of the pair in the data, from 0.
        source, reference: The pair.
        tokens: Tokens of the reference, with the end token unless the reference was truncated.
        losses: Loss of each token, in nats.
        total_loss, mean_loss: Sum and mean of the losses.
        alignment: Word alignment of source and reference by cross-attention, as `0-0 1-2` (Pharaoh format).
        truncated: True if a side exceeds the maximum length of the model, so that its end was not read.
        translation: The model's translation, by a beam search with the default settings.
        chrf: chrF of the translation, 0 to 100.
        words: For each word of the reference, the source word aligned with it, the word, and the sum of its losses.
    """

    index: int
    source: str
    reference: str
    tokens: tuple[str, ...]
    losses: tuple[float, ...]
    total_loss: float
    mean_loss: float
    alignment: str
    truncated: bool
    translation: str
    chrf: float
    words: tuple[tuple[str, str, float], ...]


@dataclass(frozen=True, kw_only=True, repr=False)
class PairErrors(ScoreSummary):
    """Worst sentences and target tokens of a translator.

    Attributes:
        mean_loss: Nats per token of all references, as `tercet evaluate` reports it.
        tokens: Number of these tokens.
        pairs: Number of sentence pairs.
        selected: Number of pairs that the filters select.
        rank_by: Order of `worst`.
        worst: Worst pairs.
        tokens_by_total, tokens_by_mean: Tokens with the highest total and mean loss in the selected references.
    """

    mean_loss: float
    tokens: int
    pairs: int
    selected: int
    rank_by: Ranking
    worst: tuple[WorstPair, ...]
    tokens_by_total: tuple[WorstToken, ...]
    tokens_by_mean: tuple[WorstToken, ...]

    def view(self) -> View:
        """Return the tables of tokens, and a small table for each pair."""
        parts = list[Table | str]()
        for pair in self.worst:
            title = (
                f"pair {pair.index:,}: {pair.mean_loss:.3f} nats per token, {pair.total_loss:,.1f} nats, "
                f"chrF {pair.chrf:.1f}"
            )
            sides = {"source": pair.source, "reference": pair.reference, "translation": pair.translation}
            rows = [(name, shorten(one_line(text), MAX_SHOWN)) for name, text in sides.items()]
            parts += [title, Table(rows=[*rows, ("worst words", describe_words(pair))], left=(0, 1)), ""]
        facts = f"{self.mean_loss:.4f} nats per token over {self.tokens:,} tokens of {self.pairs:,} references; "
        return View((
            token_table(self.tokens_by_total, title="highest total loss"), "",
            token_table(self.tokens_by_mean, title="highest mean loss"), "",
            *parts,
            f"{facts}{self.selected:,} selected",
        ))  # fmt: skip


def describe_words(pair: WorstPair, count: int = 5) -> str:
    """Return the worst words of a reference with their losses and the source words aligned with them."""
    ranked = sorted(pair.words, key=lambda item: -item[2])[:count]
    return ", ".join(f"{one_line(target)} {loss:.2f} ({one_line(source)})" for source, target, loss in ranked)


def find_pair_errors(
    translator: Translator,
    pairs: Sequence[tuple[str, str]],
    selection: ErrorSelection,
    *,
    train_counts: np.ndarray | None,
    batch_tokens: int,
) -> PairErrors:
    """Return the worst sentences and target tokens of a translator.

    Args:
        translator: The translation model.
        pairs: Pairs of source and reference.
        selection: Errors to list.
        train_counts: (V,) number of occurrences of each target token in the training data, or None.
        batch_tokens: Maximum number of tokens per batch, including padding.

    Raises:
        UserError: If no pair matches the selection, or as in `score_pairs`.
    """
    model, tokenizer = translator.model, translator.tokenizer
    scored = score_targets(
        model, tokenizer, pairs, source_tokenizer=translator.source_tokenizer, batch_tokens=batch_tokens
    )
    starts = np.cumsum([0, *map(len, scored.targets)])
    tokens = ScoredTokens(
        ids=np.concatenate([np.array(target) for target in scored.targets]),
        losses=np.concatenate([-logprobs.numpy() for logprobs in scored.logprobs]),
        starts=starts,
        tokenizer=tokenizer,
        train_counts=train_counts,
    )
    rare = None if selection.rare is None else tokens.is_rare(selection.rare)
    selected = selection.select(tokens.lengths, None if rare is None else count_marked(rare, starts))
    pair_numbers = np.repeat(np.arange(len(pairs)), np.diff(starts))
    totals = np.bincount(pair_numbers, weights=tokens.losses.astype(np.float64), minlength=len(pairs))
    means = totals / np.diff(starts)
    badness = totals if selection.rank_by == "total" else means
    translations = dict[int, str]()
    if selection.rank_by == "chrf":
        translations = _translate(translator, pairs, np.flatnonzero(selected).tolist(), batch_tokens)
        badness = _negative_chrf(translations, pairs)
    order = selection.rank(np.where(selected, badness, -np.inf)).tolist()
    translations = translations or _translate(translator, pairs, order, batch_tokens)
    used = selected[pair_numbers] if rare is None else selected[pair_numbers] & rare
    by_total, by_mean = worst_tokens(tokens, used, selection)
    return PairErrors(
        mean_loss=float(totals.sum() / starts[-1]),
        tokens=int(starts[-1]),
        pairs=len(pairs),
        selected=int(selected.sum()),
        rank_by=selection.rank_by,
        worst=tuple(
            _describe(translator, scored, number, pairs[number], translations[number], float(totals[number]))
            for number in order
        ),
        tokens_by_total=by_total,
        tokens_by_mean=by_mean,
    )


def _translate(
    translator: Translator, pairs: Sequence[tuple[str, str]], numbers: list[int], batch_tokens: int
) -> dict[int, str]:
    """Return the translations of the pairs with these numbers, by number."""
    sources = [pairs[number][0] for number in numbers]
    translations = translate(
        translator.model, translator.tokenizer, sources, source_tokenizer=translator.source_tokenizer,
        batch_tokens=batch_tokens,
    )  # fmt: skip
    return {number: best[0].text for number, best in zip(numbers, translations, strict=True)}


def _negative_chrf(translations: dict[int, str], pairs: Sequence[tuple[str, str]]) -> Float[np.ndarray, " N"]:
    """Return minus the chrF of each translation, and -inf for pairs without one."""
    badness = np.full(len(pairs), -np.inf)
    numbers = list(translations)
    scores = sentence_chrf([translations[number] for number in numbers], [pairs[number][1] for number in numbers])
    badness[numbers] = [-score for score in scores]
    return badness


def _describe(
    translator: Translator,
    scored: TargetLogprobs,
    number: int,
    pair: tuple[str, str],
    translation: str,
    total: float,
) -> WorstPair:
    source, reference = pair
    ids, losses = tuple(scored.targets[number]), (-scored.logprobs[number]).tolist()
    forced = Translation(
        source=source.strip(), text=reference, ids=ids, logprobs=tuple(-loss for loss in losses), logprob=-total,
        score=0.0, finish="eos" if ids[-1] == translator.tokenizer.eos_id else "length",
        truncated=scored.truncated[number],
    )  # fmt: skip
    attention = read_cross_attention(
        [translator.model], translator.tokenizer, forced, source_tokenizer=translator.source_tokenizer
    )
    return WorstPair(
        index=number,
        source=source,
        reference=reference,
        tokens=spaced_tokens(translator.tokenizer, ids[:-1]) + attention.target[-1:]
        if attention.has_end
        else spaced_tokens(translator.tokenizer, ids),
        losses=tuple(losses),
        total_loss=total,
        mean_loss=total / len(ids),
        alignment=attention.pharaoh,
        truncated=scored.truncated[number],
        translation=translation,
        chrf=sentence_chrf([translation], [reference])[0],
        words=_aligned_words(attention, losses),
    )


def _aligned_words(attention: CrossAttentionMap, losses: list[float]) -> tuple[tuple[str, str, float], ...]:
    """Return for each target word its source word, the word, and the sum of the losses of its tokens."""
    source_words, target_words = attention.words

    def text(tokens: tuple[str, ...], word: range) -> str:
        return "".join(tokens[word.start : word.stop]).strip()

    return tuple(
        (
            text(attention.source, source_words[source]),
            text(attention.target, target_words[target]),
            sum(losses[target_words[target].start : target_words[target].stop]),
        )
        for source, target in sorted(attention.alignment, key=lambda pair: pair[1])
    )
