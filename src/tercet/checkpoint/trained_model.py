"""A trained model that knows what it is: its kind in words, what it was trained for, what can be asked of it.

    LanguageModel  goes on writing     Translator  writes one text for another     Encoder  reads, and what its heads do

What a model cannot do is refused here alone, with what it can: `load_model(folder).require("translate").model` is an
`EncoderDecoder`, or there was an error that names the right verb.
"""

from abc import ABC, abstractmethod
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar, overload

from tercet.checkpoint.adapter import Adapter
from tercet.checkpoint.card import Card, data_settings, remove_folders
from tercet.checkpoint.foreign.sentence_folder import SentenceSettings
from tercet.checkpoint.run_record import RECIPE, read_record
from tercet.config import UserError, parse
from tercet.data import ConversationsSpec, LabelsSpec, PairsSpec, TextSpec
from tercet.limits import MOST_CARD_BYTES
from tercet.messages import shorten
from tercet.models import AnyModel, Classifier, DecoderOnly, EncoderDecoder, EncoderOnly
from tercet.notebook import facts_table
from tercet.reading.files import read_text_file
from tercet.settings_yaml import read_yaml
from tercet.tokens import Tokenizer

TaskKind = Literal["language", "chat", "translation", "masked", "labels", "embedding"]
Verb = Literal["generate", "translate", "fill", "classify", "embed", "evaluate"]
Spec = TypeVar("Spec", TextSpec, PairsSpec, LabelsSpec, ConversationsSpec)

KINDS: dict[TaskKind, str] = {
    "language": "a language model",
    "chat": "a chat model",
    "translation": "a translator",
    "masked": "a masked language model",
    "labels": "a classifier",
    "embedding": "an encoder",
}
REJECTIONS: dict[Verb, str] = {
    "generate": "which cannot write",
    "translate": "no translator",
    "fill": "which fills no masks",
    "classify": "no classifier",
    "embed": "no encoder",
    "evaluate": "which fills no masks",
}


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainedModel(ABC):
    """A model as it was loaded: in eval mode, on the CPU, with the folder (or the GGUF file) that it came from.

    Attributes:
        source_tokenizer: the same, but for a translator whose source has a vocabulary of its own.
        chat_template: Jinja text.
        sentence: How an encoder's folder asks for vectors.
        adapter: what was learnt beside the pretrained weights, which is part of the model's weights already; None where
            these learnt themselves.
    """

    model: AnyModel
    tokenizer: Tokenizer
    source_tokenizer: Tokenizer
    card: Card = field(default_factory=Card)
    chat_template: str | None = None
    adapter: Adapter | None = None
    sentence: SentenceSettings = field(default_factory=SentenceSettings)
    folder: Path

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.describe()})"

    def _repr_html_(self) -> str:
        return self.to_html()

    def to_html(self) -> str:
        """What it is, as a table."""
        facts = self.card.facts(self.model.spec, n_parameters=self.n_parameters)
        return facts_table({name: shorten(facts[name]) for name in facts if "hash" not in name}, title=self.describe())

    def describe(self) -> str:
        """Where it is, what it is, and how good it was, in a line."""
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
        folder: Path,
    ) -> "TrainedModel":
        """The model as what it is; `source_tokenizer` where the source has its own."""
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
            folder=folder,
        )

    @property
    @abstractmethod
    def task(self) -> TaskKind:
        """What it was trained for: in a recipe, the task's kind; "embedding" for an encoder without a head."""

    @property
    def kind(self) -> str:
        """What it is in words."""
        return KINDS[self.task]

    @property
    @abstractmethod
    def verbs(self) -> tuple[Verb, ...]:
        """What can be asked of it, what it is for first."""

    @property
    def separate_source_tokenizer(self) -> Tokenizer | None:
        """The source's, where it is another than the target's."""
        return None if self.source_tokenizer is self.tokenizer else self.source_tokenizer

    @property
    def n_parameters(self) -> int:
        """How many there are, tied ones counted once."""
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
        """The same, typed as what can be asked this.

        Raises:
            UserError: where it cannot, with what it is and the verb for it.
        """
        if verb not in self.verbs:
            raise UserError(
                f"{self.folder} is {self.kind}, {self._rejection(verb)}: use `tercet {self.verbs[0]} {self.folder}`"
            )
        return self

    def _rejection(self, verb: Verb) -> str:
        return REJECTIONS[verb]

    def trained_on(self, spec: type[Spec]) -> Spec | None:
        """The settings of the data that it was trained on, where its card has them.

        A card names no folders. Within its run the model's data are where the run's recipe says.

        Raises:
            UserError: where they are not of this kind, or the run's recipe is damaged.
        """
        settings = self.card.data_settings
        if settings is None:
            return None
        run, record = self.folder.parent, None
        with suppress(UserError):  # what stands beside a folder may be no run's
            record = read_record(run)
        if record is not None:
            record.check_file(run, RECIPE)
        with suppress(UserError):
            run_settings = data_settings(read_yaml(run / RECIPE))
            if run_settings is not None and remove_folders(run_settings) == remove_folders(settings):
                settings = run_settings
        return parse(spec, settings, name=f"the recipe in {self.folder / 'card.json'}")

    def readme(self) -> str | None:
        """What the folder says of the model, in Markdown and as it may leave this machine; None where it says nothing
        that can be read."""
        path = self.folder / "README.md"
        try:
            return self.card.strip_folders(read_text_file(path, MOST_CARD_BYTES)) if path.is_file() else None
        except UserError:
            return None


