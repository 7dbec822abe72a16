"""Labelled texts to ids, once, kept as `prepare_pairs` keeps pairs; no more than a few are in memory at a time.

A vocabulary is learnt on the training texts alone, and a label that only validation has is told before anything is
written: no training would ever find it.
"""

import json
import sys
from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import count
from pathlib import Path

import numpy as np
from rich.progress import Progress

from tercet import limits
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
    memory_map,
    progress_bar,
    report_disk_errors,
    write_meta,
)
from tercet.data.corpora.targets import IGNORED, TargetScale, label_dtype, label_indicators, map_labels
from tercet.data.corpora.text_split import TextSplit, check_special_tokens
from tercet.data.datasets.label_datasets import LABEL_DATASETS, Part, find_labels
from tercet.data.encode.unknown_text import check_known, encode_located
from tercet.data.encode.word_pieces import encode_words
from tercet.data.examples.labels import Example, LabelSource, Over, no_text_error, read_examples
from tercet.data.specs import HeldOutLabels, LabelsSpec
from tercet.spec import ProblemType
from tercet.tokens import BPE, Characters, Fields, KMers, PlainIds, Tokenizer, Unigram, Words


@dataclass(frozen=True, kw_only=True)
class Labelled:
    """Tokenised texts and their labels, memory-mapped.

    Attributes:
        ids: (M,) ids, without bos and eos.
        starts: (N + 1,) int64 position at which each text starts, and the end.
        labels: int64 indices into `names`: (N,) over texts; over tokens (M,), IGNORED on all but a word's first piece;
            (K,) where a text may have several, which then start at `label_starts` (N + 1,). Numbers are (N,) float64.
        names: of the labels; of numbers their own name alone.
    """

    ids: np.ndarray
    starts: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
    over: Over = "texts"
    problem_type: ProblemType = "single_label_classification"
    label_starts: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """(N,) int64 tokens of each text."""
        return np.diff(self.starts)

    def targets(self, numbers: np.ndarray) -> np.ndarray:
        """Of the texts `numbers` (B,): their labels or numbers (B,), or 0 and 1 for each label, (B, L) float32."""
        if self.label_starts is not None:
            return label_indicators(self.labels, self.label_starts, numbers, len(self.names))
        return np.asarray(self.labels[numbers])


@dataclass(frozen=True, kw_only=True)
class LabelledCorpus:
    """Tokenised labelled texts in two parts.

    Attributes:
        hash: sha256 of the texts and labels the ids were made from.
        labels: every label of the training part, sorted; positions in it are the numbers that both parts hold. Of
            labels that are numbers their own name.
        scale: of labels that are numbers, in the training part.
        skipped: examples without text.
        near_duplicates: Validation texts that are near duplicates of training texts.
        lost: over tokens, the words of which the tokenizer leaves nothing; their labels are left out.
    """

    name: str
    hash: str
    tokenizer: Tokenizer
    labels: tuple[str, ...]
    scale: TargetScale
    train: Labelled
    validation: Labelled
    skipped: int
    near_duplicates: int
    lost: int


