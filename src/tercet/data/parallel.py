"""Sentence pairs to ids, once, kept as `prepare` keeps text; no more than a few pairs are in memory at a time.

Everything is read through before a vocabulary is learnt or a file written, so that two files which do not match are
told at once.
"""

import json
import sys
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.progress import Progress

from tercet.config import UserError, plain
from tercet.data.cache import (
    AT_ONCE,
    FORMAT,
    appearing,
    cache_folder,
    digest,
    disk_errors_told,
    id_type,
    learnt,
    progress_bar,
    seal,
    whole,
)
from tercet.data.pair_datasets import PAIR_DATASETS, Part, find_pairs, languages, pair_files
from tercet.data.pairs import Pair, PairSource, nothing_in, read_pairs
from tercet.data.specs import Drawn, HeldOutPairs, PairsSpec
from tercet.data.splitting import draw, place
from tercet.tokens import GPT2, Tokenizer, TokenizerFile, TokenizerSpec, WordPiece

Side = Literal["train", "validation"]


@dataclass(frozen=True, kw_only=True)
class Pairs:
    """Tokenised pairs, memory-mapped.

    Attributes:
        source: (N,) ids, each sentence ended by eos.
        source_starts: (P + 1,) int64 place at which each sentence starts, and the end.
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
    """

    name: str
    hash: str
    source_tokenizer: Tokenizer
    tokenizer: Tokenizer
    train: Pairs
    validation: Pairs
    validation_texts: tuple[Pair, ...]
    skipped: int


def prepare_pairs(
    spec: PairsSpec,
    *,
    tokenizer: Tokenizer | None = None,
    source_tokenizer: Tokenizer | None = None,
    progress: bool = False,
) -> ParallelCorpus:
    """The corpus that `spec` describes, from the cache where it is there.

    Args:
        tokenizer, source_tokenizer: take the places of the spec's, as when a trained model meets new text. One
            `tokenizer` alone is for both sides where the spec has no `source_tokenizer`.
        progress: show a bar on stderr, where that is a terminal.

    Raises:
        UserError: where pairs cannot be read, tokenised or divided, a tokenizer lacks pad, bos or eos, or the cache
            cannot be written.
    """
    divided = _Divided(spec)
    with disk_errors_told():
        joint = spec.source_tokenizer is None and source_tokenizer is None
        target = tokenizer or divided.learnt(spec.tokenizer, ("source", "target") if joint else ("target",))
        source = target if joint else source_tokenizer or divided.learnt(spec.source_tokenizer, ("source",))
        if spec.source_bos and source.bos_id is not None:
            source = source.with_opening([source.bos_id])
            target = source if joint else target
        for one, setting in ((target, "tokenizer"), (source, "source_tokenizer")):
            _check_special(one, setting)
        key = digest(FORMAT, divided.content, source.hash, target.hash, sys.byteorder, *source.opening)
        folder = cache_folder() / "pairs" / key[:32]
        if not whole(folder):
            divided.read_through()
            with appearing(folder) as new, progress_bar(shown=progress) as bar:
                _write(new, divided, source, target, bar)
    return _load(folder, name=spec.source, content=divided.content, source_tokenizer=source, tokenizer=target)


def pairs_of(spec: PairsSpec, part: Part) -> list[Pair]:
    """The text of a part, pairs with an empty side left out; "test" is for named datasets alone.

    Raises:
        UserError: where pairs cannot be read or divided, or there is no such part.
    """
    return list(read_pairs(find_pairs(spec, "test")) if part == "test" else _Divided(spec).pairs(part))


class _Divided:
    """The pairs of a spec, in two parts, read again each time they are asked for.

    Attributes:
        content: sha256 of all that the pairs and their division depend on.
    """

    def __init__(self, spec: PairsSpec) -> None:
        self._spec = spec
        self._train = find_pairs(spec)
        self._held_out = self._validation_source()
        named = spec.target is None and spec.source in PAIR_DATASETS
        reading = languages(spec) if named else [spec.encoding, spec.source_language, spec.target_language]
        # What validation is drawn from training is gone from what a vocabulary is learnt on.
        self._training = digest(FORMAT, self._train.hash(), reading, plain(self._drawn))
        self.content = digest(self._training, self._held_out and self._held_out.hash())

    @property
    def size(self) -> int | None:
        """Bytes of text in all, where that can be told without reading."""
        sizes = [one.size() for one in (self._train, self._held_out) if one]
        return None if None in sizes else sum(size for size in sizes if size)

    @property
    def _drawn(self) -> Drawn | None:
        if isinstance(self._spec.validation, Drawn):
            return self._spec.validation
        return None if self._held_out else Drawn()

    def _validation_source(self) -> PairSource | None:
        match self._spec.validation:
            case HeldOutPairs(source=source, target=target):
                return pair_files(self._spec, source, target)
            case None if self._spec.target is None and self._spec.source in PAIR_DATASETS:
                return find_pairs(self._spec, "validation")
            case _:
                return None

    def learnt(self, spec: TokenizerSpec | None, sides: tuple[str, ...]) -> Tokenizer:
        """A tokenizer learnt on these sides of the training part."""
        assert spec is not None

        def texts() -> Iterator[str]:
            self.read_through()
            for pair in self.pairs("train"):
                yield from (text for side, text in zip(("source", "target"), pair, strict=True) if side in sides)

        own = isinstance(spec, GPT2 | TokenizerFile | WordPiece)  # these have their special tokens already
        special = spec if own else replace(spec, pad=True, bos=True, eos=True)
        return learnt(special, texts, digest(self._training, sides))

    def read_through(self) -> None:
        """So that what is wrong with the files is told before anything is made of them."""
        _ = self._survey

    @property
    def skipped(self) -> int:
        return self._survey[0]

    def pairs(self, side: Side) -> Iterator[Pair]:
        if self._held_out:
            yield from read_pairs(self._train if side == "train" else self._held_out)
            return
        _, drawn = self._survey
        for pair in read_pairs(self._train):
            if (place(pair[0]) in drawn) == (side == "validation"):
                yield pair

    @cached_property
    def _survey(self) -> tuple[int, frozenset[int]]:
        """Pairs with an empty side, and the places of the source sentences that are drawn for validation."""
        skipped = 0
        places = array("Q")  # eight bytes a pair
        for source in (self._train, self._held_out):
            complete = 0
            for pair in source.pairs() if source else ():
                if not all(pair):
                    skipped += 1
                    continue
                complete += 1
                if self._drawn:
                    places.append(place(pair[0]))
            if source and not complete:
                raise nothing_in(source)
        if not self._drawn:
            return skipped, frozenset()
        remedy = "set data.validation to {kind: held_out, source: ...}, or give more pairs"
        told = f"{self._spec.source} has one source sentence alone, which cannot be divided; {remedy}"
        return skipped, draw(places, self._drawn.count, told)


