"""Summary of data before training: number and length of texts, scripts, labels, and problems.

Data is read as a stream. Memory use is eight bytes per document, to find duplicates, plus the number of texts of each
length.
"""

import hashlib
from array import array
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np

from tercet.config import UserError
from tercet.data.datasets.label_datasets import find_labels
from tercet.data.datasets.pair_datasets import find_pairs
from tercet.data.datasets.recognize import guess_label_format, recognize
from tercet.data.datasets.text_datasets import find_text
from tercet.data.examples.conversations import ROLES, ConversationFile, find_conversations
from tercet.data.examples.example_source import no_example_error
from tercet.data.examples.labels import LabelFile
from tercet.data.examples.pairs import PairFiles
from tercet.data.label_spec import LabelsSpec
from tercet.data.sources.custom_dataset import CustomDataset, Source
from tercet.data.sources.documents import DocumentFiles, DocumentSource, describe_left_out_records
from tercet.data.sources.fasta import SUFFIXES as SEQUENCES
from tercet.data.sources.formats import is_gzip, is_json, uncompressed_suffix
from tercet.data.sources.id_files import ARRAYS, IdFile
from tercet.data.sources.sequence_files import SequenceFile
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec
from tercet.data.summary.invalid_bytes import InvalidBytes, InvalidPlace, find_invalid_bytes
from tercet.data.summary.scripts import ScriptCounts
from tercet.data.summary.sequence_summary import SequenceSummary, summarize_sequences
from tercet.data.summary.statistics import Lengths, Numbers
from tercet.data.text_hashes import hash_text
from tercet.spec import ProblemType

FORMATS = {
    ".jsonl": "JSON lines", ".csv": "CSV", ".tsv": "TSV", ".parquet": "Parquet", ".bin": "ids", ".npy": "ids in NumPy",
    **dict.fromkeys(SEQUENCES, "FASTA"), ".fq": "FASTQ", ".fastq": "FASTQ",
}  # fmt: skip
FileSource = TypeVar("FileSource", PairFiles, LabelFile, ConversationFile)
Unit = Literal["documents", "lists of ids", "pairs", "labeled texts", "conversations"]


@dataclass(frozen=True, kw_only=True)
class TextSummary:
    """Summary of all nonempty texts, of one side of all pairs, or of all messages of a role.

    Attributes:
        n_bytes: Bytes of the texts in UTF-8.
        characters: Statistics of the number of characters per text.
        words: Statistics of the number of words per text. Words are separated by white space.
        scripts: Share of each script among all letters, largest first.
    """

    n_bytes: int
    characters: Lengths
    words: Lengths
    scripts: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    """Summary of a file, a folder or a named dataset.

    Attributes:
        format: Description of the file's format.
        unit: Kind of the items.
        count: Number of items that are not empty.
        empty: Number of empty items: documents and labeled texts without characters other than white space, lists
            without ids, pairs with an empty side, and conversations without a learned answer.
        duplicates: Number of items that are not empty and whose texts are equal to those of an earlier item.
        texts: Summaries of the texts: "text", "source" and "target" for pairs, one per role for conversations; none for
            ids.
        labels: Number of occurrences of each label, most frequent first; empty for numbers and for other data.
        problem_type: Kind of the labels, or "" for other data.
        numbers: Statistics of labels that are numbers, else None.
        label_counts: Statistics of the number of labels per text, if texts may have several, else None.
        labels_look_like: "numbers" or "lists" if each text has one label and the labels look like numbers, or like
            lists of labels.
        turns: Statistics of the number of messages per conversation, else None.
        roles: Number of messages of each role.
        ids, largest_id: Statistics of the lengths of lists of ids, and the largest id, else None.
        invalid, invalid_places: Number of bytes that are not UTF-8, and the places of the first ones. They are read as
            U+FFFD. Only files whose encoding is UTF-8 are checked.
        looks_like_lines: True if the file is read as one document but looks like one document per line.
        left_out: Number of files in a folder that are not read, by suffix.
        sequences: Summary of biological sequences if all files are FASTA or FASTQ, else None.
    """

    source: str
    format: str
    unit: Unit
    count: int
    empty: int
    duplicates: int
    texts: dict[str, TextSummary]
    labels: dict[str, int]
    problem_type: ProblemType | Literal[""] = ""
    numbers: Numbers | None = None
    label_counts: Lengths | None = None
    labels_look_like: Literal["", "numbers", "lists"] = ""
    turns: Lengths | None = None
    roles: dict[str, int] = field(default_factory=dict[str, int])
    ids: Lengths | None = None
    largest_id: int | None = None
    invalid: int = 0
    invalid_places: tuple[InvalidPlace, ...] = ()
    looks_like_lines: bool = False
    left_out: dict[str, int] = field(default_factory=dict[str, int])
    sequences: SequenceSummary | None = None