@dataclass(frozen=True, kw_only=True, repr=False)
class LanguageModel(TrainedModel):
    """A model that goes on writing."""

    model: DecoderOnly

    @property
    def task(self) -> TaskKind:
        task = self.card.recipe.get("task")  # in the recipes of an older version it was a name
        return "chat" if isinstance(task, dict) and task.get("kind") == "chat" else "language"

    @property
    def verbs(self) -> tuple[Verb, ...]:
        return "generate", "evaluate"

    def require_chat_template(self) -> str:
        """The template of its conversations.

        Raises:
            UserError: where it has none, with what it takes instead.
        """
        if self.chat_template is None:
            raise UserError(
                f"{self.folder} is {self.kind} without a chat template, so it knows no conversations: use "
                f"`tercet generate {self.folder}`, or train it on some with `tercet train finetune-chat --pretrained "
                f"{self.folder} --data chat.jsonl`"
            )
        return self.chat_template


@dataclass(frozen=True, kw_only=True, repr=False)
class Translator(TrainedModel):
    """A model that writes a text for another."""

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
    """A model that reads: what it is depends on its heads, of which it may have several or none."""

    model: EncoderOnly

    @property
    def task(self) -> TaskKind:
        spec = self.model.spec
        return "labels" if spec.classifier is not None else "masked" if spec.masked_head is not None else "embedding"

    @property
    def verbs(self) -> tuple[Verb, ...]:
        labels: tuple[Verb, ...] = () if self.model.spec.classifier is None else ("classify",)
        fills: tuple[Verb, ...] = () if self.model.spec.masked_head is None else ("fill",)
        return (*labels, *fills, "embed", *(("evaluate",) if labels or fills else ()))

    @property
    def text_len(self) -> int:
        """How many tokens of a text become its vector."""
        return min(self.model.max_len, self.sentence.max_len or self.model.max_len)

    @property
    def label_head(self) -> Classifier:
        """Raises UserError where it gives no labels."""
        self.require("classify")
        assert self.model.spec.classifier is not None
        return self.model.spec.classifier

    def require_labels(self, over: Literal["texts", "tokens"]) -> EncoderOnly:
        """The model, where it gives labels to `over`; else UserError."""
        if over != self.label_head.over:
            raise UserError(f"{self.folder} gives labels to {self.label_head.over}, not to {over}")
        return self.model
