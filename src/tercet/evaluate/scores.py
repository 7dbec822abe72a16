"""The numbers of a language model on one text, and what is shown of those of a masked one.

    nats per token = -(sum of ln p(target)) / targets          perplexity = e^(nats per token)
    bits per byte  = -(sum of ln p(text target)) / (ln 2 · bytes)

Nats depend on how the tokenizer cuts; bits per byte do not, and compare with a compressor's. Special tokens stand for
no byte, so they count in the first and not in the second. What an unknown token stands for is in neither: with more
than a few of them, bits per byte compare with nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from rich.console import Group
from rich.table import Table
from rich.text import Text

from tercet.evaluate.masked import MaskedScores
from tercet.notebook import Summary, rich_html

FEW_UNKNOWN = 0.001  # of the tokens: up to here a figure is wrong by less than a percent or so


@dataclass(frozen=True, kw_only=True, repr=False)
class LanguageScores(Summary):
    """Attributes:
    tokens: targets scored, special ones included.
    bytes: UTF-8 bytes of text that the targets stand for.
    context: the most tokens that a prediction could look at.
    stride: how far apart the windows are.
    unknown_share: Share of the text's tokens that are the unknown token.
    """

    loss_nats_per_token: float
    perplexity: float
    bits_per_byte: float
    tokens: int
    bytes: int
    context: int
    stride: int
    unknown_share: float = 0.0

    @classmethod
    def from_sums(
        cls, *, nats: float, text_nats: float, tokens: int, n_bytes: int, context: int, stride: int
    ) -> "LanguageScores":
        """`nats` is the sum over all targets, `text_nats` that over those which stand for text."""
        loss = nats / tokens
        return cls(
            loss_nats_per_token=loss,
            perplexity=math.inf if loss > 700 else math.exp(loss),
            bits_per_byte=text_nats / (math.log(2) * n_bytes) if n_bytes else math.nan,
            tokens=tokens,
            bytes=n_bytes,
            context=context,
            stride=stride,
        )

    def _repr_html_(self) -> str:
        return rich_html(as_table(self))


def as_dict(model: LanguageScores, baselines: Mapping[str, LanguageScores | float] | None = None) -> dict[str, Any]:
    """For JSON, which has no word for NaN and infinity: they become None. A baseline's float is bits per byte."""
    beside = {
        name: _finite(asdict(scores) if isinstance(scores, LanguageScores) else {"bits_per_byte": scores})
        for name, scores in (baselines or {}).items()
    }
    return {**_finite(asdict(model)), "baselines": beside}


def as_table(model: LanguageScores, baselines: Mapping[str, LanguageScores | float] | None = None) -> Table:
    """For people: the model first, then what it is measured against, best first."""
    table = Table("", "bits per byte", "nats per token", "perplexity", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    beside = sorted((baselines or {}).items(), key=lambda item: _bits(item[1]))
    for name, scores in [("model", model), *beside]:
        if isinstance(scores, LanguageScores):
            numbers = f"{scores.loss_nats_per_token:.4f}", f"{scores.perplexity:,.2f}"
        else:
            numbers = "", ""
        table.add_row(name, f"{_bits(scores):.4f}", *numbers)
    table.caption = (
        f"{model.tokens:,} tokens, {model.bytes:,} bytes; context {model.context:,}, windows {model.stride:,} apart"
    )
    if model.unknown_share:
        table.caption += f"; {describe_unknown(model.unknown_share)}"
    return table


def describe_unknown(share: float) -> str:
    """Return how many tokens are unknown, and what that means for bits per byte."""
    said = f"{share:.2%} of the tokens are unknown"
    return said if share <= FEW_UNKNOWN else f"{said}, so bits per byte compare with nothing"


def masked_dict(scores: MaskedScores, pseudo_perplexity: float | None = None) -> dict[str, Any]:
    """For JSON; see `as_dict`."""
    beside = {} if pseudo_perplexity is None else {"pseudo_perplexity": pseudo_perplexity}
    return _finite({**asdict(scores), "plateau": scores.plateau, **beside})


def masked_table(scores: MaskedScores, pseudo_perplexity: float | None = None) -> Group:
    """For people: the model, and below it what counting tokens reaches on the same masks."""
    table = Table("", "nats per masked token", "right", box=None)
    for column in table.columns[1:]:
        column.justify = "right"
    table.add_row("model", f"{scores.masked_loss:.4f}", f"{scores.masked_accuracy:.1%}")
    table.add_row("unigram", f"{scores.unigram_entropy:.4f}", "")
    table.add_row("most frequent token", "", f"{scores.most_frequent_accuracy:.1%}")
    facts = f"{scores.tokens:,} tokens masked, {scores.mask_rate:.1%} of the text; context {scores.context:,}, "
    lines = [facts + f"seed {scores.seed}"]
    if pseudo_perplexity is not None:
        lines.append(f"pseudo-perplexity {pseudo_perplexity:,.2f}")
    return Group(table, "", *map(Text, lines))


def _bits(scores: LanguageScores | float) -> float:
    return scores.bits_per_byte if isinstance(scores, LanguageScores) else scores


def _finite(numbers: dict[str, Any]) -> dict[str, Any]:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}
