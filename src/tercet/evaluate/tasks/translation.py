"""Evaluation of a translation model: BLEU, chrF and likelihood of the references."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import track

from tercet.checkpoint import Translator
from tercet.checkpoint.training_data import apply_languages, find_training_data, open_training_data, other_data_hint
from tercet.config import UserError, parse
from tercet.data import PAIR_DATASETS, PairsSpec, ParallelCorpus, read_pairs
from tercet.data.datasets.pair_datasets import open_pairs, target_language
from tercet.data.sources.custom_dataset import CustomDataset, plain_source
from tercet.evaluate.bootstrap import WeightedScores
from tercet.evaluate.comparison import Comparison, compare, paired_bootstrap
from tercet.evaluate.custom_metrics import CustomMetric, Metrics, check_metrics, measure_metrics, read_metrics
from tercet.evaluate.digest import digest
from tercet.evaluate.pairs import score_pairs
from tercet.evaluate.protocols import Protocol, bleu_tokenizer, prepare_texts
from tercet.evaluate.tasks.evaluation import Evaluation, HeldOutScores, Part
from tercet.evaluate.translation import TranslationScores, perplexity, score_translations
from tercet.generation import Beam, translate_stream
from tercet.messages import counted


@dataclass(frozen=True, kw_only=True)
class ScoredPairs:
    """Pairs of source and reference, and the target language, which is None if it is not known."""

    pairs: tuple[tuple[str, str], ...]
    language: str | None


@dataclass(frozen=True, kw_only=True)
class TranslationResult:
    """Translations with their references and scores.

    Attributes:
        scores: Scores of the translations and of the references.
        pairs: Pairs of source and reference.
        translations: Translation of each source.
        language: Target language; None if it is not known.
    """

    scores: TranslationScores
    pairs: tuple[tuple[str, str], ...]
    translations: tuple[str, ...]
    language: str | None


@dataclass(frozen=True)
class TranslationEvaluation(Evaluation[ScoredPairs]):
    trained_model: Translator

    def load(
        self,
        source: str | Path | CustomDataset | None = None,
        target: str | Path | None = None,
        *,
        part: Part | None = None,
        encoding: str | None = None,
    ) -> ScoredPairs:
        """Return sentence pairs: by default the test part of the training dataset, or the validation part of files.

        Args:
            source, target: Other pairs: two files or one .tsv, .csv or .jsonl file, of which all pairs are used, or a
                named dataset.
            part: Part of a named dataset ("test" by default), or "validation" for training files.
            encoding: Encoding of the other files; UTF-8 by default.

        Raises:
            UserError: If the arguments contradict each other, the pairs are missing or have changed since the training,
                or no `source` is passed and the model does not contain the settings of its training data.
        """
        trained_model = self.trained_model
        if target is not None and source is None:
            raise UserError(f"--target {target} requires --source; pass both")
        if source is None:
            spec = find_training_data(trained_model)
            if spec is None:
                raise UserError(
                    f"{trained_model.folder} does not contain its training data settings; "
                    f"{other_data_hint(trained_model)}"
                )
            assert isinstance(spec, PairsSpec)
        else:
            files = {"source": plain_source(source), "target": None if target is None else str(target)}
            spec = apply_languages(parse(PairsSpec, {**files, "encoding": encoding or "utf-8"}), trained_model)
        is_dataset = spec.target is None and spec.source in PAIR_DATASETS
        if source is not None and not is_dataset:
            if part is not None:
                raise UserError(f"--part {part} requires a named dataset, since {source} has no parts; omit --part")
            pairs = tuple(open_pairs(spec, spec.source, spec.target).examples())
        elif source is not None or (part or ("test" if is_dataset else "validation")) == "test":
            pairs = tuple(read_pairs(spec, part or "test"))
        else:
            corpus = open_training_data(trained_model, download=True)
            assert isinstance(corpus, ParallelCorpus)
            pairs = corpus.validation_texts
        if not pairs:
            raise UserError(f"{spec.source} has no sentence pairs to score; pass a file with at least one")
        return ScoredPairs(pairs=pairs, language=target_language(spec))

    def load_held_out(self) -> ScoredPairs:
        return self.load(part="validation")

    def score(
        self,
        data: ScoredPairs,
        *,
        search: Beam | None = None,
        protocol: Protocol = "detokenized",
        language: str | None = None,
        batch_tokens: int = 4096,
        metrics: Metrics = (),
        progress: bool = False,
    ) -> TranslationResult:
        """Translate the sources and return the scores.

        Args:
            data: Sentence pairs.
            search: Search settings; a beam of 5 by default.
            protocol: Preparation of the texts; see `score_translations`.
            language: Target language; by default that of the data.
            batch_tokens: Maximum number of tokens per batch, as in `translate`.
            metrics: Metrics of other packages, or their import paths.
            progress: If True and stderr is a terminal, show a progress bar.

        Raises:
            UserError: If the protocol requires a language or a package that is missing, a text cannot be encoded, or a
                metric cannot be imported or fails.
        """
        own_metrics = read_metrics(metrics)
        model, tokenizer = self.trained_model.model, self.trained_model.tokenizer
        source_tokenizer = self.trained_model.source_tokenizer
        search = Beam() if search is None else search
        language = language or data.language
        references = [reference for _, reference in data.pairs]
        _check_scoring(own_metrics, references, protocol, language)
        sources = [source for source, _ in data.pairs]
        answers = translate_stream(
            model, tokenizer, sources, search, source_tokenizer=source_tokenizer, batch_tokens=batch_tokens
        )
        if progress and sys.stderr.isatty():
            answers = track(answers, "translating", total=len(data.pairs), transient=True)
        translations = tuple(answer[0].text for answer in answers)
        pair_scores = score_pairs(model, tokenizer, data.pairs, source_tokenizer=source_tokenizer)
        tokens = sum(pair.tokens for pair in pair_scores)
        nats = -sum(pair.logprob for pair in pair_scores) / tokens
        scores = score_translations(translations, references, sources=sources, protocol=protocol, language=language)
        return TranslationResult(
            scores=replace(
                scores,
                nll_nats_per_token=nats,
                perplexity=perplexity(nats),
                tokens=tokens,
                search=search.name,
                metrics=measure_metrics(own_metrics, translations, references),
                notes=(*scores.notes, *_note_cut(sum(pair.truncated for pair in pair_scores), model.max_len)),
            ),
            pairs=data.pairs,
            translations=translations,
            language=language,
        )

    def weighted(self, data: ScoredPairs) -> WeightedScores:
        """Return nats per token of the references over sentences; `paired_bootstrap` compares translations."""
        trained_model = self.trained_model
        scores = score_pairs(
            trained_model.model, trained_model.tokenizer, data.pairs, source_tokenizer=trained_model.source_tokenizer
        )
        sums = np.array([(-pair.logprob, pair.tokens) for pair in scores], dtype=np.float64)
        return WeightedScores(
            names=("nll_nats_per_token",),
            documents=len(sums),
            measure=lambda weights: [float(weights @ sums[:, 0] / (weights @ sums[:, 1]))],
            digest=digest(trained_model.tokenizer.hash, *(text for pair in data.pairs for text in pair)),
            size=sums.size,
        )

    def score_held_out(self, data: ScoredPairs) -> HeldOutScores:
        scores = self.score(data, search=Beam(size=1)).scores
        assert scores.nll_nats_per_token is not None
        return HeldOutScores(
            kind="translator",
            scores={
                "nats_per_target_token": scores.nll_nats_per_token, "bleu": scores.bleu, "chrf": scores.chrf,
            },
            parameters=self.trained_model.n_parameters,
            text=digest(*(side for pair in data.pairs for side in pair)),
            tokenizer=self.trained_model.tokenizer.hash,
            tokens=scores.tokens or 0,
        )  # fmt: skip

    def evaluate(
        self,
        data: str | Path | CustomDataset | None = None,
        *,
        source: str | Path | CustomDataset | None = None,
        target: str | Path | None = None,
        part: Part | None = None,
        encoding: str | None = None,
        **settings: Any,
    ) -> TranslationScores:
        if data is not None:
            raise UserError("translation models are scored on sentence pairs; pass source=... and target=..., not data")
        return self.score(self.load(source, target, part=part, encoding=encoding), **settings).scores


def compare_translations(first: TranslationResult, second: TranslationResult) -> Comparison:
    """Return the differences of BLEU and chrF of two models, first minus second, and the p-value of the former.

    Raises:
        UserError: If their data differs.
    """
    difference = compare(first.scores.to_dict(), second.scores.to_dict())
    references = [reference for _, reference in first.pairs]
    p_value = paired_bootstrap(
        first.translations, second.translations, references, protocol=first.scores.protocol, language=first.language
    )
    return replace(difference, p_value=p_value)


def _check_scoring(
    metrics: Sequence[CustomMetric], references: list[str], protocol: Protocol, language: str | None
) -> None:
    """Report a missing package or a metric that fails before the search."""
    bleu_tokenizer(protocol, language, references)
    prepare_texts(references[:1], protocol, language)
    check_metrics(metrics, references)


def _note_cut(count: int, max_len: int) -> tuple[str, ...]:
    """Return a remark on the number of pairs that were cut; empty if there are none."""
    exceed = counted(count, "pair exceeds", "pairs exceed")
    return (f"{exceed} the maximum length of the model; cut to {max_len} tokens",) if count else ()
