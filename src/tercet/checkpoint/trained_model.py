"""Trained models with their tokenizer and card, by architecture.

    LanguageModel  continues a text     Translator  translates a text     Encoder  predicts with its heads

`require` rejects unsupported uses and names the supported command: `load_model(folder).require("translate").model` is
an `EncoderDecoder`, or a UserError is raised.
"""

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, overload

from torch import nn

from tercet.checkpoint.adapter import Adapter
from tercet.checkpoint.card import Card, data_settings, remove_folders
from tercet.checkpoint.run_record import RECIPE, read_record
from tercet.checkpoint.sentence_settings import SentenceSettings
from tercet.config import UserError, parse
from tercet.data import ConversationsSpec, LabelsSpec, PairsSpec, QueriesSpec, TextSpec
from tercet.data.sources.custom_dataset import name_datasets
from tercet.limits import MAX_CARD_BYTES
from tercet.messages import shorten
from tercet.models import AnyModel, Classifier, DecoderOnly, EncoderDecoder, EncoderOnly
from tercet.notebook import facts_table
from tercet.reading.files import read_text_file
from tercet.settings_yaml import read_yaml
from tercet.tokens import Tokenizer

TaskKind = Literal["language", "chat", "translation", "masked", "labels", "vectors"]
Verb = Literal["generate", "translate", "fill", "classify", "embed", "evaluate"]
Spec = TypeVar("Spec", TextSpec, PairsSpec, LabelsSpec, ConversationsSpec, QueriesSpec)

