"""Scores of a language model on one text.

    nats per token = -(sum of ln p(target)) / targets          perplexity = e^(nats per token)
    bits per byte  = -(sum of ln p(text target)) / (ln 2 · bytes)

Nats per token depend on the tokenizer. Bits per byte do not, and are comparable with a compressor. Special tokens have
no bytes, so they only count in nats per token. The text that an unknown token replaces is not scored: with more than a
few unknown tokens, bits per byte are not comparable with anything.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tercet.evaluate.score_summary import PredictionScores, ScoreSummary, finite
from tercet.notebook import Table, View

MAX_UNKNOWN_SHARE = 0.001  # of all tokens: up to this share, bits per byte have an error of about a percent or less


@dataclass(frozen=True, kw_only=True, repr=False)
class LanguageScores(PredictionScores):
    """Scores of a language model.

    Attributes:
        loss_nats_per_token: Mean of -ln p(target).
        perplexity: Exponential of this mean.
        bits_per_byte: Bits of the targets with text per byte of this text; NaN if it has no bytes.
        tokens: Number of scored targets, including special tokens.
        bytes: UTF-8 bytes of the text of the targets.
        context: Maximum number of tokens that a prediction depends on.
        stride: Distance of the windows in tokens.
        unknown_share: Fraction of the text's tokens that are the unknown token.
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
        """Return the scores from sums over the targets.

        `nats` is the sum of -ln p over all targets, and `text_nats` the sum over the targets with text. The other
        arguments are attributes; `n_bytes` is `bytes`.
        """
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
        """Return the scores as a dictionary for JSON, with those of `baselines` by name."""
        baseline_scores = {
            name: {key: value for key, value in ScoreSummary.to_dict(scores).items() if key != "metrics"}
            if isinstance(scores, LanguageScores)
            else {"bits_per_byte": finite(scores)}
            for name, scores in (baselines or {}).items()
        }
        return {**super().to_dict(), "baselines": baseline_scores}

    def view(self, baselines: "Baselines | None" = None) -> View:
        """Return a table with the scores of the model, then those of `baselines`, the best first."""
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
        return View((Table(header=header, rows=rows, caption=caption), *self.metrics_table()))


Baselines = Mapping[str, LanguageScores | float]  # a float is bits per byte


def describe_unknown(share: float) -> str:
    """Return a description of the share of unknown tokens and its effect on bits per byte."""
    text = f"{share:.2%} of the tokens are unknown"
    return text if share <= MAX_UNKNOWN_SHARE else f"{text}, so bits per byte are not comparable"


def _bits(scores: LanguageScores | float) -> float:
    return scores.bits_per_byte if isinstance(scores, LanguageScores) else scores