def summarize_data(
    data: str | Path | CustomDataset | TextSpec | PairsSpec | LabelsSpec | ConversationsSpec,
) -> DataSummary:
    """Summarize a file, a folder or a named dataset, which is read as a stream.

    Args:
        data: Spec, path, name of a dataset, or dataset of another package. For a path, the kind of data is detected
            from the name and the first lines of the file; for a dataset of another package, from its first example.

    Raises:
        UserError: If the data does not exist, or does not have the format that its name implies.
    """
    if isinstance(data, str | Path | CustomDataset):
        spec = recognize(data if isinstance(data, CustomDataset) else str(data))
    else:
        spec = data
    match spec:
        case PairsSpec():
            return _summarize_pairs(spec)
        case LabelsSpec():
            return _summarize_labels(spec)
        case ConversationsSpec():
            return _summarize_conversations(spec)
        case TextSpec():
            source = find_text(spec)
            return _summarize_ids(source) if isinstance(source, IdFile) else _summarize_text(spec, source)


class _TextCounts:
    """Counts of the texts of one side."""

    def __init__(self) -> None:
        self._characters, self._words = Counter[int](), Counter[int]()
        self._scripts, self._bytes = ScriptCounts(), 0
        self._length = self._n_words = 0  # of the current text
        self._ends_in_word = False

    def push(self, piece: str, *, last: bool) -> None:
        """Add the next piece of a text."""
        words = len(piece.split())
        continues = self._ends_in_word and words and not piece[0].isspace()  # sequences are cut within words
        self._length, self._n_words = self._length + len(piece), self._n_words + words - bool(continues)
        self._ends_in_word = not piece[-1:].isspace() if piece else self._ends_in_word
        self._bytes += len(piece.encode())
        self._scripts.push(piece)
        if last:
            if self._n_words:
                self._characters[self._length] += 1
                self._words[self._n_words] += 1
            self._length, self._n_words, self._ends_in_word = 0, 0, False

    def characters(self) -> dict[str, int]:
        """Return the number of occurrences of each character."""
        return self._scripts.characters()

    def summary(self) -> TextSummary:
        return TextSummary(
            n_bytes=self._bytes,
            characters=Lengths.of(self._characters),
            words=Lengths.of(self._words),
            scripts=self._scripts.shares(),
        )


