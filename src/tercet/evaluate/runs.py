"""What a trained model is scored on, unless another text is given: what its own data kept from training.

Files that have changed since are refused, for what is held out now may have been learnt from then.
"""

import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from rich.progress import track

from tercet.checkpoint import Trained
from tercet.config import Plain, UserError, parse, plain
from tercet.data import (
    PAIR_DATASETS,
    Corpus,
    DataSpec,
    HeldOut,
    Labelled,
    LabelsSpec,
    PairFiles,
    PairsSpec,
    pairs_of,
    prepare,
    prepare_labelled,
    prepare_pairs,
)
from tercet.data.pair_datasets import languages
from tercet.evaluate.baselines import bigram, compressed, unigram
from tercet.evaluate.language import score
from tercet.evaluate.masked import MaskedScores, pseudo_perplexity, score_masked
from tercet.evaluate.pairs import score_pairs
from tercet.evaluate.protocols import Protocol
from tercet.evaluate.scores import LanguageScores
from tercet.evaluate.translation import TranslationScores, perplexity, score_translations
from tercet.generation import Beam, translate_stream
from tercet.models import DecoderOnly, EncoderDecoder, EncoderOnly

Part = Literal["validation", "test"]
Spec = TypeVar("Spec", DataSpec, PairsSpec, LabelsSpec)


@dataclass(frozen=True, kw_only=True)
class Translated:
    """Translations beside what they are scored against.

    Attributes:
        pairs: of source and reference.
        written: the translation of each.
        language: the target's, where it is known.
    """

    scores: TranslationScores
    pairs: tuple[tuple[str, str], ...]
    written: tuple[str, ...]
    language: str | None


def language_model(trained: Trained) -> DecoderOnly:
    """The model, where it is one that goes on writing; UserError with the right verb where it is not."""
    if isinstance(trained.model, DecoderOnly):
        return trained.model
    raise _wrong(trained, "which needs a source" if isinstance(trained.model, EncoderDecoder) else "which cannot write")


def translator(trained: Trained) -> EncoderDecoder:
    """The model, where it translates; UserError with the right verb where it does not."""
    if isinstance(trained.model, EncoderDecoder):
        return trained.model
    raise _wrong(trained, "no translator")


def encoder(trained: Trained) -> EncoderOnly:
    """The model, where it makes vectors of texts; UserError with the right verb where it does not."""
    if isinstance(trained.model, EncoderOnly):
        return trained.model
    raise _wrong(trained, "no encoder")


def masked_model(trained: Trained) -> EncoderOnly:
    """The model, where it fills masks; UserError with the right verb where it does not."""
    if isinstance(trained.model, EncoderOnly) and trained.model.spec.masked_head is not None:
        return trained.model
    raise _wrong(trained, "which fills no masks")


def classifier(trained: Trained, over: Literal["texts", "tokens"] | None = None) -> EncoderOnly:
    """The model, where it gives labels, to `over` where that is said; UserError with the right verb where not."""
    if isinstance(trained.model, EncoderOnly) and (head := trained.model.spec.classifier) is not None:
        if over not in (None, head.over):
            raise UserError(f"{trained.folder} gives labels to {head.over}, not to {over}")
        return trained.model
    raise _wrong(trained, "no classifier")


def kind_of(trained: Trained) -> tuple[str, str]:
    """What the model is in words, and the verb that it is for."""
    if isinstance(trained.model, DecoderOnly):
        return "a language model", "generate"
    if isinstance(trained.model, EncoderDecoder):
        return "a translator", "translate"
    if trained.model.spec.classifier is not None:
        return "a classifier", "classify"
    if trained.model.spec.masked_head is not None:
        return "a masked language model", "fill"
    return "an encoder", "embed"


def _wrong(trained: Trained, why: str) -> UserError:
    what, verb = kind_of(trained)
    return UserError(f"{trained.folder} is {what}, {why}: use `tercet {verb} {trained.folder}`")


