"""Tercet from Python: train a model, load one, and use it.

run = tercet.train("demo", data="my_texts/", out="runs/mine", set={"training.max_steps": 500})
print(run.generate("Once upon a time", temperature=0.8))
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tercet.checkpoint import Card, Trained, load_model
from tercet.config import Plain, UserError, merge, parse, plain
from tercet.data import Corpus, DataSpec, HeldOut, Packed, prepare
from tercet.evaluate import LanguageScores, bigram, compressed, score, unigram
from tercet.generation import Sampling, generate, stream_text
from tercet.models import DecoderOnly
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class Run:
    """A trained model with its tokenizer, and the folder that it came from."""

    trained: Trained

    @property
    def model(self) -> DecoderOnly:
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

    def generate(self, prompt: str = "", **sampling: Any) -> str:
        """What the model writes after `prompt`; the keywords are those of `Sampling`."""
        return generate(self.model, self.tokenizer, [prompt], Sampling(**sampling))[0].text

    def stream(self, prompt: str = "", **sampling: Any) -> Iterator[str]:
        """The text of `generate`, piece by piece as it is written."""
        return stream_text(self.model, self.tokenizer, prompt, Sampling(**sampling))

    def evaluate(self, data: str | Path | None = None, **settings: Any) -> LanguageScores:
        """Scores on the validation part of the training's data, or on the whole of `data`; settings as in `score`."""
        return scores(self.trained, text_to_score(self.trained, data), **settings)


def train(
    recipe: str,
    *,
    data: str | Path | None = None,
    out: str | Path | None = None,
    set: Mapping[str, Any] | None = None,  # the name of the command line's flag
    quiet: bool = False,
) -> Run:
    """Train as the recipe says, as `tercet train` does.

    Args:
        recipe: a packaged recipe's name or a YAML file's path.
        data: a file, folder or named dataset in place of the recipe's.
        out: the run's folder, runs/<recipe> by default; a run that is there already is resumed.
        set: changes such as {"training.max_steps": 500}.

    Raises:
        UserError: where recipe, data or settings do not fit.
    """
    from tercet import training

    changes: Plain = {} if data is None else {"data": {"source": str(data)}}
    for path, value in (set or {}).items():
        changes = merge(changes, _nested(path, value))
    out = default_folder(recipe) if out is None else Path(out)
    return load(training.train(training.load_recipe(recipe, changes), out, quiet=quiet))


def load(path: str | Path) -> Run:
    """The model in a run's folder (the best one) or in a model's.

    Raises:
        UserError: where there is none, or its files are broken.
    """
    return Run(trained=load_model(path))


def default_folder(recipe: str) -> Path:
    return Path("runs", Path(recipe).stem)


def text_to_score(trained: Trained, data: str | Path | None = None, *, encoding: str | None = None) -> Corpus:
    """The corpus whose validation part a model is scored on: its training's, or all of `data`.

    Raises:
        UserError: where the data is not there, or no longer what the model was trained on.
    """
    known = trained.card.recipe.get("data")
    old = None if known is None else parse(DataSpec, known, name=f"the recipe in {trained.folder / 'card.json'}")
    if data is not None:
        settings = {"encoding": encoding or "utf-8", "text_field": old.text_field if old else "text"}
        spec = parse(DataSpec, {"source": str(data), **settings, "validation": plain(HeldOut(source=str(data)))})
        return prepare(spec, tokenizer=trained.tokenizer)
    if old is None:
        raise UserError(f"{trained.folder} does not say what it was trained on; give --data")
    corpus = prepare(old, tokenizer=trained.tokenizer)
    if trained.card.data_hash and corpus.hash != trained.card.data_hash:
        raise UserError(f"{old.source} has changed since the training, and may hold what was trained on; give --data")
    return corpus


def scores(trained: Trained, corpus: Corpus, **settings: Any) -> LanguageScores:
    """The model's scores on the validation part of `corpus`; documents stand alone where they did in training."""
    rows = trained.card.recipe.get("data", {}).get("rows", plain(Packed()))
    alone = rows["kind"] != "packed" or rows["document_mask"]
    n_bytes = trained.tokenizer.count_bytes(corpus.validation[1:])
    if alone:  # a document's first token is not predicted from the one before it
        n_bytes -= trained.tokenizer.count_bytes(corpus.validation[corpus.validation_documents[1:]])
    return score(
        trained.model,
        corpus.validation,
        n_bytes=n_bytes,
        special_ids=trained.tokenizer.special_ids,
        document_starts=corpus.validation_documents if alone else None,
        **settings,
    )


def baselines(corpus: Corpus) -> dict[str, LanguageScores | float]:
    """What counting and compressing reach on the same text: the counts are the training part's."""
    tokenizer, ids = corpus.tokenizer, corpus.validation
    counted: Plain = {
        "vocab_size": tokenizer.vocab_size,
        "n_bytes": tokenizer.count_bytes(ids[1:]),
        "special_ids": tokenizer.special_ids,
    }
    ends = [*corpus.validation_documents[1:], len(ids)]
    texts = (tokenizer.decode(ids[start:end]) for start, end in zip(corpus.validation_documents, ends, strict=True))
    return {
        "unigram": unigram(corpus.train, ids, **counted),
        "bigram": bigram(corpus.train, ids, **counted),
        **compressed(texts),
    }


def _nested(path: str, value: Any) -> Plain:
    nested: Any = value
    for key in reversed(path.split(".")):
        nested = {key: nested}
    return nested
