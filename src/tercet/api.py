"""Tercet from Python: train a model, load one, and use it.

run = tercet.train("demo", data="my_texts/", out="runs/mine", set={"training.max_steps": 500})
print(run.generate("Once upon a time", temperature=0.8))

run = tercet.train("numbers", out="runs/numbers")
print(run.translate("twenty-seven"))

run = tercet.load("runs/bert")
print(run.fill("The [MASK] sat.").masks[0][0].word, run.embed(["one text", "another"]).shape)

compared = tercet.compare(["nanogpt-cpu"], vary={"model.stack.placement": ["pre", "post"]}, seeds=[1, 2, 3])
print(compared.rows[0].name, compared.rows[0].scores["nats_per_token"].mean)

with tercet.Engine(tercet.load("runs/mine")) as engine:
    streams = [engine.submit("Once upon a time", seed=seed) for seed in range(8)]
    print([stream.text() for stream in streams])

tercet.convert("runs/mine", "mine-for-transformers", to="hf")
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch

from tercet.checkpoint import Card, Trained, load_model
from tercet.checkpoint import convert as convert
from tercet.config import Plain, UserError, merge, nested
from tercet.encoding import Classified, Filled, Tagged, classify, embed, fill, tag
from tercet.evaluate import (
    LabelScores,
    LanguageScores,
    MaskedScores,
    TranslationScores,
    classifier,
    encoder,
    kind_of,
    labels_to_score,
    language_model,
    masked_model,
    masked_scores,
    score_labels,
    scores_of,
    text_to_score,
    translation_scores,
    translator,
)
from tercet.explorer import explore
from tercet.generation import (
    Beam,
    Draft,
    Lookup,
    Sampling,
    Translation,
    draft_for,
    generate,
    stream_text,
    translate,
)
from tercet.inspect.recording import Recording, read
from tercet.models import AnyModel
from tercet.nn.linear import WeightDtype, quantize
from tercet.serve.engine import Engine as Engine
from tercet.tokens import Tokenizer
from tercet.training.compare_runs import compare as compare


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained model with its tokenizer, and the folder that it came from."""

    trained: Trained

    @property
    def model(self) -> AnyModel:
        return self.trained.model

    @property
    def tokenizer(self) -> Tokenizer:
        return self.trained.tokenizer

    @property
    def card(self) -> Card:
        return self.trained.card

    @property
    def folder(self) -> Path:
        return self.trained.folder

    def to(self, device: str | torch.device) -> "Run":
        """The same run, its model moved to `device`."""
        self.model.to(device)
        return self

    def quantize(self, narrow: WeightDtype) -> "Run":
        """The same run, its weights in fewer bits from now on; see `tercet.nn.quantize`."""
        quantize(self.model, narrow)
        return self

    def generate(
        self,
        prompt: str = "",
        *,
        draft: "Run | None" = None,
        lookup: bool | int = False,
        draft_tokens: int | None = None,
        **sampling: Any,
    ) -> str:
        """What a language model writes after `prompt`; the other keywords are those of `Sampling`.

        Args:
            draft: a smaller model with the same tokenizer that guesses tokens; this one reads them at once, and keeps
                those that leave its own distribution as it is.
            lookup: guess what followed the last tokens, so many, when they last stood in the text; True for 3.
            draft_tokens: how many to guess at most.

        Raises:
            UserError: for a draft with another tokenizer.
        """
        guesses = self._guesses(draft, lookup, draft_tokens)
        model = language_model(self.trained)
        return generate(model, self.tokenizer, [prompt], Sampling(**sampling), guesses=guesses)[0].text

    def stream(
        self,
        prompt: str = "",
        *,
        draft: "Run | None" = None,
        lookup: bool | int = False,
        draft_tokens: int | None = None,
        **sampling: Any,
    ) -> Iterator[str]:
        """The text of `generate`, piece by piece as it is written."""
        guesses = self._guesses(draft, lookup, draft_tokens)
        return stream_text(language_model(self.trained), self.tokenizer, prompt, Sampling(**sampling), guesses=guesses)

    def _guesses(self, draft: "Run | None", lookup: bool | int, draft_tokens: int | None) -> Draft | Lookup | None:
        tokens = {} if draft_tokens is None else {"tokens": draft_tokens}
        if draft is not None and lookup is not False:
            raise ValueError("draft and lookup both guess what comes next; give one of them")
        if draft is not None:
            return draft_for(self.tokenizer, language_model(draft.trained), draft.tokenizer, **tokens)
        if lookup is not False:
            return Lookup(**({} if lookup is True else {"ngram": lookup}), **tokens)
        if tokens:
            raise ValueError(f"draft_tokens={draft_tokens} is for a draft or a lookup; give one of them")
        return None

    @overload
    def translate(self, texts: str, **settings: Any) -> str: ...

    @overload
    def translate(self, texts: list[str], **settings: Any) -> list[str]: ...

    def translate(self, texts: str | list[str], **settings: Any) -> str | list[str]:
        """The best translation of a text, or of each in a list; settings as in `translations`."""
        best = [answers[0].text for answers in self.translations(texts, **settings)]
        return best[0] if isinstance(texts, str) else best

    def translations(
        self,
        texts: str | Sequence[str],
        *,
        search: Beam | Sampling | None = None,
        prefixes: Sequence[str] | None = None,
        batch_tokens: int = 4096,
        **beam: Any,
    ) -> list[list[Translation]]:
        """For each text its translations, best first, with their scores and tokens.

        Args:
            search: how to look for them; or, in its place, keywords of `Beam`, such as size=1 or n_best=5.
            prefixes: for each text how its translation begins.
            batch_tokens: source tokens at once, counted for each hypothesis.
        """
        if search is not None and beam:
            raise ValueError(f"{', '.join(beam)}: settings of a beam, beside search={search}; give one or the other")
        return translate(
            translator(self.trained), self.tokenizer, [texts] if isinstance(texts, str) else texts,
            Beam(**beam) if search is None else search, source_tokenizer=self.trained.source_tokenizer,
            prefixes=prefixes, batch_tokens=batch_tokens,
        )  # fmt: skip

    @overload
    def fill(self, texts: str, top: int | None = None, only: Sequence[str] | None = None) -> Filled: ...

    @overload
    def fill(self, texts: list[str], top: int | None = None, only: Sequence[str] | None = None) -> list[Filled]: ...

    def fill(
        self, texts: str | list[str], top: int | None = None, only: Sequence[str] | None = None
    ) -> Filled | list[Filled]:
        """What may stand where a text has [MASK], or each in a list: for each mask the likeliest tokens.

        Args:
            top: so many at most; 5 by default, or all the words of `only`.
            only: these words in place of the vocabulary.
        """
        every = [texts] if isinstance(texts, str) else texts
        found = fill(masked_model(self.trained), self.tokenizer, every, top=top, only=only)
        return found[0] if isinstance(texts, str) else found

    def embed(self, texts: str | Sequence[str], **settings: Any) -> np.ndarray:
        """The vector of a text (D,), or of each in a list (N, D); settings as in `tercet.encoding.embed`."""
        every = [texts] if isinstance(texts, str) else texts
        vectors = embed(encoder(self.trained), self.tokenizer, every, **settings).vectors
        return vectors[0] if isinstance(texts, str) else vectors

    @overload
    def classify(self, texts: str) -> Classified: ...

    @overload
    def classify(self, texts: list[str]) -> list[Classified]: ...

    def classify(self, texts: str | list[str]) -> Classified | list[Classified]:
        """The label of a text, or of each in a list, with its probability; for labels of words there is `tag`."""
        every = [texts] if isinstance(texts, str) else texts
        found = classify(classifier(self.trained, "texts"), self.tokenizer, every)
        return found[0] if isinstance(texts, str) else found

    def tag(self, sentences: Sequence[Sequence[str]]) -> list[Tagged]:
        """The label of each word in each list of words, with its probability."""
        return tag(classifier(self.trained, "tokens"), self.tokenizer, sentences)

    def evaluate(
        self, data: str | Path | None = None, **settings: Any
    ) -> LanguageScores | TranslationScores | MaskedScores | LabelScores:
        """How good the model is on text that it has not seen.

        A language model: on the validation part of the training's data, or on the whole of `data`; settings as in
        `score`. A translator: on its dataset's test part, else its validation part, or on other pairs; settings as in
        `translation_scores`. A masked language model: as a language model; settings as in `score_masked`. A classifier:
        on the validation part of its labelled texts, or on the whole file `data`; settings as in `score_labels`.
        """
        _, verb = kind_of(self.trained)
        if verb == "classify":
            labelled = labels_to_score(self.trained, data)
            return score_labels(classifier(self.trained), self.tokenizer, labelled, **settings)
        if verb in ("fill", "embed"):
            return masked_scores(self.trained, text_to_score(self.trained, data), **settings)
        if self.trained.model.spec.family == "encoder-decoder":
            if data is not None:
                raise UserError("a translator is scored on pairs: give source=... and target=... in place of data")
            return translation_scores(self.trained, **settings).scores
        return scores_of(self.trained, text_to_score(self.trained, data), **settings)

    def read(self, text: str = "", **how: Any) -> Recording:
        """One text through the model, and every tensor on the way; the keywords are those of `tercet.inspect.read`."""
        return read(self.trained, text, **how)

    def explore(
        self,
        prompt: str | None = None,
        *,
        target: str | None = None,
        export: str | Path | None = None,
        host: str = "127.0.0.1",
        port: int = 8765,
        open: bool = False,  # the name of the command line's flag
    ) -> None:
        """A page that shows what happens inside: served until it is stopped, or written to the file `export`.

        Args:
            prompt: the text to open with; a line of the validation part by default.
            target: what a translator's decoder reads; what it writes itself by default.
            port: or the next free one; 0 takes any.
            open: open the page in the browser.

        Raises:
            UserError: where the text cannot be read, the page would be too large, or starlette and uvicorn are missing.
        """
        explore(self.trained, prompt, target=target, export=export, host=host, port=port, browse=open)

    def serve(self, *beside: "Run", **settings: Any) -> None:
        """Answer over HTTP with this model, and those beside it, until a signal ends it; each is called as its folder.

        Args:
            beside: other models to serve at one address.
            settings: host, port, limits, ... as in `tercet.serve.server.serve`.

        Raises:
            UserError: where two are called alike, it cannot be opened there, or a package is missing.
        """
        from tercet.serve.required_packages import require_packages

        require_packages()
        from tercet.serve.server import name_models, serve

        runs = (self, *beside)
        names = name_models([run.folder.parent if run.folder.name in ("best", "last") else run.folder for run in runs])
        serve({name: run.trained for name, run in zip(names, runs, strict=True)}, **settings)


