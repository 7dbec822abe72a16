"""Sentence pairs to ids, once, kept as `prepare` keeps text; no more than a few pairs are in memory at a time.

Everything is read through before a vocabulary is learnt or a file written, so that two files which do not match are
told at once.
"""

import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.cache import (
    FORMAT,
    check_hash,
    chunk_items,
    create_atomically,
    digest,
    id_dtype,
    is_complete,
    load_or_train_tokenizer,
    progress_bar,
    report_disk_errors,
    write_meta,
)
from tercet.data.corpora.text_split import Side, TextSplit, check_special_tokens
from tercet.data.datasets.pair_datasets import PAIR_DATASETS, Part, find_pairs, languages, pair_files
from tercet.data.encode.unknown_text import encode_located
from tercet.data.examples.pairs import Pair, PairSource, no_text_error, read_pairs
from tercet.data.specs import HeldOutPairs, PairsSpec
from tercet.tokens import GPT2, Tokenizer, TokenizerFile, TokenizerSpec, WordPiece


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Tokenised pairs, memory-mapped.

    Attributes:
        source: (N,) ids, each sentence ended by eos.
        source_starts: (P + 1,) int64 position at which each sentence starts, and the end.
        target: (M,) ids, each sentence ended by eos, without bos.
        target_starts: (P + 1,) int64.
    """

    source: np.ndarray
    source_starts: np.ndarray
    target: np.ndarray
    target_starts: np.ndarray

    def __len__(self) -> int:
        return len(self.source_starts) - 1

    @property
    def source_lengths(self) -> np.ndarray:
        """(P,) int64, eos included."""
        return np.diff(self.source_starts)

    @property
    def target_lengths(self) -> np.ndarray:
        """(P,) int64, eos included."""
        return np.diff(self.target_starts)


@dataclass(frozen=True, kw_only=True)
class ParallelCorpus:
    """Tokenised pairs in two parts.

    Attributes:
        hash: sha256 of the text the ids were made from.
        source_tokenizer, tokenizer: one and the same where both sides share a vocabulary.
        validation_texts: what the pairs of `validation` were made from, source and target, in their order.
        skipped: pairs with an empty side.
        near_duplicates: Validation pairs whose source is a near duplicate of one in training.
    """

    name: str
    hash: str
    source_tokenizer: Tokenizer
    tokenizer: Tokenizer
    train: Pairs
    validation: Pairs
    validation_texts: tuple[Pair, ...]
    skipped: int
    near_duplicates: int


def prepare_pairs(
    spec: PairsSpec,
    *,
    tokenizer: Tokenizer | None = None,
    source_tokenizer: Tokenizer | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> ParallelCorpus:
    """The corpus that `spec` describes, from the cache where it is there.

    Args:
        tokenizer, source_tokenizer: take the places of the spec's, as when a trained model meets new text. One
            `tokenizer` alone is for both sides where the spec has no `source_tokenizer`.
        expected_hash: Hash that the data must have. It is compared before any text is tokenized, printed or cached.
        progress: show a bar on stderr, where that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: where pairs cannot be read, tokenised or divided, a tokenizer lacks pad, bos or eos, or the cache
            cannot be written.
    """
    split = _PairSplit(spec)
    check_hash(spec.source, split.content_hash, expected_hash)
    with report_disk_errors():
        joint = spec.source_tokenizer is None and source_tokenizer is None
        target = tokenizer or split.learn_tokenizer(spec.tokenizer, ("source", "target") if joint else ("target",))
        source = target if joint else source_tokenizer or split.learn_tokenizer(spec.source_tokenizer, ("source",))
        if spec.source_bos and source.bos_id is not None:
            source = source.with_opening([source.bos_id])
            target = source if joint else target
        for side_tokenizer, setting in ((target, "tokenizer"), (source, "source_tokenizer")):
            check_special_tokens(side_tokenizer, setting, "pairs", ("pad", "bos", "eos"))
        key = digest(FORMAT, split.content_hash, source.hash, target.hash, sys.byteorder, *source.opening)
        folder = cache_dir() / "pairs" / key[:32]
        if not is_complete(folder):
            split.read_through()
            with create_atomically(folder, split.snapshots) as new, progress_bar(shown=progress) as bar:
                _write(new, split, source, target, bar)
    return _load(folder, name=spec.source, content=split.content_hash, source_tokenizer=source, tokenizer=target)


def pairs_of(spec: PairsSpec, part: Part) -> list[Pair]:
    """The text of a part, pairs with an empty side left out; "test" is for named datasets alone.

    Raises:
        UserError: where pairs cannot be read or divided, or there is no such part.
    """
    return list(read_pairs(find_pairs(spec, "test")) if part == "test" else _PairSplit(spec).items(part))


class _PairSplit(TextSplit[PairSource, Pair]):
    singular, plural = "source sentence", "pairs"

    def __init__(self, spec: PairsSpec) -> None:
        train = find_pairs(spec)
        is_named = spec.target is None and spec.source in PAIR_DATASETS
        settings = languages(spec) if is_named else [spec.encoding, spec.source_language, spec.target_language]
        match spec.validation:
            case HeldOutPairs(source=source, target=target):
                held_out = pair_files(spec, source, target)
            case None if is_named:
                held_out = find_pairs(spec, "validation")
            case _:
                held_out = None
        super().__init__(spec.source, train, held_out, validation=spec.validation, settings=settings)

    def learn_tokenizer(self, spec: TokenizerSpec | None, sides: tuple[str, ...]) -> Tokenizer:
        """A tokenizer learnt on these sides of the training part."""
        assert spec is not None

        def texts() -> Iterator[str]:
            self.read_through()
            for pair in self.items("train"):
                yield from (text for side, text in zip(("source", "target"), pair, strict=True) if side in sides)

        has_special_tokens = isinstance(
            spec, GPT2 | TokenizerFile | WordPiece
        )  # these have their special tokens already
        with_special_tokens = spec if has_special_tokens else replace(spec, pad=True, bos=True, eos=True)
        return load_or_train_tokenizer(
            with_special_tokens, texts, digest(self.training_hash, sides), self.snapshots[:1]
        )

    def _read_all(self, source: PairSource) -> Iterator[Pair]:
        return source.pairs()

    def _read(self, source: PairSource) -> Iterator[Pair]:
        return read_pairs(source)

    def _is_empty(self, item: Pair) -> bool:
        return not all(item)

    def _key(self, item: Pair) -> str:
        return item[0]

    def _no_text_error(self, source: PairSource) -> UserError:
        return no_text_error(source)


def _write(folder: Path, split: _PairSplit, source: Tokenizer, target: Tokenizer, bar: Progress) -> None:
    task = bar.add_task("tokenising pairs", total=split.size)
    texts = list[Pair]()

    def read_side(side: Side) -> Iterator[Pair]:
        for pair in split.items_to_write(side):
            bar.advance(task, len(pair[0].encode()) + len(pair[1].encode()))
            if side == "validation":
                texts.append(pair)
            yield pair

    for side in ("train", "validation"):
        _encode(folder, side, read_side(side), source, target)
    (folder / "validation.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")
    tokenizer_meta = {"kind": target.kind, "vocab_size": target.vocab_size, "hash": target.hash}
    counts = {"skipped": split.skipped, "near_duplicates": split.near_duplicates}
    write_meta(folder, {"tokenizer": tokenizer_meta, "source_tokenizer": source.hash, **counts})


def _encode(folder: Path, side: Side, pairs: Iterator[Pair], *tokenizers: Tokenizer) -> None:
    """Write the ids of both sides, each sentence ended by eos (a source begun by its opening), and where they end."""
    written = [0, 0]
    paths = [(folder / f"{side}_{half}.bin", folder / f"{side}_{half}_starts.bin") for half in ("source", "target")]
    for _, starts in paths:
        starts.write_bytes(np.zeros(1, dtype=np.int64).tobytes())
    for chunk in chunk_items(pairs, lambda pair: len(pair[0]) + len(pair[1])):
        for half, (tokenizer, (ids_path, starts_path)) in enumerate(zip(tokenizers, paths, strict=True)):
            encoded = encode_located(tokenizer, [pair[half] for pair in chunk])
            bos = np.array([] if half else tokenizer.opening, dtype=np.uint32)
            eos = np.array([tokenizer.eos_id], dtype=np.uint32)
            ids = np.concatenate([part for sentence in encoded for part in (bos, sentence, eos)])
            n_special = len(bos) + len(eos)
            ends = written[half] + np.cumsum([len(sentence) + n_special for sentence in encoded], dtype=np.int64)
            written[half] = int(ends[-1])
            for path, numbers in ((ids_path, ids.astype(id_dtype(tokenizer))), (starts_path, ends)):
                with path.open("ab") as file:
                    file.write(numbers.tobytes())


def _load(
    folder: Path, *, name: str, content: str, source_tokenizer: Tokenizer, tokenizer: Tokenizer
) -> ParallelCorpus:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    texts = json.loads((folder / "validation.json").read_text(encoding="utf-8"))

    def memory_map(file: str, dtype: np.dtype[Any]) -> np.ndarray:
        return np.memmap(folder / f"{file}.bin", dtype, mode="r")

    def load_part(side: Side) -> Pairs:
        return Pairs(
            source=memory_map(f"{side}_source", id_dtype(source_tokenizer)),
            source_starts=memory_map(f"{side}_source_starts", np.dtype(np.int64)),
            target=memory_map(f"{side}_target", id_dtype(tokenizer)),
            target_starts=memory_map(f"{side}_target_starts", np.dtype(np.int64)),
        )

    return ParallelCorpus(
        name=name,
        hash=content,
        source_tokenizer=source_tokenizer,
        tokenizer=tokenizer,
        train=load_part("train"),
        validation=load_part("validation"),
        validation_texts=tuple((source, target) for source, target in texts),
        skipped=meta["skipped"],
        near_duplicates=meta.get("near_duplicates", 0),  # of an older version: not counted
    )
