"""What the evaluations of all tasks have in common: held-out data of one's own, and the scores that a comparison needs.

Files that have changed since are refused, for what is held out now may have been learnt from then.
"""

import hashlib
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Literal, TypedDict, TypeVar

from tercet.checkpoint import TrainedModel
from tercet.checkpoint.training_data import open_training_data
from tercet.config import UserError, parse, to_plain
from tercet.data import Corpus, HeldOut, TextSpec, prepare
from tercet.data.sources.id_files import IdDtype
from tercet.data.sources.line_documents import DocumentUnit
from tercet.evaluate.conversations import AnswerScores
from tercet.evaluate.labels import LabelScores
from tercet.evaluate.masked import MaskedScores
from tercet.evaluate.multi_label import MultiLabelScores
from tercet.evaluate.protocols import Protocol
from tercet.evaluate.regression import RegressionScores
from tercet.evaluate.scores import LanguageScores
from tercet.evaluate.translation import TranslationScores
from tercet.generation import Beam

Part = Literal["validation", "test"]
Kind = Literal[
    "language model", "masked language model", "translator", "classifier", "multi-label classifier", "regression",
    "chat model",
]  # fmt: skip
Scores = (
    LanguageScores | TranslationScores | MaskedScores | LabelScores | MultiLabelScores | RegressionScores | AnswerScores
)
Data = TypeVar("Data")


@dataclass(frozen=True, kw_only=True)
class HeldOutScores:
    """Attributes:
    scores: by measure, such as {"nats_per_token": 1.47}; see `MEASURES` of the leaderboard.
    parameters: of the model, tied ones once.
    text: sha256 of the text, pairs or labels that were scored.
    tokenizer: sha256 of the tokenizer; a translator's is the target's.
    tokens: predictions that the scores are means of.
    unknown_share: Of the text's tokens, the share that is the unknown token.
    validation: the documents that a model of text was scored on.
    """

    kind: Kind
    scores: dict[str, float]
    parameters: int
    text: str
    tokenizer: str
    tokens: int
    unknown_share: float = 0.0
    validation: tuple[str, ...] = field(default=(), repr=False)


class EvaluationOptions(TypedDict, total=False):
    """The settings of all tasks; one that a task does not have is a TypeError."""

    batch_tokens: int
    stride: int | None  # of a language model: how far apart windows begin
    progress: bool
    rate: float  # of a masked language model: the share that is hidden
    seed: int
    tokens: int | None
    source: str | Path | None  # of a translator: other pairs
    target: str | Path | None
    part: Part | None
    encoding: str | None
    search: Beam | None
    protocol: Protocol
    language: str | None


class Evaluation(ABC, Generic[Data]):
    """How one trained model is scored."""

    @abstractmethod
    def load_held_out(self) -> Data:
        """What the model's own data kept from training.

        Raises:
            UserError: where that is not there, or no longer what the model was trained on.
        """

    @abstractmethod
    def score_held_out(self, data: Data) -> HeldOutScores:
        """What a comparison says of the model on such data."""

    @abstractmethod
    def evaluate(self, data: str | Path | None = None, **settings: Any) -> Scores:
        """The scores on the held-out data, or on all of `data`; each task has settings of its own."""


@dataclass(frozen=True)
class TextEvaluation(Evaluation[Corpus]):
    """Of a model of running text: on the validation part of a corpus."""

    trained_model: TrainedModel

    def load(
        self,
        data: str | Path | None = None,
        *,
        encoding: str | None = None,
        text_field: str | None = None,
        documents: DocumentUnit | None = None,
        dtype: IdDtype | None = None,
    ) -> Corpus:
        """The corpus that it was trained on, or one whose validation part is all of `data`.

        Args:
            encoding, text_field, documents, dtype: how `data` is read, as in `TextSpec`; by default as in training, but
                in UTF-8.

        Raises:
            UserError: where the data is not there, or no longer what the model was trained on.
        """
        trained_model, trained_on = self.trained_model, self.trained_model.trained_on(TextSpec)
        if data is not None:
            training_settings = {} if trained_on is None else trained_on.file_settings
            overrides = {"text_field": text_field, "documents": documents, "dtype": dtype}
            settings = training_settings | {name: value for name, value in overrides.items() if value is not None}
            settings["encoding"] = encoding or "utf-8"
            spec = parse(TextSpec, {"source": str(data), **settings, "validation": to_plain(HeldOut(source=str(data)))})
            return prepare(spec, tokenizer=trained_model.tokenizer)
        corpus = open_training_data(trained_model, download=True)
        if corpus is None:
            raise UserError(f"{trained_model.folder} does not say what it was trained on; give --data")
        assert isinstance(corpus, Corpus)
        return corpus

    def load_held_out(self) -> Corpus:
        return self.load()

    def held_out_scores(self, corpus: Corpus, kind: Kind, scores: dict[str, float], tokens: int) -> HeldOutScores:
        """`scores` on the validation part of `corpus`, with what a comparison asks beside them."""
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

    @property
    def document_mask(self) -> bool:
        """Whether each document stands alone: as in training, or if the tokenizer of a foreign model opens texts."""
        trained_on = self.trained_model.trained_on(TextSpec)
        return self.opens_documents if trained_on is None else trained_on.has_document_mask

    @property
    def opens_documents(self) -> bool:
        """Whether this is a foreign model whose tokenizer begins each text with an opening."""
        return self.trained_model.trained_on(TextSpec) is None and bool(self.trained_model.tokenizer.opening)


def digest(*parts: str) -> str:
    """sha256 of texts, as hex digits."""
    sha = hashlib.sha256()
    for part in parts:
        sha.update(f"{len(part)}:".encode() + part.encode(errors="surrogatepass"))
    return sha.hexdigest()


def decode_documents(corpus: Corpus) -> tuple[str, ...]:
    """The documents of the validation part."""
    ids, starts = corpus.validation, corpus.validation_documents.tolist()
    return tuple(
        corpus.tokenizer.decode(ids[start:end].tolist())
        for start, end in zip(starts, [*starts[1:], len(ids)], strict=True)
    )