def _summarize_text(spec: TextSpec, source: DocumentSource) -> DataSummary:
    texts, hashes, empty = _TextCounts(), array("Q"), 0
    invalid, pieces, looks_like_lines, left_out = InvalidBytes(), source.pieces(), False, dict[str, int]()
    sequence_files, has_only_sequences = list[SequenceFile](), False
    if isinstance(source, DocumentFiles):
        text_files = (path for path in source.files() if uncompressed_suffix(path) not in (".parquet", *ARRAYS))
        invalid = find_invalid_bytes(text_files, source.encoding)
        source = replace(source, sequences=replace(spec.sequences, errors="skip"), errors=invalid.errors)
        sequence_files = source.sequence_files()
        has_only_sequences = len(sequence_files) == len(source.files())
        pieces, looks_like_lines, left_out = (
            source.all_pieces(),
            source.looks_like_lines(),
            dict(source.count_unread_files()),
        )
    hasher, has_text = hashlib.blake2b(digest_size=8), False
    for text, last, *_ in pieces:
        hasher.update(text.encode())
        has_text = has_text or not (text.isspace() or not text)
        texts.push(text, last=last)
        if last:
            empty += not has_text
            if has_text:
                hashes.append(int.from_bytes(hasher.digest()))
            hasher, has_text = hashlib.blake2b(digest_size=8), False
    if not hashes:
        note = next(describe_left_out_records(source), f"{source.name} is empty")
        raise UserError(f"{note}; use a file that contains text")
    return DataSummary(
        source=str(spec.source),
        format=_format(spec.source, f"key {spec.text_field!r}", f"column {spec.text_field!r}"),
        unit="documents",
        count=len(hashes),
        empty=empty,
        duplicates=_count_duplicates(hashes),
        texts={"text": texts.summary()},
        labels={},
        invalid=invalid.count,
        invalid_places=invalid.places,
        looks_like_lines=looks_like_lines,
        left_out=left_out,
        sequences=summarize_sequences(texts.characters(), sequence_files) if has_only_sequences else None,
    )


def _summarize_ids(file: IdFile) -> DataSummary:
    lengths, hashes, largest = Counter[int](), array("Q"), 0
    hasher, length = hashlib.blake2b(digest_size=8), 0
    for ids, last in file.blocks():
        largest = max(largest, int(ids.max(initial=0)))
        hasher.update(ids.tobytes())
        length += len(ids)
        if last:
            lengths[length] += 1
            if length:
                hashes.append(int.from_bytes(hasher.digest()))
            hasher, length = hashlib.blake2b(digest_size=8), 0
    empty = lengths.pop(0, 0)
    kind = f"{file.dtype} each" if uncompressed_suffix(file.path) == ".bin" else "lists of ids"
    return DataSummary(
        source=file.name,
        format=_format(file.name, kind, ""),
        unit="lists of ids",
        count=lengths.total(),
        empty=empty,
        duplicates=_count_duplicates(hashes),
        texts={},
        labels={},
        ids=Lengths.of(lengths),
        largest_id=largest,
    )


def _summarize_pairs(spec: PairsSpec) -> DataSummary:
    sides, hashes, empty = {"source": _TextCounts(), "target": _TextCounts()}, array("Q"), 0
    source, invalid = find_pairs(spec), InvalidBytes()
    if isinstance(source, PairFiles):
        source, invalid = _tolerate_invalid_bytes(source)
    for pair in source.examples():
        if pair.is_empty:
            empty += 1
            continue
        for text, counts in zip(pair, sides.values(), strict=True):
            counts.push(text, last=True)
        hashes.append(hash_text("\0".join(pair)))
    if not hashes:
        raise UserError(f"{spec.source} has no pair with text on both sides; use a file that contains some")
    keys = f"{spec.source_language or 'source'!r} and {spec.target_language or 'target'!r}"
    return DataSummary(
        source=str(spec.source),
        format="two files, line by line" if spec.target else _format(spec.source, f"keys {keys}", "columns"),
        unit="pairs",
        count=len(hashes),
        empty=empty,
        duplicates=_count_duplicates(hashes),
        texts={name: counts.summary() for name, counts in sides.items()},
        labels={},
        invalid=invalid.count,
        invalid_places=invalid.places,
    )


