"""The scores of a language model on one text.

    nats per token = -(sum of ln p(target)) / targets          perplexity = e^(nats per token)
    bits per byte  = -(sum of ln p(text target)) / (ln 2 · bytes)

Nats depend on how the tokenizer cuts; bits per byte do not, and compare with a compressor's. Special tokens stand for
no byte, so they count in the first and not in the second. What an unknown token stands for is in neither: with more
than a few of them, bits per byte compare with nothing.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tercet.evaluate.score_summary import ScoreSummary, finite
from tercet.notebook import Table, View

MAX_UNKNOWN_SHARE = 0.001  # of the tokens: up to here a figure is wrong by less than a percent or so


@dataclass(frozen=True, kw_only=True, repr=False)
class LanguageScores(ScoreSummary):
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

    def to_dict(self, baselines: "Baselines | None" = None) -> dict[str, Any]:
        """Return the scores for JSON, with those of `baselines`."""
        baseline_scores = {
            name: ScoreSummary.to_dict(scores)
            if isinstance(scores, LanguageScores)
            else {"bits_per_byte": finite(scores)}
            for name, scores in (baselines or {}).items()
        }
        return {**super().to_dict(), "baselines": baseline_scores}

    def view(self, baselines: "Baselines | None" = None) -> View:
        """Return the scores of the model, then those of `baselines`, the best first."""
        ranked_baselines = sorted((baselines or {}).items(), key=lambda item: _bits(item[1]))
        rows = list[tuple[str, ...]]()
        for name, scores in [("model", self), *ranked_baselines]:
            if isinstance(scores, LanguageScores):
                numbers = f"{scores.loss_nats_per_token:.4f}", f"{scores.perplexity:,.2f}"
            else:
                numbers = "", ""
            rows.append((name, f"{_bits(scores):.4f}", *numbers))
        caption = (
            f"{self.tokens:,} tokens, {self.bytes:,} bytes; context {self.context:,}, windows {self.stride:,} apart"
        )
        if self.unknown_share:
            caption += f"; {describe_unknown(self.unknown_share)}"
        header = "", "bits per byte", "nats per token", "perplexity"
        return View((Table(header=header, rows=rows, caption=caption),))


Baselines = Mapping[str, LanguageScores | float]  # a float is bits per byte


def describe_unknown(share: float) -> str:
    """Return how many tokens are unknown, and what that means for bits per byte."""
    text = f"{share:.2%} of the tokens are unknown"
    return text if share <= MAX_UNKNOWN_SHARE else f"{text}, so bits per byte compare with nothing"


def _bits(scores: LanguageScores | float) -> float:
    return scores.bits_per_byte if isinstance(scores, LanguageScores) else scores