KINDS: dict[TaskKind, str] = {
    "language": "a language model",
    "chat": "a chat model",
    "translation": "a translator",
    "masked": "a masked language model",
    "labels": "a classifier",
    "vectors": "an encoder",
}
REJECTIONS: dict[Verb, str] = {
    "generate": "which cannot generate text",
    "translate": "not a translator",
    "fill": "which cannot fill masks",
    "classify": "not a classifier",
    "embed": "not an encoder",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedModel(ABC):
    """A loaded model in eval mode on the CPU, with the folder (or GGUF file) that it was loaded from.

    Attributes:
        model: The model.
        tokenizer: Tokenizer of the model; for a translator, that of the target.
        source_tokenizer: Tokenizer of a translator's source, if it has its own; otherwise the same as `tokenizer`.
        card: Card of the model.
        chat_template: Jinja template that turns a conversation into a text; None if the model has none.
        adapter: Adapter that is already merged into the model's weights; None if there is none.
        sentence: Settings by which an encoder computes the vector of a text.
        projection: Dense layers between the pooled hidden states and the vector of a text; None if there are none.
        folder: Folder or GGUF file of the model.
    """

    model: AnyModel
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    card: Card = field(default_factory=Card)
    chat_template: str | None = None
    adapter: Adapter | None = None
    sentence: SentenceSettings = field(default_factory=SentenceSettings)
    projection: nn.Sequential | None = None
    folder: Path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """Return an HTML table of the facts in the model's card, without hashes."""
        facts = self.card.facts(self.model.spec, n_parameters=self.n_parameters)
        return facts_table({name: shorten(facts[name]) for name in facts if "hash" not in name}, title=self.describe())

    def describe(self) -> str:
        """Return the folder, kind, number of parameters and validation result of the model in one line."""
        parts = (shorten(self.folder), self.kind, f"{self.n_parameters:,} parameters", self.card.choice)
        return ", ".join(filter(None, parts))

    @staticmethod
    def wrap(
        model: AnyModel,
        tokenizer: Tokenizer,
        *,
        source_tokenizer: Tokenizer | None = None,
        card: Card | None = None,
        chat_template: str | None = None,
        adapter: Adapter | None = None,
        sentence: SentenceSettings | None = None,
        projection: nn.Sequential | None = None,
        folder: Path,
    ) -> "TrainedModel":
        """Return a `LanguageModel`, `Translator` or `Encoder`, according to the model's family.

        The arguments are the attributes of this class. Without `source_tokenizer`, `tokenizer` is used for the source.
        """
        classes: dict[str, type[TrainedModel]] = {
            "decoder-only": LanguageModel, "encoder-decoder": Translator, "encoder-only": Encoder,
        }  # fmt: skip
        return classes[model.spec.family](
            model=model,
            tokenizer=tokenizer,
            source_tokenizer=tokenizer if source_tokenizer is None else source_tokenizer,
            card=Card() if card is None else card,
            chat_template=chat_template,
            adapter=adapter,
            sentence=SentenceSettings() if sentence is None else sentence,
            projection=projection,
            folder=folder,
        )

    @property
    @abstractmethod
    def task(self) -> TaskKind:
        """The task of the model, named as in a recipe; "vectors" for an encoder without classifier or masked head."""

    @property
    def kind(self) -> str:
        """The kind of model in words, such as "a language model"."""
        return KINDS[self.task]

    @property
    @abstractmethod
    def verbs(self) -> tuple[Verb, ...]:
        """The commands of `tercet` that can use the model, the main one first."""

    @property
    def separate_source_tokenizer(self) -> Tokenizer | None:
        """The source's tokenizer if it differs from the target's; otherwise None."""
        return None if self.source_tokenizer is self.tokenizer else self.source_tokenizer

    @property
    def n_parameters(self) -> int:
        """The number of parameters; tied ones count once."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @overload
    def require(self, verb: Literal["generate"]) -> "LanguageModel": ...

    @overload
    def require(self, verb: Literal["translate"]) -> "Translator": ...

    @overload
    def require(self, verb: Literal["fill", "classify", "embed"]) -> "Encoder": ...

    @overload
    def require(self, verb: Literal["evaluate"]) -> "TrainedModel": ...

    def require(self, verb: Verb) -> "TrainedModel":
        """Return this object, typed as the class of models that support the command `verb`, such as `Translator`.

        Raises:
            UserError: If it does not support `verb`; the message contains the kind of model and a supported command.
        """
        if verb not in self.verbs:
            raise UserError(
                f"{self.folder} is {self.kind}, {self._rejection(verb)}; use `tercet {self.verbs[0]} {self.folder}`"
            )
        return self

    def _rejection(self, verb: Verb) -> str:
        return REJECTIONS[verb]

    def trained_on(self, spec: type[Spec], *, opens: bool = False) -> Spec | None:
        """Return the data settings of the model's training; None if its card has none.

        The paths in a card have no folders. If the model is in the folder of its run, the full paths are taken from the
        run's recipe.

        Args:
            spec: Expected class of the settings.
            opens: If True, the settings are used to open the data, so the code of a dataset of another package is
                loaded. Otherwise, such a dataset is only named.

        Raises:
            UserError: If the settings are of another kind of data, the run's recipe is damaged, or code is not allowed.
        """
        settings = self.card.data_settings
        if settings is None:
            return None
        run, record = self.folder.parent, None
        with suppress(UserError):  # the model may not be in the folder of a run
            record = read_record(run)
        if record is not None:
            record.check_file(run, RECIPE)
        with suppress(UserError):
            run_settings = data_settings(read_yaml(run / RECIPE))
            if run_settings is not None and remove_folders(run_settings) == remove_folders(settings):
                settings = run_settings
        settings = settings if opens else name_datasets(settings)
        return parse(spec, settings, name=f"the recipe in {self.folder / 'card.json'}")

    def readme(self) -> str | None:
        """Return the folder's README.md without local paths; None if there is none or it cannot be read."""
        path = self.folder / "README.md"
        try:
            return self.card.strip_folders(read_text_file(path, MAX_CARD_BYTES)) if path.is_file() else None
        except UserError:
            return None


@dataclass(frozen=True, kw_only=True, repr=False)
class LanguageModel(TrainedModel):
    """A decoder-only model, which continues a text."""

    model: DecoderOnly

    @property
    def task(self) -> TaskKind:
        task = self.card.recipe.get("task")  # a string in recipes of an older version
        return "chat" if isinstance(task, dict) and task.get("kind") == "chat" else "language"

    @property
    def verbs(self) -> tuple[Verb, ...]:
        return "generate", "evaluate"

    def require_chat_template(self) -> str:
        """Return the chat template.

        Raises:
            UserError: If the model has none.
        """
        if self.chat_template is None:
            raise UserError(
                f"{self.folder} is {self.kind} without a chat template; use "
                f"`tercet generate {self.folder}`, or train it on conversations with `tercet train finetune-chat "
                f"--pretrained {self.folder} --data chat.jsonl`"
            )
        return self.chat_template


@dataclass(frozen=True, kw_only=True, repr=False)
class Translator(TrainedModel):
    """An encoder-decoder model, which translates a text."""

    model: EncoderDecoder

    @property
    def task(self) -> TaskKind:
        return "translation"

    @property
    def verbs(self) -> tuple[Verb, ...]:
        return "translate", "evaluate"

    def _rejection(self, verb: Verb) -> str:
        return "which needs a source" if verb == "generate" else super()._rejection(verb)


@dataclass(frozen=True, kw_only=True, repr=False)
class Encoder(TrainedModel):
    """An encoder with any number of heads, which determine what it can predict."""

    model: EncoderOnly

    @property
    def task(self) -> TaskKind:
        spec = self.model.spec
        return "labels" if spec.classifier is not None else "masked" if spec.masked_head is not None else "vectors"

    @property
    def verbs(self) -> tuple[Verb, ...]:
        labels: tuple[Verb, ...] = () if self.model.spec.classifier is None else ("classify",)
        fills: tuple[Verb, ...] = () if self.model.spec.masked_head is None else ("fill",)
        return (*labels, *fills, "embed", "evaluate")

    @property
    def text_len(self) -> int:
        """Maximum number of tokens of a text whose vector is computed, including bos and eos."""
        return min(self.model.max_len, self.sentence.max_len or self.model.max_len)

    @property
    def label_head(self) -> Classifier:
        """The classifier. Raises UserError if the model has none."""
        self.require("classify")
        assert self.model.spec.classifier is not None
        return self.model.spec.classifier

    @property
    def is_reranker(self) -> bool:
        """True if the model was trained on pairs of texts with one label: relevant, or not."""
        head = self.model.spec.classifier
        if head is None or head.problem_type != "multi_label_classification" or len(head.labels) != 1:
            return False
        trained_on = self.trained_on(LabelsSpec)
        return trained_on is not None and trained_on.pair_field is not None

    def require_labels(self, over: Literal["texts", "tokens"]) -> EncoderOnly:
        """Return the model if its classifier assigns labels to `over`: whole texts, or single tokens.

        Raises:
            UserError: If the model has no classifier, or one that does not assign labels to `over`.
        """
        if over != self.label_head.over:
            raise UserError(f"{self.folder} assigns labels to {self.label_head.over}, not to {over}")
        return self.model