def _summarize_labels(spec: LabelsSpec) -> DataSummary:
    texts, labels, hashes, empty = _TextCounts(), Counter[str](), array("Q"), 0
    numbers, label_counts, sequence_files = array("d"), Counter[int](), list[SequenceFile]()
    source, invalid = find_labels(spec), InvalidBytes()
    if isinstance(source, LabelFile):
        source, invalid = _tolerate_invalid_bytes(source)
        if source.is_sequences:
            source = replace(source, sequences=replace(source.sequences, errors="skip"))
            sequence_files = [source.sequence_file]
    for example in source.examples():
        if example.is_empty:
            empty += 1
            continue
        texts.push(example.text, last=True)
        if spec.problem_type == "regression":
            numbers.append(example.number)
        else:
            labels.update(example.labels)
            label_counts[len(example.labels)] += 1
        hashes.append(hash_text("\0".join(example.texts)))
    if not hashes:
        notes = [f"{spec.source} has no labeled text", *(file.describe_left_out() for file in sequence_files)]
        raise UserError(f"{'; '.join(filter(None, notes))}; use a file that contains some")
    several = spec.problem_type == "multi_label_classification"
    single = spec.problem_type == "single_label_classification" and spec.over == "texts"
    fields = f"{spec.text_field!r} and {', '.join(map(repr, spec.label_fields)) or repr(spec.label_field)}"
    return DataSummary(
        source=str(spec.source),
        format=_format(spec.source, f"keys {fields}", f"columns {fields}"),
        unit="labeled texts",
        count=len(hashes),
        empty=empty,
        duplicates=_count_duplicates(hashes),
        texts={"text": texts.summary()},
        labels=dict(sorted(labels.items(), key=lambda item: (-item[1], item[0]))),
        problem_type=spec.problem_type,
        numbers=Numbers.of(numbers) if numbers else None,
        label_counts=Lengths.of(label_counts) if several else None,
        labels_look_like=guess_label_format(labels, spec.label_separator) if single else "",
        invalid=invalid.count,
        invalid_places=invalid.places,
        sequences=summarize_sequences(texts.characters(), sequence_files) if sequence_files else None,
    )


def _summarize_conversations(spec: ConversationsSpec) -> DataSummary:
    source, invalid = find_conversations(spec), InvalidBytes()
    if isinstance(source, ConversationFile):
        source, invalid = _tolerate_invalid_bytes(source)
    texts, messages, turns = {role: _TextCounts() for role in ROLES}, Counter[str](), Counter[int]()
    hashes, empty = array("Q"), 0
    for conversation in source.examples():
        if conversation.is_empty:
            empty += 1
            continue
        for message in conversation.messages:
            messages[message["role"]] += 1
            texts[message["role"]].push(message["content"], last=True)
        turns[len(conversation.messages)] += 1
        hashes.append(hash_text("\0".join(part for message in conversation.messages for part in message.values())))
    if not hashes:
        raise no_example_error(source)
    return DataSummary(
        source=str(spec.source),
        format=_format(spec.source, "messages", f"columns {spec.prompt_field!r} and {spec.response_field!r}"),
        unit="conversations",
        count=len(hashes),
        empty=empty,
        duplicates=_count_duplicates(hashes),
        texts={role: texts[role].summary() for role in ROLES if messages[role]},
        labels={},
        turns=Lengths.of(turns),
        roles={role: messages[role] for role in ROLES if messages[role]},
        invalid=invalid.count,
        invalid_places=invalid.places,
    )


def _tolerate_invalid_bytes(source: FileSource) -> tuple[FileSource, InvalidBytes]:
    """Return the source, which now replaces bytes that are not UTF-8 if there are any, and their number and places."""
    source.size()  # raises with the nearest path if the file does not exist
    invalid = find_invalid_bytes(source.files() if isinstance(source, PairFiles) else [source.path], source.encoding)
    return replace(source, errors=invalid.errors), invalid


def _count_duplicates(hashes: "array[int]") -> int:
    return len(hashes) - len(np.unique(np.frombuffer(hashes, dtype=np.uint64)))


def _format(source: Source, keys: str, columns: str) -> str:
    if isinstance(source, CustomDataset):
        return f"a custom dataset{f', {keys}' if keys else ''}"
    path = Path(source).expanduser()
    if path.is_dir():
        return "a folder"
    if not path.exists():
        return "a named dataset"
    suffix = uncompressed_suffix(path)
    compression = ", gzip" if is_gzip(path) else ""
    name = "JSON" if is_json(path) else FORMATS.get(suffix, "text")
    fields = columns if suffix in (".csv", ".tsv", ".parquet") else keys if suffix in (".jsonl", ".bin") else ""
    return f"{name}{f', {fields}' if fields else ''}{compression}"
