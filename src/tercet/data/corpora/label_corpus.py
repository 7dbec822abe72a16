"""Tokenized labeled texts, built once and kept in the cache.

A vocabulary is learned from the training texts only. A label that only the validation part has is reported before
anything is written, because training could never learn it.
"""

from array import array
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from tercet import limits
from tercet.config import UserError
from tercet.data.cache import id_dtype
from tercet.data.corpora.array_files import ArrayFile
from tercet.data.corpora.example_preparation import ExampleCorpus, ExamplePreparation
from tercet.data.corpora.targets import IGNORE_INDEX, TargetScale, label_dtype, label_indicators
from tercet.data.datasets.label_datasets import LABEL_DATASETS, find_labels
from tercet.data.datasets.query_datasets import QUERY_DATASETS
from tercet.data.encode.unknown_text import check_unknown_share, encode_located
from tercet.data.encode.word_pieces import encode_words
from tercet.data.examples.labels import Example, GroupedExample, LabelFile, Over
from tercet.data.examples.negatives import DEPTH
from tercet.data.label_spec import HeldOutLabels, LabelsSpec
from tercet.data.sources.sequence_files import join_records
from tercet.data.specs import SEQUENCE_SETTINGS, Side
from tercet.messages import print_note, shorten
from tercet.spec import ProblemType
from tercet.tokens import Tokenizer