def prepare_labelled(
    spec: LabelsSpec,
    *,
    tokenizer: Tokenizer | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> LabelledCorpus:
    """The corpus that `spec` describes, from the cache where it is there.

    Args:
        tokenizer: takes the place of the spec's, as that of a pretrained model does.
        expected_hash: Hash that the data must have. It is compared before any text is tokenized, printed or cached.
        progress: show a bar on stderr, where that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: where texts cannot be read, tokenised or divided, a label is missing in training, the tokenizer lacks
            bos or eos, or the cache cannot be written.
    """
    split = _LabelSplit(spec)
    check_hash(spec.source, split.content_hash, expected_hash)
    with report_disk_errors():
        tokenizer = tokenizer or split.learn_tokenizer()
        check_special_tokens(tokenizer, "tokenizer", "labelled texts", ("bos", "eos"))
        key = digest(FORMAT, split.content_hash, tokenizer.hash, sys.byteorder)
        folder = cache_dir() / "labelled" / key[:32]
        if not is_complete(folder):
            split.read_through()
            with create_atomically(folder, split.snapshots) as new, progress_bar(shown=progress) as bar:
                _write(new, split, tokenizer, bar)
    return _load(folder, spec=spec, content=split.content_hash, tokenizer=tokenizer)


def examples_of(spec: LabelsSpec, part: Part) -> list[Example]:
    """The texts and labels of a part, those without text left out.

    Raises:
        UserError: where texts cannot be read or divided.
    """
    return list(_LabelSplit(spec).items(part))


class _LabelSplit(TextSplit[LabelSource, Example]):
    singular, plural = "text", "texts"

    def __init__(self, spec: LabelsSpec) -> None:
        self.spec, train = spec, find_labels(spec)
        is_named = spec.source in LABEL_DATASETS
        settings = [] if is_named else [spec.encoding, spec.text_field, spec.label_field, spec.over]
        if not is_named and spec.problem_type != "single_label_classification":
            settings += [spec.problem_type, spec.label_separator, *spec.label_fields]
        match spec.validation:
            case HeldOutLabels(source=source):
                held_out = find_labels(replace(spec, source=source))
            case None if is_named:
                held_out = find_labels(spec, "validation")
            case _:
                held_out = None
        super().__init__(spec.source, train, held_out, validation=spec.validation, settings=settings)

    def learn_tokenizer(self) -> Tokenizer:
        """A tokenizer learnt on the training part."""

        def texts() -> Iterator[str]:
            self.read_through()
            return (example.text for example in self.items("train"))

        spec = self.spec.tokenizer
        if isinstance(spec, Characters | Words | BPE | Unigram | Fields | KMers | PlainIds):
            spec = replace(spec, pad=True, bos=True, eos=True)
        return load_or_train_tokenizer(spec, texts, self.training_hash, self.snapshots[:1])

    def read_through(self) -> None:
        _ = self.labels, self.scale

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """Those of the training part, sorted; of labels that are numbers their own name.

        Raises:
            UserError: where there are too few, or validation has another.
        """
        if self.spec.problem_type == "regression":
            return (self.spec.label_field,)
        train, validation = (
            Counter(label for example in self.items(part) for label in example.labels)
            for part in ("train", "validation")
        )
        name = self.spec.source
        if self.spec.problem_type == "multi_label_classification":
            self._check_sets(train)
        elif len(train) < 2:
            only = next(iter(train), "")
            raise UserError(f"{name}: every training text has the label {only!r}; give texts with two or more")
        if unknown := sorted(validation.keys() - train.keys()):
            named = ", ".join(f"{label!r} ({validation[label]:,} times)" for label in unknown[:5])
            more = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            raise UserError(
                f"{name}: only validation has the label {named}{more}; give more texts with such a label, "
                "correct it, or leave them out"
            )
        return tuple(sorted(train))

    def _check_sets(self, train: Counter[str]) -> None:
        """Raises UserError where all training texts have the same labels, or none has any."""
        texts = sum(1 for _ in self.items("train"))
        if all(count == texts for count in train.values()):
            same = f"the labels {', '.join(map(repr, sorted(train)[:5]))}" if train else "no label"
            raise UserError(f"{self.spec.source}: every training text has {same}; give texts that differ in them")

    @cached_property
    def scale(self) -> TargetScale:
        """Of labels that are numbers, in the training part.

        Raises:
            UserError: where they are all the same, or as good as that.
        """
        if self.spec.problem_type != "regression":
            return TargetScale()
        numbers = np.array(array("d", (example.number for example in self.items("train"))))  # eight bytes a text
        for _ in self.items("validation"):  # what is wrong there is told now, too
            pass
        mean, std = float(numbers.mean()), float(numbers.std())
        if numbers.min() == numbers.max():
            raise UserError(
                f"{self.spec.source}: every training text has the number {numbers[0]:g}; give texts with two or more"
            )
        if std * limits.LABEL_NUMBER <= 1:
            raise UserError(
                f"{self.spec.source}: the training texts' numbers have a standard deviation of {std:g}; "
                "give all of them in a smaller unit"
            )
        return TargetScale(mean=mean, std=std)

    def _read_all(self, source: LabelSource) -> Iterator[Example]:
        return source.examples()

    def _read(self, source: LabelSource) -> Iterator[Example]:
        return read_examples(source)

    def _is_empty(self, item: Example) -> bool:
        return item.empty

    def _key(self, item: Example) -> str:
        return "\0".join(item.texts)

    def _no_text_error(self, source: LabelSource) -> UserError:
        return no_text_error(source)


def _write(folder: Path, split: _LabelSplit, tokenizer: Tokenizer, bar: Progress) -> None:
    task = bar.add_task("tokenising labelled texts", total=split.size)
    numbers = {label: number for number, label in enumerate(split.labels)}
    lost = 0
    for part in ("train", "validation"):
        ends, label_ends, written = array("q", [0]), array("q", [0]), 0
        with (folder / f"{part}_ids.bin").open("wb") as ids_file, (folder / f"{part}_labels.bin").open("wb") as labels:
            for examples in chunk_items(split.items_to_write(part), lambda example: len(example.text)):
                if split.spec.over == "texts":
                    places = (f"{split.spec.source}, {part} text {number:,}" for number in count(len(ends)))
                    encoded = encode_located(tokenizer, [example.text for example in examples], places)
                    labels_of_chunk = _labels_of_texts(split.spec.problem_type, examples, numbers)
                else:
                    words = encode_words(tokenizer, [example.texts for example in examples])
                    encoded = [ids for ids, _ in words]
                    labels_of_chunk = np.concatenate(
                        [_labels_of_pieces(*pair, numbers) for pair in zip(words, examples, strict=True)]
                    )
                    lost += sum(int((firsts < 0).sum()) for _, firsts in words)
                ids_file.write(np.concatenate(encoded).astype(id_dtype(tokenizer)).tobytes())
                labels.write(labels_of_chunk.tobytes())
                for ids, example in zip(encoded, examples, strict=True):
                    written += len(ids)
                    ends.append(written)
                    label_ends.append(label_ends[-1] + len(example.labels))
                bar.advance(task, sum(len(example.text.encode()) for example in examples))
        np.save(folder / f"{part}_starts.npy", np.array(ends, dtype=np.int64), allow_pickle=False)
        if split.spec.problem_type == "multi_label_classification":
            np.save(folder / f"{part}_label_starts.npy", np.array(label_ends, dtype=np.int64), allow_pickle=False)
    tokenizer_meta = {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash}
    write_meta(
        folder,
        {
            "tokenizer": tokenizer_meta,
            "labels": list(split.labels),
            "mean": split.scale.mean,
            "std": split.scale.std,
            "skipped": split.skipped,
            "near_duplicates": split.near_duplicates,
            "lost": lost,
        },
    )


def _labels_of_texts(problem_type: ProblemType, examples: Sequence[Example], numbers: dict[str, int]) -> np.ndarray:
    """As `Labelled` has them: a place for each label, or the numbers that they are."""
    if problem_type == "regression":
        return np.array([example.number for example in examples], dtype=label_dtype(problem_type))
    places = [numbers[label] for example in examples for label in example.labels]
    return np.array(places, dtype=label_dtype(problem_type))


def _labels_of_pieces(words: tuple[np.ndarray, np.ndarray], example: Example, numbers: dict[str, int]) -> np.ndarray:
    """The label of each token of an example: a word's own on its first piece, IGNORED elsewhere."""
    ids, firsts = words
    labels = np.full(len(ids), IGNORED, dtype=np.int64)
    label_numbers = np.array([numbers[label] for label in example.labels], dtype=np.int64)
    labels[firsts[firsts >= 0]] = label_numbers[firsts >= 0]
    return labels


def _load(folder: Path, *, spec: LabelsSpec, content: str, tokenizer: Tokenizer) -> LabelledCorpus:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    names = tuple(meta["labels"])

    def load_part(side: Part) -> Labelled:
        labels, label_starts = map_labels(folder, side, spec.problem_type)
        return Labelled(
            ids=memory_map(folder / f"{side}_ids.bin", id_dtype(tokenizer)),
            starts=np.load(folder / f"{side}_starts.npy", allow_pickle=False),
            labels=labels,
            names=names,
            over=spec.over,
            problem_type=spec.problem_type,
            label_starts=label_starts,
        )

    train, validation = load_part("train"), load_part("validation")
    alone = train.starts[:-1][train.lengths == 1]  # where a text of one token is
    unknown = 0 if tokenizer.unk_id is None else int(np.count_nonzero(train.ids[alone] == tokenizer.unk_id))
    check_known(spec.source, tokenizer, unknown, len(train))
    return LabelledCorpus(
        name=spec.source,
        hash=content,
        tokenizer=tokenizer,
        labels=names,
        scale=TargetScale(mean=meta.get("mean", 0.0), std=meta.get("std", 1.0)),  # of an older version: none
        train=train,
        validation=validation,
        skipped=meta["skipped"],
        near_duplicates=meta.get("near_duplicates", 0),  # of an older version: not counted
        lost=meta["lost"],
    )