def _check_special(tokenizer: Tokenizer, setting: str) -> None:
    ids = {"pad": tokenizer.pad_id, "bos": tokenizer.bos_id, "eos": tokenizer.eos_id}
    missing = [name for name, token in ids.items() if token is None]
    if missing:
        raise UserError(
            f"data.{setting} ({tokenizer.kind}) has no {' and no '.join(missing)} token, which pairs need; "
            "use one of the kinds bpe, unigram, words and characters, which get them"
        )


def _write(folder: Path, divided: _Divided, source: Tokenizer, target: Tokenizer, bar: Progress) -> None:
    task = bar.add_task("tokenising pairs", total=divided.size)
    texts = list[Pair]()

    def read(side: Side) -> Iterator[Pair]:
        for pair in divided.pairs(side):
            bar.advance(task, len(pair[0].encode()) + len(pair[1].encode()))
            if side == "validation":
                texts.append(pair)
            yield pair

    for side in ("train", "validation"):
        _encode(folder, side, read(side), source, target)
    (folder / "validation.json").write_text(json.dumps(texts, ensure_ascii=False), encoding="utf-8")
    described = {"kind": target.kind, "vocab_size": target.vocab_size, "hash": target.hash}
    seal(folder, {"tokenizer": described, "source_tokenizer": source.hash, "skipped": divided.skipped})


def _encode(folder: Path, side: Side, pairs: Iterator[Pair], *tokenizers: Tokenizer) -> None:
    """Write the ids of both sides, each sentence ended by eos (a source begun by its opening), and where they end."""
    written = [0, 0]
    paths = [(folder / f"{side}_{half}.bin", folder / f"{side}_{half}_starts.bin") for half in ("source", "target")]
    for _, starts in paths:
        starts.write_bytes(np.zeros(1, dtype=np.int64).tobytes())
    for together in _together(pairs):
        for half, (tokenizer, (ids_path, starts_path)) in enumerate(zip(tokenizers, paths, strict=True)):
            encoded = tokenizer.encode_batch([pair[half] for pair in together])
            bos = np.array([] if half else tokenizer.opening, dtype=np.uint32)
            eos = np.array([tokenizer.eos_id], dtype=np.uint32)
            ids = np.concatenate([part for sentence in encoded for part in (bos, sentence, eos)])
            added = len(bos) + len(eos)
            ends = written[half] + np.cumsum([len(sentence) + added for sentence in encoded], dtype=np.int64)
            written[half] = int(ends[-1])
            for path, numbers in ((ids_path, ids.astype(id_type(tokenizer))), (starts_path, ends)):
                with path.open("ab") as file:
                    file.write(numbers.tobytes())


def _together(pairs: Iterator[Pair]) -> Iterator[list[Pair]]:
    """Pairs in lists of about `AT_ONCE` characters."""
    gathered, size = list[Pair](), 0
    for pair in pairs:
        gathered.append(pair)
        size += len(pair[0]) + len(pair[1])
        if size >= AT_ONCE:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _load(
    folder: Path, *, name: str, content: str, source_tokenizer: Tokenizer, tokenizer: Tokenizer
) -> ParallelCorpus:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    texts = json.loads((folder / "validation.json").read_text(encoding="utf-8"))

    def mapped(file: str, dtype: np.dtype[Any]) -> np.ndarray:
        return np.memmap(folder / f"{file}.bin", dtype, mode="r")

    def part(side: Side) -> Pairs:
        return Pairs(
            source=mapped(f"{side}_source", id_type(source_tokenizer)),
            source_starts=mapped(f"{side}_source_starts", np.dtype(np.int64)),
            target=mapped(f"{side}_target", id_type(tokenizer)),
            target_starts=mapped(f"{side}_target_starts", np.dtype(np.int64)),
        )

    return ParallelCorpus(
        name=name,
        hash=content,
        source_tokenizer=source_tokenizer,
        tokenizer=tokenizer,
        train=part("train"),
        validation=part("validation"),
        validation_texts=tuple((source, target) for source, target in texts),
        skipped=meta["skipped"],
    )
