"""The files of data to repair, the fields with text in their rows, and the item in a row."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tercet.config import UserError
from tercet.data.datasets.label_datasets import LABEL_DATASETS, find_labels
from tercet.data.datasets.pair_datasets import PAIR_DATASETS, find_pairs
from tercet.data.datasets.text_datasets import DATASETS, find_text
from tercet.data.examples.conversations import MESSAGES_FIELDS, Conversation, ConversationFile, find_conversations
from tercet.data.examples.labels import Example, LabelFile
from tercet.data.examples.pairs import Pair, PairFiles
from tercet.data.label_spec import LabelsSpec
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.fasta import SUFFIXES as SEQUENCE_SUFFIXES
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec

Spec = TextSpec | PairsSpec | LabelsSpec | ConversationsSpec


class RepairedItem(NamedTuple):
    """Properties of an item: if it is empty, and a text that is equal only for equal items."""

    is_empty: bool
    identity: str


@dataclass(frozen=True, kw_only=True)
class ItemReader:
    """Files and rows of data.

    Attributes:
        root: The file or folder.
        paths: Paths of the files.
        names: Name of the copy of each file, relative to the folder to write.
        fields: Keys or columns with text.
        read_object, read_row: Functions that return the item in an object of JSONL or in a row of a table, from its
            fields and its location.
        has_header: False for a table of pairs whose first line is a pair.
    """

    root: Path
    paths: list[Path]
    names: list[Path]
    fields: tuple[str, ...]
    read_object: Callable[[dict[str, object], str], RepairedItem]
    read_row: Callable[[dict[str, str], str], RepairedItem]
    has_header: bool = True

    @property
    def is_folder(self) -> bool:
        """True if the data is a folder."""
        return self.root.is_dir()

    @property
    def writes_folder(self) -> bool:
        """True if the copy is a folder."""
        return self.is_folder or len(self.paths) > 1

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns of a table without a header."""
        return self.fields


def find_item_reader(spec: Spec) -> ItemReader:
    """Return the files of `spec`, and how their rows are read.

    Raises:
        UserError: If the data does not consist of files that can be repaired.
    """
    if str(spec.source) in {**DATASETS, **PAIR_DATASETS, **LABEL_DATASETS}:
        raise UserError(f"{spec.source} is a named dataset; --fix repairs your own files")
    match spec:
        case TextSpec():
            source = find_text(spec)
        case PairsSpec():
            source = find_pairs(spec)
        case LabelsSpec():
            source = find_labels(spec)
        case ConversationsSpec():
            source = find_conversations(spec)
    match source:
        case DocumentFiles():
            reader = _documents(source)
        case PairFiles():
            reader = _pairs(source)
        case LabelFile():
            reader = _labels(source)
        case ConversationFile():
            reader = _conversations(source)
        case _:
            raise _unsupported(str(spec.source))
    for path in reader.paths:
        if uncompressed_suffix(path) in (".parquet", *SEQUENCE_SUFFIXES):
            raise _unsupported(str(path))
    return reader


def can_repair(spec: Spec) -> bool:
    """Return True if the data consists of files that can be repaired."""
    try:
        find_item_reader(spec)
    except UserError:
        return False
    return True


def _unsupported(name: str) -> UserError:
    return UserError(
        f"--fix repairs text, JSONL, CSV and TSV, and {name} is something else; repair it with a program for its format"
    )


def _documents(source: DocumentFiles) -> ItemReader:
    paths, field = source.files(), source.text_field
    names = [Path(path.name) if path == source.root else path.relative_to(source.root) for path in paths]

    def read(row: Mapping[str, object], location: str) -> RepairedItem:
        text = str(row[field])
        return RepairedItem(not text.strip(), text)

    return ItemReader(root=source.root, paths=paths, names=names, fields=(field,), read_object=read, read_row=read)


def _pairs(source: PairFiles) -> ItemReader:
    source.check()
    paths = source.files()
    names = [Path(path.name) for path in paths]
    if len({*names}) < len(names):  # as in de/train.txt and en/train.txt
        names = [Path(path.absolute().parent.name, path.name) for path in paths]
    if len({*names}) < len(names):
        raise UserError(f"{paths[0]} and {paths[1]} have the same name; rename one of them for --fix")
    fields = (source.source_field, source.target_field)

    def read(row: dict[str, object], location: str) -> RepairedItem:
        pair: Pair = source.read_object(row, location)
        return RepairedItem(pair.is_empty, "\0".join(pair))

    return ItemReader(
        root=source.source, paths=paths, names=names, fields=fields,
        read_object=read, read_row=lambda row, location: read({**row}, location), has_header=source.has_fields(),
    )  # fmt: skip


def _labels(source: LabelFile) -> ItemReader:
    def item(example: Example) -> RepairedItem:
        return RepairedItem(example.is_empty, repr((example.texts, example.labels)))

    fields = [source.text_field, source.pair_field, "tokens" if source.over == "tokens" else None]
    return ItemReader(
        root=source.path, paths=[source.path], names=[Path(source.path.name)], fields=tuple(filter(None, fields)),
        read_object=lambda row, location: item(source.read_object(row, location)),
        read_row=lambda row, location: item(source.read_row(row, location)),
    )  # fmt: skip


def _conversations(source: ConversationFile) -> ItemReader:
    def item(conversation: Conversation) -> RepairedItem:
        identity = "\0".join(part for message in conversation.messages for part in message.values())
        return RepairedItem(conversation.is_empty, identity)

    exchange = (source.prompt_field, source.response_field)
    return ItemReader(
        root=source.path, paths=[source.path], names=[Path(source.path.name)],
        fields=(source.messages_field, *MESSAGES_FIELDS, *exchange),
        read_object=lambda row, location: item(source.read_object(row, location)),
        read_row=lambda row, location: item(source.read_object({name: row[name] for name in exchange}, location)),
    )  # fmt: skip
