"""Base classes of the evaluations: held-out data of a model, and the scores that a comparison uses.

Files that have changed since the training are rejected, because data that would now be held out may have been in the
training part.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypedDict, TypeVar

import numpy as np
from torch import Tensor

from tercet.checkpoint import Encoder, TrainedModel
from tercet.checkpoint.training_data import open_training_data, other_data_hint
from tercet.config import UserError, parse
from tercet.data import Corpus, QueryPair, TextSpec, prepare
from tercet.data.rows.batching import BATCH_TOKENS
from tercet.data.sources.custom_dataset import CustomDataset, plain_source
from tercet.data.sources.id_files import IdDtype
from tercet.data.sources.line_documents import DocumentUnit
from tercet.evaluate.bootstrap import WeightedScores
from tercet.evaluate.conversations import AnswerScores
from tercet.evaluate.custom_metrics import Metrics
from tercet.evaluate.digest import digest
from tercet.evaluate.labels import LabelScores
from tercet.evaluate.masked import MaskedScores
from tercet.evaluate.multi_label import MultiLabelScores
from tercet.evaluate.pooled import Predictions
from tercet.evaluate.protocols import Protocol
from tercet.evaluate.regression import RegressionScores
from tercet.evaluate.retrieval import RetrievalScores, SearchResults
from tercet.evaluate.scores import LanguageScores
from tercet.evaluate.translation import TranslationScores
from tercet.generation import Beam
from tercet.generation.sampling import DIVERGENCE_MESSAGE

Part = Literal["validation", "test"]
Kind = Literal[
    "language model", "masked language model", "translator", "classifier", "multi-label classifier", "regression",
    "chat model", "encoder of texts", "reranker",
]  # fmt: skip
Scores = (
    LanguageScores
    | TranslationScores
    | MaskedScores
    | LabelScores
    | MultiLabelScores
    | RegressionScores
    | AnswerScores
    | RetrievalScores
)
Data = TypeVar("Data")


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """Scores of a model on its held-out data.

    Attributes:
        scores: Scores by measure, such as {"nats_per_token": 1.47}; see `MEASURES` of the leaderboard.
        parameters: Number of parameters; tied ones count once.
        text: SHA-256 of the scored text, pairs or labels.
        tokenizer: SHA-256 of the tokenizer; the target tokenizer of a translation model.
        tokens: Number of predictions over which the scores are averaged.
        unknown_share: Fraction of the text's tokens that are the unknown token.
        validation: Scored documents, for models of text.
        predictions: Predictions for the labels of texts or words; None for other models.
    """

    kind: Kind
    scores: dict[str, float]
    parameters: int
    text: str
    tokenizer: str
    tokens: int
    unknown_share: float = 0.0
    validation: tuple[str, ...] = field(default=(), repr=False)
    predictions: Predictions | None = field(default=None, repr=False, compare=False)


class EvaluationOptions(TypedDict, total=False):
    """The settings of all tasks. Passing a setting that the model's task does not have raises TypeError."""

    batch_tokens: int
    stride: int | None  # language models: distance of the windows
    progress: bool
    rate: float  # masked language models: fraction of masked tokens
    seed: int
    tokens: int | None
    source: str | Path | CustomDataset | None  # translation models: other sentence pairs
    target: str | Path | None
    part: Part | None
    encoding: str | None
    search: Beam | None
    protocol: Protocol
    language: str | None
    metrics: (
        Metrics  # models of text, translation models, classifiers: metrics of other packages, or their import paths
    )


class Evaluation(ABC, Generic[Data]):
    """The evaluation of one trained model."""

    @abstractmethod
    def load_held_out(self) -> Data:
        """Return the held-out part of the model's data.

        Raises:
            UserError: If the data is missing, or has changed since the training.
        """

    @abstractmethod
    def score_held_out(self, data: Data) -> HeldOutScores:
        """Return the scores for a comparison of models."""

    @abstractmethod
    def weighted(self, data: Data) -> WeightedScores:
        """Return the scores as functions of the weights of the documents, for `paired_differences`.

        Raises:
            UserError: If the data cannot be scored.
        """

    @abstractmethod
    def evaluate(self, data: str | Path | CustomDataset | None = None, **settings: Any) -> Scores:
        """Return the scores on the held-out data, or on all of `data`.

        The settings depend on the task; see `EvaluationOptions`.
        """