def train(
    recipe: str,
    *,
    data: str | Path | None = None,
    source: str | Path | None = None,
    target: str | Path | None = None,
    validation_source: str | Path | None = None,
    validation_target: str | Path | None = None,
    pretrained: str | Path | None = None,
    out: str | Path | None = None,
    set: Mapping[str, Any] | None = None,  # the name of the command line's flag
    quiet: bool = False,
) -> Run:
    """Train as the recipe says, as `tercet train` does.

    Args:
        recipe: a packaged recipe's name or a YAML file's path.
        data: a file, folder or named dataset in place of the recipe's, where it trains a language model.
        source, target: the same where it trains a translator: two files, line by line; or, without target, one .tsv or
            .jsonl file of pairs or a named dataset.
        validation_source, validation_target: pairs to validate on, in files of their own.
        pretrained: the folder of a model to go on from: its sizes, tokenizer and weights.
        out: the run's folder, runs/<recipe> by default; a run that is there already is resumed.
        set: changes such as {"training.max_steps": 500}.

    Raises:
        UserError: where recipe, data or settings do not fit.
    """
    from tercet import training

    changes: Plain = {}
    for path, value in (set or {}).items():
        changes = merge(changes, nested(path, value))
    files = {
        "data": data, "source": source, "target": target,
        "validation_source": validation_source, "validation_target": validation_target, "pretrained": pretrained,
    }  # fmt: skip
    paths = {name: str(path) for name, path in files.items() if path is not None}
    out = default_folder(recipe) if out is None else Path(out)
    return load(training.train(recipe_with(recipe, changes, out=out, **paths), out, quiet=quiet))