@dataclass(frozen=True, kw_only=True)
class LabeledExamples:
    """Tokenized texts and their labels, memory-mapped.

    Attributes:
        ids: (M,) ids of all texts, concatenated, without special tokens.
        starts: (N + 1,) int64 position of the start of each text, and of the end of the last one.
        labels: Labels as indices into `names`. One label per text: (N,) int64. One label per word: (M,) int64,
            IGNORE_INDEX except at the first token of a word. Several labels per text: (K,) int64, those of all texts
            concatenated. Numbers instead of labels: (N,) float64.
        names: Names of the labels; for numbers, only the name of the label field.
        over: Unit of a label: "texts", or "tokens" for one label per word.
        problem_type: Kind of the labels of a text: one label, several, or a number.
        label_starts: (N + 1,) int64 position in `labels` of the first label of each text, and of the end; None unless a
            text may have several labels.
        first_lengths: (N,) int64 number of tokens of the first text of each pair; None for single texts. A pair counts
            as one text, whose ids are those of both texts.
    """

    ids: np.ndarray
    starts: np.ndarray
    labels: np.ndarray
    names: tuple[str, ...]
    over: Over = "texts"
    problem_type: ProblemType = "single_label_classification"
    label_starts: np.ndarray | None = None
    first_lengths: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens of each text, without special tokens, (N,) int64."""
        return np.diff(self.starts)

    @property
    def row_lengths(self) -> np.ndarray:
        """Number of tokens of each text with bos and eos, and another eos between the texts of a pair, (N,) int64."""
        return self.lengths + (2 if self.first_lengths is None else 3)

    def targets(self, numbers: np.ndarray) -> np.ndarray:
        """Return the targets of the texts `numbers` (B,), if `over` is "texts".

        Returns:
            Label indices (B,) int64 or numbers (B,) float64; for several labels per text (B, L) float32, 1 for each
            label of the text and 0 for the others.
        """
        if self.label_starts is not None:
            return label_indicators(self.labels, self.label_starts, numbers, len(self.names))
        return np.asarray(self.labels[numbers])


@dataclass(frozen=True, kw_only=True)
class LabelCorpus(ExampleCorpus[LabeledExamples]):
    """Tokenized labeled texts in two parts.

    Attributes:
        labels: All labels of the training part, sorted. The targets of both parts are indices into them. If labels are
            numbers, only the name of the label field.
        scale: Mean and standard deviation of the training part's labels if they are numbers, else 0 and 1.
        lost: Number of labeled words in both parts that the tokenizer encodes to nothing; their labels are not used.
    """

    labels: tuple[str, ...]
    scale: TargetScale
    lost: int


def prepare_labels(
    spec: LabelsSpec,
    *,
    tokenizer: Tokenizer | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> LabelCorpus:
    """Return the corpus that `spec` describes, from the cache if it is there.

    Args:
        spec: Settings of the data.
        tokenizer: Tokenizer of a pretrained model, used instead of the spec's.
        expected_hash: Hash that the data must have, or None to accept any data. It is compared before any text is
            tokenized, printed or cached.
        progress: If True, show a bar on stderr, if that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: If texts cannot be read, tokenized or divided, all training texts have the same labels or nearly the
            same number, the validation part has a label that the training part lacks, the tokenizer lacks bos or eos,
            or the cache cannot be written.
    """
    return LabelPreparation(spec, tokenizer).prepare(expected_hash=expected_hash, progress=progress)


def read_label_examples(spec: LabelsSpec, part: Side) -> list[Example]:
    """Return the labeled texts of a part, without those whose text is empty.

    Raises:
        UserError: If texts cannot be read or divided, or all are empty.
    """
    return list(LabelPreparation(spec).examples(part))


class LabelPreparation(ExamplePreparation[Example, LabelCorpus]):
    """Preparation of labeled texts."""

    folder, title, singular, plural = "labeled", "labeled texts", "text", "texts"

    def __init__(self, spec: LabelsSpec, tokenizer: Tokenizer | None = None) -> None:
        self._spec, self._custom_tokenizer, self._lost, train = spec, tokenizer, 0, find_labels(spec)
        is_named = spec.source in (QUERY_DATASETS if spec.negatives else LABEL_DATASETS)
        settings = [] if is_named else [spec.encoding, spec.text_field, spec.label_field, spec.over]
        if not is_named and spec.problem_type != "single_label_classification":
            settings += [spec.problem_type, spec.label_separator, *spec.label_fields]
        if spec.pair_field is not None:
            negatives = [spec.negatives, spec.negative_field, DEPTH] if spec.negatives else []
            settings += ["pair", spec.encoding, spec.text_field, spec.pair_field, *negatives]
        newer_settings = [] if is_named else self._newer_settings()
        if spec.has_groups:
            self.singular, self.plural = "group", "groups"
        match spec.validation:
            case HeldOutLabels(source=source):
                held_out = find_labels(replace(spec, source=source))
            case None if is_named:
                held_out = find_labels(spec, "validation")
            case _:
                held_out = None
        super().__init__(
            str(spec.source), train, held_out, validation=spec.validation, settings=[*settings, *newer_settings]
        )

    def _newer_settings(self) -> list[Any]:
        """Return the settings that differ from their defaults and that older caches do not depend on."""
        spec, default = self._spec, LabelsSpec(source=self._spec.source)
        names = ("label_pattern", "group_field", "group_pattern", *SEQUENCE_SETTINGS)
        return [{name: getattr(spec, name)} for name in names if getattr(spec, name) != getattr(default, name)]

    def _find_duplicate_text(self, example: Example) -> str:
        is_grouped = isinstance(example, GroupedExample)
        return "\0".join(example.texts) if is_grouped else super()._find_duplicate_text(example)

    def _labels_to_spread(self, example: Example) -> tuple[str, ...]:
        return () if self._spec.problem_type == "regression" else example.labels

    def _check(self) -> None:
        super()._check()
        for source in (self._train, self._held_out):
            if isinstance(source, LabelFile) and (note := source.describe_left_out()):
                print_note(f"tercet: {note}")

    def _choose_tokenizer(self) -> Tokenizer:
        is_pair = self._spec.pair_field is not None
        return self._encoder_tokenizer(
            self._custom_tokenizer,
            self._spec.tokenizer,
            lambda example: example.texts if is_pair else (example.text,),
        )

    def _read_through(self) -> None:
        _ = self._labels, self._scale

    @cached_property
    def _labels(self) -> tuple[str, ...]:
        """Labels of the training part, sorted; for labels that are numbers, the name of their field.

        Raises:
            UserError: If all training texts have the same labels, or the validation part has a label that the training
                part lacks.
        """
        if self._spec.problem_type == "regression":
            return (self._spec.label_field,)
        train, validation = (
            Counter(label for example in self.examples(part) for label in example.labels)
            for part in ("train", "validation")
        )
        name = self.name
        if self._spec.problem_type == "multi_label_classification":
            self._check_sets(train)
        elif len(train) < 2:
            only_label = next(iter(train), "")
            raise UserError(
                f"{name}: every training text has the label {only_label!r}; use data with at least two labels"
            )
        if unknown := sorted(validation.keys() - train.keys()):
            label_list = ", ".join(f"{label!r} ({validation[label]:,} times)" for label in unknown[:5])
            remainder = f" and {len(unknown) - 5} more" if len(unknown) > 5 else ""
            raise UserError(
                f"{name}: only the validation part has the label {label_list}{remainder}; add training texts with this "
                "label, correct it, or remove these texts"
            )
        return tuple(sorted(train))

    def _check_sets(self, train: Counter[str]) -> None:
        """Raise UserError if all training texts have the same labels, or none has any."""
        texts = sum(1 for _ in self.examples("train"))
        if all(count == texts for count in train.values()):
            description = f"the labels {', '.join(map(repr, sorted(train)[:5]))}" if train else "no label"
            raise UserError(f"{self.name}: every training text has {description}; use data whose labels differ")

    @cached_property
    def _scale(self) -> TargetScale:
        """Mean and standard deviation of the training part's labels if they are numbers, else 0 and 1.

        Raises:
            UserError: If all numbers are equal, or nearly so.
        """
        if self._spec.problem_type != "regression":
            return TargetScale()
        numbers = np.array(array("d", (example.number for example in self.examples("train"))))  # eight bytes per text
        for _ in self.examples("validation"):  # reports errors in the validation part before anything is written
            pass
        mean, std = float(numbers.mean()), float(numbers.std())
        if numbers.min() == numbers.max():
            raise UserError(
                f"{self.name}: every training text has the number {numbers[0]:g}; use data with at least two numbers"
            )
        if std * limits.LABEL_NUMBER <= 1:
            raise UserError(
                f"{self.name}: the training texts' numbers are nearly equal, with a standard deviation of {std:g}; "
                "use a smaller unit for all of them, which makes the numbers larger"
            )
        return TargetScale(mean=mean, std=std)

    def _files(self) -> list[ArrayFile]:
        problem_type = self._spec.problem_type
        starts = "label_starts.npy" if problem_type == "multi_label_classification" else ""
        return [
            ArrayFile("ids.bin", id_dtype(self.tokenizer), "starts.npy"),
            ArrayFile("labels.bin", label_dtype(problem_type), starts),
            *([ArrayFile("first_lengths.bin", np.dtype(np.int64))] if self._spec.pair_field is not None else []),
        ]

    def _encode(self, examples: Sequence[Example], side: Side, first: int) -> Sequence[Sequence[Any]]:
        if self._spec.over == "tokens":
            words = encode_words(self.tokenizer, [example.texts for example in examples])
            self._lost += sum(int((firsts < 0).sum()) for _, firsts in words)
            labels = [
                self._labels_of_pieces(ids, firsts, example)
                for (ids, firsts), example in zip(words, examples, strict=True)
            ]
            return [ids for ids, _ in words], labels
        if self._spec.problem_type == "regression":
            labels = [[example.number] for example in examples]
        else:
            labels = [[self._numbers[label] for label in example.labels] for example in examples]
        if self._spec.pair_field is None:
            places = self._places(examples, side, first)
            return encode_located(self.tokenizer, [example.text for example in examples], places), labels
        firsts, seconds = (
            encode_located(
                self.tokenizer, [example.texts[part] for example in examples], self._places(examples, side, first)
            )
            for part in (0, 1)
        )
        ids = [np.concatenate(pair) for pair in zip(firsts, seconds, strict=True)]
        return ids, labels, [[len(ids)] for ids in firsts]

    def _places(self, examples: Sequence[Example], side: Side, first: int) -> Iterator[str]:
        """Yield the location of each example for messages: the name of its record, or its number in its part."""
        source = self._held_out if side == "validation" and self._held_out is not None else self._train
        names, texts = dict[str, str](), {example.text for example in examples}
        if isinstance(source, LabelFile) and source.is_sequences:  # the file is read again, since this is an error
            records = join_records(source.sequence_file.pieces(), source.name)
            names = {record.text: record.record for record in records if record.text in texts}
        for number, example in enumerate(examples, first):
            record = names.get(example.text)
            in_file = f"{source.name}, record {shorten(repr(record), 80)}"
            yield in_file if record else f"{self.name}, {side} text {number:,}"

    def _labels_of_pieces(self, ids: np.ndarray, firsts: np.ndarray, example: Example) -> np.ndarray:
        """Return the label of each token: the label of a word at its first token, IGNORE_INDEX elsewhere."""
        labels = np.full(len(ids), IGNORE_INDEX, dtype=np.int64)
        numbers = np.array([self._numbers[label] for label in example.labels], dtype=np.int64)
        labels[firsts[firsts >= 0]] = numbers[firsts >= 0]
        return labels

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """Index of each label."""
        return {label: number for number, label in enumerate(self._labels)}

    def _write(self, folder: Path, bar: Progress) -> dict[str, Any]:
        meta = super()._write(folder, bar)
        scale = {"mean": self._scale.mean, "std": self._scale.std}
        return {**meta, "labels": list(self._labels), **scale, "lost": self._lost}

    def _load(self, folder: Path, meta: dict[str, Any]) -> LabelCorpus:
        spec, unknown_id, names = self._spec, self.tokenizer.unk_id, tuple(meta["labels"])
        make_part = partial(LabeledExamples, names=names, over=spec.over, problem_type=spec.problem_type)
        corpus = LabelCorpus(
            **self._fields(folder, meta, make_part),
            labels=names,
            scale=TargetScale(mean=meta["mean"], std=meta["std"]),
            lost=meta["lost"],
        )
        train = corpus.train
        single_token_positions = train.starts[:-1][train.lengths == 1]
        unknown = 0 if unknown_id is None else int(np.count_nonzero(train.ids[single_token_positions] == unknown_id))
        check_unknown_share(self.name, self.tokenizer, unknown, len(train))
        return corpus
