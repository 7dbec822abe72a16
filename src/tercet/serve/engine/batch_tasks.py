"""Tasks with one answer per item, which is not streamed: for each task, a method that answers many items in one call.

The answer for an item does not depend on other items, so items of several clients may share a batch.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple, cast

import numpy as np
import torch

from tercet.checkpoint import TrainedModel
from tercet.config import UserError
from tercet.encoding import (
    Classification,
    MaskPredictions,
    MultiLabelClassification,
    Regression,
    Tagging,
    classify,
    classify_multi_label,
    fill,
    regress,
    tag,
)
from tercet.encoding.batches import frame_rows
from tercet.encoding.embed import embed_rows
from tercet.encoding.rerank import score_relevance
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
    """Settings for the vector of a text.

    Attributes:
        pooling: How the vectors of the tokens are combined.
        normalize: If True, scale the result to length 1.
        size: Number of elements to which vectors are cut; None for all.
    """

    pooling: Pooling
    normalize: bool
    size: int | None = None


class ClassifyOptions(NamedTuple):
    """Settings for the labels of texts.

    Attributes:
        threshold: Probability above which a label is returned, if a text may have several.
        pairs: True if the items are pairs of texts.
    """

    threshold: float
    pairs: bool = False


class FillOptions(NamedTuple):
    """Settings for the candidates of a mask.

    Attributes:
        top: Maximum number of candidates; None for the default of `tercet.encoding.fill`.
        only: Words to choose from; None for the whole vocabulary.
    """

    top: int | None
    only: tuple[str, ...] | None


class Relevance(NamedTuple):
    """The relevance of a document to a query.

    Attributes:
        score: Probability that the document is relevant; for a regression model the predicted number.
        truncated: True if the query and the document together exceeded the model's context and were cut.
    """

    score: float
    truncated: bool


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

    def embed(self, items: list[tuple[int, ...]], options: PoolingOptions) -> list[np.ndarray]:
        """Return a vector (D) for each text, as `tercet.encoding.embed` does, from its token ids without bos and eos.

        The caller must check the lengths: ids that, with bos and eos, exceed the model's maximum length are cut.
        """
        encoder, tokenizer = self.trained_model.require("embed"), self.trained_model.tokenizer
        model = encoder.model
        rows = frame_rows(tokenizer, [list(ids) for ids in items], max_len=model.max_len).rows
        vectors = embed_rows(
            model, rows, pad=tokenizer.pad_id, pooling=options.pooling, projection=encoder.projection,
            normalize=options.normalize, size=options.size,
        )  # fmt: skip
        _check_numbers(vector.sum().item() for vector in vectors)
        return vectors

    def fill(self, items: list[str], options: FillOptions) -> list[MaskPredictions]:
        """Return the candidates for the masks of each text."""
        model = self.trained_model.require("fill").model
        filled = fill(model, self.trained_model.tokenizer, items, top=options.top, only=options.only)
        _check_numbers(candidate.probability for text in filled for mask in text.masks for candidate in mask)
        return filled

    def classify(
        self, items: list[str] | list[tuple[str, str]], options: ClassifyOptions
    ) -> list[Classification] | list[Tagging] | list[MultiLabelClassification] | list[Regression]:
        """Return one answer per text or pair of texts; its type depends on the model's classifier.

        An answer contains one label, a label for each word (split at white space), all labels with a probability above
        `options.threshold`, or a number. Words of pairs cannot be labeled.
        """
        trained_model = self.trained_model.require("classify")
        model, tokenizer, head = trained_model.model, trained_model.tokenizer, trained_model.label_head
        if head.over == "tokens":
            tagged = tag(model, tokenizer, [text.split() for text in cast("list[str]", items)])
            _check_numbers(label.probability for text in tagged for label in text.tags if label is not None)
            return tagged
        match head.problem_type:
            case "single_label_classification":
                classified = classify(model, tokenizer, items)
                _check_numbers(label.probability for label in classified)
                return classified
            case "multi_label_classification":
                labeled = classify_multi_label(model, tokenizer, items, threshold=options.threshold)
                _check_numbers(probability for text in labeled for probability in text.scores.values())
                return labeled
            case "regression":
                regressed = regress(model, tokenizer, items)
                _check_numbers(text.value for text in regressed)
                return regressed

    def rerank(self, items: list[tuple[str, str]], _options: None) -> list[Relevance]:
        """Return the relevance of the document to the query, for each pair of a query and a document."""
        model = self.trained_model.require("classify").model
        scores, cuts = score_relevance(model, self.trained_model.tokenizer, items)
        _check_numbers(scores)
        return [Relevance(score, cut) for score, cut in zip(scores, cuts, strict=True)]

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
