"""Tokenized sentence pairs, built once and kept in the cache.

All sources are read completely before a vocabulary is learned or a file is written, so that an error, such as a
different number of lines in two files, is reported first.
"""

import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from tercet.data.cache import id_dtype
from tercet.data.corpora.array_files import ArrayFile
from tercet.data.corpora.example_preparation import ExampleCorpus, ExamplePreparation
from tercet.data.datasets.pair_datasets import PAIR_DATASETS, Part, find_pairs, languages, open_pairs
from tercet.data.encode.unknown_text import encode_located
from tercet.data.examples.example_source import read_examples
from tercet.data.examples.pairs import Pair
from tercet.data.specs import PairsSpec, Side
from tercet.data.split_specs import HeldOutPairs
from tercet.tokens import Tokenizer, TokenizerSpec


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Tokenized pairs, memory-mapped.

    Attributes:
        source: (N,) ids of all source sentences, concatenated. Each begins with the `opening` of the source tokenizer,
            if it has one, and ends with eos.
        source_starts: (P + 1,) int64 position of the start of each source sentence, and of the end of the last one.
        target: (M,) ids of all target sentences, concatenated. Each ends with eos and has no bos.
        target_starts: (P + 1,) int64 position of the start of each target sentence, and of the end of the last one.
    """

    source: np.ndarray
    source_starts: np.ndarray
    target: np.ndarray
    target_starts: np.ndarray

    def __len__(self) -> int:
        return len(self.source_starts) - 1

    @property
    def source_lengths(self) -> np.ndarray:
        """Number of tokens of each source sentence, including the opening and eos, (P,) int64."""
        return np.diff(self.source_starts)

    @property
    def target_lengths(self) -> np.ndarray:
        """Number of tokens of each target sentence, including eos, (P,) int64."""
        return np.diff(self.target_starts)


@dataclass(frozen=True, kw_only=True)
class ParallelCorpus(ExampleCorpus[Pairs]):
    """Tokenized pairs in two parts.

    A pair with an empty side counts as empty. Near duplicates are found by comparing source sentences. `tokenizer` is
    that of the target sentences.

    Attributes:
        source_tokenizer: Tokenizer of the source sentences; `tokenizer` itself if both sides share a vocabulary.
        validation_texts: The pairs of `validation` as text.
    """

    source_tokenizer: Tokenizer
    validation_texts: tuple[Pair, ...]


def prepare_pairs(
    spec: PairsSpec,
    *,
    tokenizer: Tokenizer | None = None,
    source_tokenizer: Tokenizer | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> ParallelCorpus:
    """Return the corpus that `spec` describes, from the cache if it is there.

    Args:
        spec: Settings of the data.
        tokenizer, source_tokenizer: Tokenizers of an existing model, used instead of the spec's. If there is no
            `source_tokenizer`, neither here nor in the spec, `tokenizer` is used for both sides.
        expected_hash: Hash that the data must have, or None to accept any data. It is compared before any text is
            tokenized, printed or cached.
        progress: If True, show a bar on stderr, if that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: If pairs cannot be read, tokenized or divided, a tokenizer lacks pad, bos or eos, or the cache cannot
            be written.
    """
    preparation = PairPreparation(spec, tokenizer, source_tokenizer)
    return preparation.prepare(expected_hash=expected_hash, progress=progress)


def read_pairs(spec: PairsSpec, part: Part) -> list[Pair]:
    """Return the pairs of a part that have text on both sides; only named datasets have a "test" part.

    Raises:
        UserError: If pairs cannot be read or divided, or there is no such part.
    """
    return list(read_examples(find_pairs(spec, "test")) if part == "test" else PairPreparation(spec).examples(part))


class PairPreparation(ExamplePreparation[Pair, ParallelCorpus]):
    """Preparation of sentence pairs."""

    folder, title, singular, plural = "pairs", "pairs", "source sentence", "pairs"

    def __init__(
        self, spec: PairsSpec, tokenizer: Tokenizer | None = None, source_tokenizer: Tokenizer | None = None
    ) -> None:
        self._spec, self._custom_tokenizer, self._custom_source_tokenizer = spec, tokenizer, source_tokenizer
        self._validation_texts = list[Pair]()
        train = find_pairs(spec)
        is_named = spec.target is None and spec.source in PAIR_DATASETS
        settings = languages(spec) if is_named else [spec.encoding, spec.source_language, spec.target_language]
        if spec.group_field is not None:
            settings = [*settings, {"group_field": spec.group_field}]
            self.singular, self.plural = "group", "groups"
        match spec.validation:
            case HeldOutPairs(source=source, target=target):
                held_out = open_pairs(spec, source, target)
            case None if is_named:
                held_out = find_pairs(spec, "validation")
            case _:
                held_out = None
        super().__init__(str(spec.source), train, held_out, validation=spec.validation, settings=settings)

    def _find_duplicate_text(self, example: Pair) -> str:
        return example.source

    def _choose_tokenizer(self) -> Tokenizer:
        return self._tokenizers[1]

    @cached_property
    def _tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        """Tokenizers of the source and of the target."""
        spec = self._spec
        is_joint = spec.source_tokenizer is None and self._custom_source_tokenizer is None
        target = self._custom_tokenizer or self._learn(
            spec.tokenizer, ("source", "target") if is_joint else ("target",)
        )
        source = (
            target if is_joint else self._custom_source_tokenizer or self._learn(spec.source_tokenizer, ("source",))
        )
        if spec.source_bos and source.bos_id is not None:
            source = source.with_opening([source.bos_id])
            target = source if is_joint else target
        for tokenizer, setting in ((target, "tokenizer"), (source, "source_tokenizer")):
            self._check_special_tokens(tokenizer, setting, ("pad", "bos", "eos"))
        return source, target

    def _learn(self, spec: TokenizerSpec | None, sides: tuple[str, ...]) -> Tokenizer:
        assert spec is not None

        def texts(pair: Pair) -> Iterable[str]:
            return (getattr(pair, side) for side in sides)

        return self._learn_tokenizer(spec, texts, ("pad", "bos", "eos"), sides)

    def _key(self) -> list[Any]:
        source, target = self._tokenizers
        forced_bos = [] if target.forced_bos_id is None else ["forced_bos", target.forced_bos_id]
        return [self.content_hash, source.hash, target.hash, sys.byteorder, *source.opening, *forced_bos]

    def _files(self) -> list[ArrayFile]:
        source, target = self._tokenizers
        return [
            ArrayFile("source.bin", id_dtype(source), "source_starts.bin"),
            ArrayFile("target.bin", id_dtype(target), "target_starts.bin"),
        ]

    def _encode(self, examples: Sequence[Pair], side: Side, first: int) -> list[list[np.ndarray]]:
        """Encode both sides of each pair, with opening ids before each sentence, except bos of a target, and eos."""
        if side == "validation":
            self._validation_texts += examples
        sides = [pair.source for pair in examples], [pair.target for pair in examples]
        source, target = self._tokenizers
        openings = source.opening, target.target_opening[1:]
        arrays = list[list[np.ndarray]]()
        for tokenizer, texts, opening in zip(self._tokenizers, sides, openings, strict=True):
            begin, end = (np.array(ids, dtype=np.uint32) for ids in (opening, [tokenizer.eos_id]))
            arrays.append([np.concatenate([begin, ids, end]) for ids in encode_located(tokenizer, texts)])
        return arrays

    def _write(self, folder: Path, bar: Progress) -> dict[str, Any]:
        meta = super()._write(folder, bar)
        texts = json.dumps(self._validation_texts, ensure_ascii=False)
        (folder / "validation.json").write_text(texts, encoding="utf-8")
        return {**meta, "source_tokenizer": self._tokenizers[0].hash}

    def _load(self, folder: Path, meta: dict[str, Any]) -> ParallelCorpus:
        texts = json.loads((folder / "validation.json").read_text(encoding="utf-8"))
        return ParallelCorpus(
            **self._fields(folder, meta, Pairs),
            source_tokenizer=self._tokenizers[0],
            validation_texts=tuple(Pair(*texts_of_pair) for texts_of_pair in texts),
        )