def recipe_with(
    name: str,
    changes: Plain,
    *,
    out: Path,
    data: str | None = None,
    source: str | None = None,
    target: str | None = None,
    validation_source: str | None = None,
    validation_target: str | None = None,
    pretrained: str | None = None,
) -> Any:
    """The recipe with `changes`, other data and another beginning; arguments as in `train`.

    Raises:
        UserError: where there is no such recipe, something in it does not fit, or its family learns from other data.
    """
    from tercet.training.recipe import parse_recipe, read_settings, task_kind, with_pretrained_copy

    if target is not None and source is None:
        raise UserError(f"the target {target} needs its source: give --source F as well")
    if validation_target is not None and validation_source is None:
        raise UserError(f"the target {validation_target} needs its source: give --validation-source F as well")
    settings = read_settings(name, changes)
    if pretrained is not None:
        settings = merge(settings, {"pretrained": pretrained})
    settings = with_pretrained_copy(settings, out)
    translates = task_kind(settings, name=f"recipe {name}") == "translation"
    if translates and data is not None:
        raise UserError(
            f"the recipe {name} trains a translator, which learns from pairs: give --source F --target F "
            "in place of --data (a .tsv or .jsonl file or a named dataset of pairs needs no --target)"
        )
    if not translates and (source or validation_source) is not None:
        raise UserError(f"the recipe {name} trains a language model, which learns from text: give --data PATH")
    if data is not None:
        settings = merge(settings, {"data": {"source": data}})
    if source is not None:
        # The recipe's languages are those of its own data; files that need none to be read may be in any.
        unknown = target is not None or source.endswith((".tsv", ".tsv.gz"))
        languages = dict.fromkeys(("source_language", "target_language")) if unknown else {}
        chosen = {key: changes["data"][key] for key in languages if key in changes.get("data", {})}
        settings = merge(settings, {"data": {**languages, **chosen, "source": source, "target": target}})
    if validation_source is not None:
        held_out = {"kind": "held_out", "source": validation_source, "target": validation_target}
        settings = merge(settings, {"data": {"validation": held_out}})
    return parse_recipe(settings, name=f"recipe {name}")


def load(path: str | Path) -> Run:
    """The model in a run's folder (the best one) or in a model's.

    Raises:
        UserError: where there is none, or its files are broken.
    """
    return Run(trained=load_model(path))


def default_folder(recipe: str) -> Path:
    return Path("runs", Path(recipe).stem)