def text_to_score(trained: Trained, data: str | Path | None = None, *, encoding: str | None = None) -> Corpus:
    """The corpus whose validation part a model of text is scored on: its training's, or all of `data`.

    Raises:
        UserError: where the data is not there, or no longer what the model was trained on.
    """
    old = _trained_on(trained, DataSpec)
    if data is not None:
        settings = {"encoding": encoding or "utf-8", "text_field": old.text_field if old else "text"}
        spec = parse(DataSpec, {"source": str(data), **settings, "validation": plain(HeldOut(source=str(data)))})
        return prepare(spec, tokenizer=trained.tokenizer)
    if old is None:
        raise UserError(f"{trained.folder} does not say what it was trained on; give --data")
    corpus = prepare(old, tokenizer=trained.tokenizer)
    _check_unchanged(trained, old.source, corpus.hash, "--data")
    return corpus


def scores_of(trained: Trained, corpus: Corpus, **settings: Any) -> LanguageScores:
    """The model's scores on the validation part of `corpus`; documents stand alone where they did in training."""
    model = language_model(trained)
    old = _trained_on(trained, DataSpec)
    apart = old is not None and old.documents_apart
    n_bytes = trained.tokenizer.count_bytes(corpus.validation[1:])
    if apart:  # a document's first token is not predicted from the one before it
        n_bytes -= trained.tokenizer.count_bytes(corpus.validation[corpus.validation_documents[1:]])
    return score(
        model,
        corpus.validation,
        n_bytes=n_bytes,
        special_ids=trained.tokenizer.special_ids,
        document_starts=corpus.validation_documents if apart else None,
        **settings,
    )


def baselines_of(corpus: Corpus) -> dict[str, LanguageScores | float]:
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


def masked_scores(trained: Trained, corpus: Corpus, **settings: Any) -> MaskedScores:
    """How well the model fills masks on the validation part of `corpus`; settings as in `score_masked`."""
    old = _trained_on(trained, DataSpec)
    apart = old is not None and old.documents_apart
    return score_masked(masked_model(trained), trained.tokenizer, corpus, documents_apart=apart, **settings)


def pseudo_perplexity_of(trained: Trained, corpus: Corpus, texts: int, *, within_word: bool = False) -> float:
    """The pseudo-perplexity of the first texts of the validation part: documents, cut to what the model takes."""
    tokenizer, ids = trained.tokenizer, corpus.validation
    starts = corpus.validation_documents[:texts]
    ends = [*corpus.validation_documents[1:], len(ids)]
    # Of a long document no more is decoded than is read.
    spans = [ids[start : min(end, start + trained.model.max_len)] for start, end in zip(starts, ends, strict=False)]
    read = [tokenizer.decode(span.tolist()) for span in spans]
    return pseudo_perplexity(masked_model(trained), tokenizer, read, within_word=within_word)


def labels_to_score(trained: Trained, data: str | Path | None = None, *, encoding: str | None = None) -> Labelled:
    """The labelled texts that a classifier is scored on: its own data's validation part, or all of the file `data`.

    Raises:
        UserError: where the data is not there, or no longer what the model was trained on.
    """
    head = classifier(trained).spec.classifier
    assert head is not None
    old = _trained_on(trained, LabelsSpec)
    if data is None and old is None:
        raise UserError(f"{trained.folder} does not say what it was trained on; give --data")
    if data is None:
        assert old is not None
        corpus = prepare_labelled(old, tokenizer=trained.tokenizer)
        _check_unchanged(trained, old.source, corpus.hash, "--data")
        return corpus.validation
    fields = {"text_field": old.text_field, "label_field": old.label_field} if old else {}
    given = {"source": str(data), "over": head.over, "encoding": encoding or "utf-8", **fields}
    spec = parse(LabelsSpec, {**given, "validation": {"kind": "held_out", "source": str(data)}})
    return prepare_labelled(spec, tokenizer=trained.tokenizer).validation


