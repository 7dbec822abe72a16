"""Tasks with one answer per item, which is not streamed: for each task, a method that answers many items in one call.

The answer for an item does not depend on other items, so items of several clients may share a batch.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.encoding import MaskPredictions, SearchIndex, Tagging, fill, tag
from tercet.encoding.classify import row_logits
from tercet.encoding.embed import embed_rows
from tercet.generation import Beam, Sampling, Translation, translate
from tercet.generation.sampling import DIVERGENCE_MESSAGE
from tercet.models.inference import inference_mode
from tercet.nn.specs import Pooling
from tercet.objectives import split_logits, token_logprobs
from tercet.serve.engine.sampling import TopTokens, top_tokens


class TranslationItem(NamedTuple):
    """A text to translate, and a prefix with which its translation must begin."""

    text: str
    prefix: str


class PoolingOptions(NamedTuple):
    """Settings for the vector of a row.

    Attributes:
        pooling: How the vectors of the tokens are combined.
        size: Number of elements to which vectors are cut; None for all.
    """

    pooling: Pooling
    size: int | None = None


class EncodedRow(NamedTuple):
    """A text, a chunk of it, or a pair of texts, as token ids.

    Attributes:
        ids: Ids from bos to eos.
        second_start: Position of the second text of a pair; None for a single text.
    """

    ids: tuple[int, ...]
    second_start: int | None = None


class FillOptions(NamedTuple):
    """Settings for the candidates of a mask.

    Attributes:
        top: Maximum number of candidates; None for the default of `tercet.encoding.fill`.
        only: Words to choose from; None for the whole vocabulary.
    """

    top: int | None
    only: tuple[str, ...] | None


@dataclass(frozen=True, kw_only=True)
class ScoredPrompt:
    """Log-probabilities of the tokens of a prompt except the first.

    Attributes:
        logprobs: Natural logarithm of the probability of each token, given the tokens before it.
        top: Likeliest tokens at each of these positions.
    """

    logprobs: tuple[float, ...]
    top: tuple[TopTokens, ...]


@dataclass(frozen=True)
class BatchTasks:
    """The tasks of one model.

    Each method takes many items and settings that apply to all of them, and returns one answer per item, in their
    order. It raises UserError or ValueError if an item is invalid, and UserError if a result is NaN.
    """

    trained_model: TrainedModel
    index: SearchIndex | None = None

    def translate(self, items: list[TranslationItem], search: Beam | Sampling) -> list[list[Translation]]:
        """Return the translations of each item, best first."""
        translations = translate(
            self.trained_model.require("translate").model,
            self.trained_model.tokenizer,
            [item.text for item in items],
            search,
            source_tokenizer=self.trained_model.source_tokenizer,
            prefixes=[item.prefix for item in items],
        )
        _check_numbers(hypothesis.score for hypotheses in translations for hypothesis in hypotheses)
        return translations

    def embed(self, items: list[EncodedRow], options: PoolingOptions) -> list[np.ndarray]:
        """Return the vector (D,) of each row, as `tercet.encoding.embed` does, but not normalized."""
        encoder = self.trained_model.require("embed")
        vectors = embed_rows(
            encoder.model, [[*item.ids] for item in items], pad=encoder.tokenizer.pad_id, pooling=options.pooling,
            projection=encoder.projection, normalize=False, size=options.size,
        )  # fmt: skip
        _check_numbers(vector.sum().item() for vector in vectors)
        return vectors

    def search(self, items: list[np.ndarray], top: int) -> list[list[tuple[int, float]]]:
        """Return the numbers and cosines of the nearest vectors of the index for each query (D,), nearest first."""
        assert self.index is not None, "the model has no documents"
        found = self.index.search(np.stack(items), top=top)
        pairs = zip(found.numbers.tolist(), found.scores.tolist(), strict=True)
        return [list(zip(numbers, scores, strict=True)) for numbers, scores in pairs]

    def fill(self, items: list[str], options: FillOptions) -> list[MaskPredictions]:
        """Return the candidates for the masks of each text."""
        model = self.trained_model.require("fill").model
        filled = fill(model, self.trained_model.tokenizer, items, top=options.top, only=options.only)
        _check_numbers(candidate.probability for text in filled for mask in text.masks for candidate in mask)
        return filled

    def classify(self, items: list[EncodedRow], is_pairs: bool) -> list[torch.Tensor]:
        """Return the logits (L,) of each row, on the CPU, for a model with a classifier of texts.

        Args:
            items: Rows, all of single texts or all of pairs.
            is_pairs: True if they are pairs.
        """
        model = self.trained_model.require("classify").model
        starts = [item.second_start or 0 for item in items] if is_pairs else None
        logits = row_logits(
            model, [item.ids for item in items], pad=self.trained_model.tokenizer.pad_id, second_starts=starts
        )
        _check_numbers((row - row).sum().item() for row in logits)  # also infinite ones
        return logits

    def tag(self, items: list[str], _options: None) -> list[Tagging]:
        """Return the label of each word of each text, split at white space, for a model with a classifier of words."""
        model = self.trained_model.require("classify").model
        tagged = tag(model, self.trained_model.tokenizer, [text.split() for text in items])
        _check_numbers(label.probability for text in tagged for label in text.tags if label is not None)
        return tagged

    def score(self, items: list[tuple[int, ...]], top: int) -> list[ScoredPrompt]:
        """Return the log-probability of each token of a prompt after the first, for each prompt.

        Args:
            items: Token ids of the prompts.
            top: Number of likeliest tokens to report at each position.
        """
        return [self._score(list(ids), top) for ids in items]

    def _score(self, ids: list[int], top: int) -> ScoredPrompt:
        model = self.trained_model.require("generate").model
        device = model.embedding.weight.device
        targets = torch.tensor(ids[1:], dtype=torch.long, device=device)
        logprobs, likeliest = list[float](), list[TopTokens]()
        with inference_mode(model.modules()):
            hidden = model.hidden(torch.tensor([ids[:-1] or ids], device=device))[0, : len(targets)]  # (T, D)
            for rows, logits in split_logits(model, hidden):
                logprobs += token_logprobs(logits, targets[rows]).tolist()
                likeliest += top_tokens(logits, [top] * len(logits))
        _check_numbers(logprobs)
        return ScoredPrompt(logprobs=tuple(logprobs), top=tuple(likeliest))


def _check_numbers(numbers: Iterable[float]) -> None:
    if any(map(math.isnan, numbers)):
        raise UserError(DIVERGENCE_MESSAGE)