@dataclass(frozen=True)
class TextEvaluation(Evaluation[Corpus]):
    """Evaluation of a causal or masked language model on the validation part of a corpus."""

    trained_model: TrainedModel

    def load(
        self,
        data: str | Path | CustomDataset | None = None,
        *,
        encoding: str | None = None,
        text_field: str | None = None,
        documents: DocumentUnit | None = None,
        dtype: IdDtype | None = None,
    ) -> Corpus:
        """Return the training corpus, or a corpus whose validation part is all of `data`.

        Args:
            data: A file or folder of text.
            encoding, text_field, documents, dtype: How `data` is read, as in `TextSpec`; by default as in training, but
                in UTF-8.

        Raises:
            UserError: If the data is missing, or has changed since the training.
        """
        trained_model, trained_on = self.trained_model, self.trained_model.trained_on(TextSpec)
        if data is not None:
            training_settings = {} if trained_on is None else trained_on.file_settings
            overrides = {"text_field": text_field, "documents": documents, "dtype": dtype}
            settings = training_settings | {name: value for name, value in overrides.items() if value is not None}
            settings["encoding"] = encoding or "utf-8"
            source = plain_source(data)
            held_out = {"kind": "held_out", "source": source}
            spec = parse(TextSpec, {"source": source, **settings, "validation": held_out})
            return prepare(spec, tokenizer=trained_model.tokenizer)
        corpus = open_training_data(trained_model, download=True)
        if corpus is None:
            raise UserError(
                f"{trained_model.folder} does not contain its training data settings; {other_data_hint(trained_model)}"
            )
        assert isinstance(corpus, Corpus)
        return corpus

    def load_held_out(self) -> Corpus:
        return self.load()

    def held_out_scores(self, corpus: Corpus, kind: Kind, scores: dict[str, float], tokens: int) -> HeldOutScores:
        """Return `scores` on the validation part of `corpus` with the other fields that a comparison uses."""
        documents = decode_documents(corpus)
        return HeldOutScores(
            kind=kind,
            scores=scores,
            parameters=self.trained_model.n_parameters,
            text=digest(*documents),
            tokenizer=self.trained_model.tokenizer.hash,
            tokens=tokens,
            unknown_share=corpus.unknown_share,
            validation=documents,
        )

    @abstractmethod
    def weighted_metrics(self, data: Corpus, metrics: Metrics) -> WeightedScores:
        """Return metrics of other packages as functions of the weights of the documents, as in `TokenScores`.

        Raises:
            UserError: If a metric cannot be imported or fails.
        """

    @property
    def document_mask(self) -> bool:
        """True if no token attends to another document.

        This is the setting of the model's training. For a model that was not trained by Tercet, it is
        `opens_documents`.
        """
        trained_on = self.trained_model.trained_on(TextSpec)
        return self.opens_documents if trained_on is None else trained_on.has_document_mask

    @property
    def opens_documents(self) -> bool:
        """True if the model was not trained by Tercet and its tokenizer puts ids such as bos before each text."""
        return self.trained_model.trained_on(TextSpec) is None and bool(self.trained_model.tokenizer.opening)


@dataclass(frozen=True)
class SearchEvaluation(Evaluation[tuple[QueryPair, ...]]):
    """Evaluation of an encoder by search among queries and documents."""

    trained_model: Encoder
    kind: ClassVar[Kind]

    @abstractmethod
    def load(
        self, data: str | Path | CustomDataset | None = None, *, encoding: str | None = None
    ) -> tuple[QueryPair, ...]:
        """Return the validation part of the model's data, or the pairs of `data`."""

    @abstractmethod
    def search(self, pairs: Sequence[QueryPair], *, batch_tokens: int = BATCH_TOKENS) -> SearchResults:
        """Return the results in search; further settings as in `score`."""

    def score(self, pairs: Sequence[QueryPair], **settings: Any) -> RetrievalScores:
        """Return the scores in search.

        Args:
            pairs: Queries and documents.
            settings: `batch_tokens`, the maximum number of tokens per batch; for rerankers also `candidates`.
        """
        return self.search(pairs, **settings).scores()

    def weighted(self, data: tuple[QueryPair, ...]) -> WeightedScores:
        return self.search(data).weighted

    def load_held_out(self) -> tuple[QueryPair, ...]:
        return self.load()

    def score_held_out(self, data: tuple[QueryPair, ...]) -> HeldOutScores:
        scores = self.score(data)
        measures = ("ndcg_at_10", "mrr", "recall_at_1", "recall_at_10")
        return HeldOutScores(
            kind=self.kind,
            scores={name: getattr(scores, name) for name in measures},
            parameters=self.trained_model.n_parameters,
            text=digest(*(text for pair in data for text in pair)),
            tokenizer=self.trained_model.tokenizer.hash,
            tokens=scores.queries,
        )

    def evaluate(self, data: str | Path | CustomDataset | None = None, **settings: Any) -> RetrievalScores:
        return self.score(self.load(data), **settings)


def set_losses(losses: np.ndarray, positions: np.ndarray, logprobs: Tensor) -> None:
    """Store -ln p of tokens (N,) at their positions (N,).

    Raises:
        UserError: If one is not finite, since NaN marks tokens that are not scored.
    """
    if not bool(logprobs.isfinite().all()):
        raise UserError(DIVERGENCE_MESSAGE)
    losses[positions] = -logprobs.numpy()


def decode_documents(corpus: Corpus) -> tuple[str, ...]:
    """Return the decoded text of each document of the validation part."""
    ids, starts = corpus.validation, corpus.validation_documents.tolist()
    return tuple(
        corpus.tokenizer.decode(ids[start:end].tolist())
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)
    )