def pairs_to_score(
    trained: Trained,
    source: str | Path | None = None,
    target: str | Path | None = None,
    *,
    part: Part | None = None,
    encoding: str | None = None,
) -> tuple[tuple[tuple[str, str], ...], str | None]:
    """The pairs that a translator is scored on, and the target's language where it is known.

    By default the test part of the named dataset that it was trained on; of files, what was kept for validation.

    Args:
        source, target: other pairs, all of them: two files, or one .tsv or .jsonl file, or a named dataset.
        part: of a named dataset, or "validation" of the files trained on.

    Raises:
        UserError: where the pairs are not there, or no longer what the model was trained on.
    """
    old = _trained_on(trained, PairsSpec)
    if target is not None and source is None:
        raise UserError(f"--target {target} needs its source: give --source as well")
    if source is None:
        if old is None:
            raise UserError(f"{trained.folder} does not say what it was trained on; give --source and --target")
        spec = old
    else:
        base = old or PairsSpec(source="")
        known = {"source_language": base.source_language, "target_language": base.target_language}
        given = {"source": str(source), "target": None if target is None else str(target)}
        spec = parse(PairsSpec, {**given, **known, "encoding": encoding or "utf-8"})
    named = spec.target is None and spec.source in PAIR_DATASETS
    language = languages(spec)[1] if named else spec.target_language
    if source is not None and not named:
        if part is not None:
            raise UserError(f"--part {part}: {source} has no parts, all of it is scored; leave --part out")
        files = PairFiles(
            source=Path(source).expanduser(),
            target=None if target is None else Path(target).expanduser(),
            encoding=spec.encoding,
            source_field=spec.source_language or "source",
            target_field=spec.target_language or "target",
        )
        return tuple(files.pairs()), language
    part = part or ("test" if named else "validation")
    if part == "test" or source is not None:
        return tuple(pairs_of(spec, part)), language
    corpus = prepare_pairs(spec, tokenizer=trained.tokenizer, source_tokenizer=trained.source_tokenizer)
    _check_unchanged(trained, spec.source, corpus.hash, "--source and --target")
    return corpus.validation_texts, language


def translation_scores(
    trained: Trained,
    source: str | Path | None = None,
    target: str | Path | None = None,
    *,
    part: Part | None = None,
    encoding: str | None = None,
    search: Beam | None = None,
    protocol: Protocol = "detokenised",
    language: str | None = None,
    batch_tokens: int = 4096,
    progress: bool = False,
) -> Translated:
    """Translate and score; which pairs, see `pairs_to_score`, and how, see `score_translations`.

    Args:
        search: beam 5 by default.
        language: the target's, where the data does not say it.
        progress: show a bar on stderr, where that is a terminal.

    Raises:
        UserError: as those two, and where the model is no translator.
    """
    model, search = translator(trained), Beam() if search is None else search
    pairs, known = pairs_to_score(trained, source, target, part=part, encoding=encoding)
    language = language or known
    if not pairs:
        raise UserError(f"{source} has no pair to score; give a file with some")
    if protocol == "lc-tok":  # what it lacks is told now, not after the translating
        score_translations(["a"], ["a"], protocol=protocol, language=language)
    own, lines = trained.source_tokenizer, (source for source, _ in pairs)
    answers = translate_stream(model, trained.tokenizer, lines, search, source_tokenizer=own, batch_tokens=batch_tokens)
    if progress and sys.stderr.isatty():
        answers = track(answers, "translating", total=len(pairs), transient=True)
    written = tuple(answer[0].text for answer in answers)
    of_pairs = score_pairs(model, trained.tokenizer, pairs, source_tokenizer=own)
    tokens = sum(one.tokens for one in of_pairs)
    nats = -sum(one.logprob for one in of_pairs) / tokens
    found = score_translations(written, [reference for _, reference in pairs], protocol=protocol, language=language)
    cut = sum(one.truncated for one in of_pairs)
    told = (f"{cut:,} pairs are longer than the model takes, and were cut to {model.max_len} tokens",) if cut else ()
    return Translated(
        scores=replace(
            found,
            nll_nats_per_token=nats,
            perplexity=perplexity(nats),
            tokens=tokens,
            search=search.name,
            notes=(*found.notes, *told),
        ),
        pairs=pairs,
        written=written,
        language=language,
    )


def _trained_on(trained: Trained, spec: type[Spec]) -> Spec | None:
    """The data's settings, where the model's card has them."""
    known = trained.card.data_settings
    return None if known is None else parse(spec, known, name=f"the recipe in {trained.folder / 'card.json'}")


def _check_unchanged(trained: Trained, source: str, content: str, flags: str) -> None:
    if trained.card.data_hash and content != trained.card.data_hash:
        raise UserError(f"{source} has changed since the training, and may hold what was trained on; give {flags}")
