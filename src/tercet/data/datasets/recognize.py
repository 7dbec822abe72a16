"""Detection of text, pairs, labeled texts and conversations from the name and first lines of a file.

The first of these rules that applies to the fields (keys or columns) of a JSONL file or a table decides. Everything
else is text.

- a text and "label": labeled texts
- "tokens" and "labels": texts with a label for each word
- "source" and "target": pairs
- "messages" or "conversations" in JSONL, or "prompt" and "response", and no text: conversations
- two columns of a `.tsv` file, none of them called "text": pairs

In JSONL, lists of labels and numbers are recognized by the first label, if it is a list or a decimal number. In a table
every value is text, and 3 may be a number or the name of a class, so `guess_label_format` only gives a hint.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tercet.config import UserError
from tercet.data.datasets.label_datasets import LABEL_DATASETS
from tercet.data.datasets.pair_datasets import PAIR_DATASETS
from tercet.data.datasets.text_datasets import DATASETS, find_documents
from tercet.data.examples.conversations import EXCHANGE_FIELDS, MESSAGES_FIELDS
from tercet.data.examples.label_values import NUMBER
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.files import find_path, read_lines, read_objects
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.tables import TABLE_SUFFIXES, column_names
from tercet.data.specs import ConversationsSpec, LabelsSpec, PairsSpec, TextSpec
from tercet.spec import ProblemType

SAMPLE_LINES = 100  # lines searched for the first nonempty one
MIN_NUMBERS = 20  # distinct numbers; fewer may be the names of classes


def recognize(
    source: str,
    target: str | None = None,
    *,
    encoding: str = "utf-8",
    text_field: str | None = None,
    label_field: str | None = None,
    over: Literal["texts", "tokens"] | None = None,
    problem_type: ProblemType | None = None,
    messages_field: str | None = None,
    prompt_field: str | None = None,
    response_field: str | None = None,
) -> TextSpec | PairsSpec | LabelsSpec | ConversationsSpec:
    """Return the spec to read `source`, a named dataset or a path.

    If the arguments do not decide the kind of data, the rules of this module do.

    Args:
        source: Named dataset or path.
        target: File of translations, line by line. If set, `source` contains the other side of the pairs.
        encoding: Encoding of the files.
        text_field: Name of the text's field (default: "text"). If set, a file without "label" is text.
        label_field: Name of the label's field (default: "label"). If set, the source contains labeled texts.
        over: Unit of a label. If set, the source contains labeled texts.
        problem_type: Kind of the labels. If set, the source contains labeled texts.
        messages_field, prompt_field, response_field: Names of the fields. If one is set, the source contains
            conversations.

    Raises:
        UserError: If the source does not exist, or is a folder without readable files.
    """
    if target is not None or source in PAIR_DATASETS:
        return PairsSpec(source=source, target=target, encoding=encoding)
    settings = {"messages_field": messages_field, "prompt_field": prompt_field, "response_field": response_field}
    conversation_fields: dict[str, Any] = {name: value for name, value in settings.items() if value is not None}
    conversations = ConversationsSpec(source=source, encoding=encoding, **conversation_fields)
    if conversation_fields:
        return conversations
    text = TextSpec(source=source, encoding=encoding, text_field=text_field or "text")
    if source in DATASETS:
        return text
    labels_spec = LabelsSpec(
        source=source,
        encoding=encoding,
        text_field=text.text_field,
        label_field=label_field or "label",
        over=over or "texts",
        problem_type=problem_type or "single_label_classification",
    )
    if source in LABEL_DATASETS:
        return _with_problem_type(labels_spec, problem_type)
    path = find_path(source)
    if not path.is_file():
        _check_folder(source, path)
        return text
    fields = _read_fields(path, encoding)
    is_labeled = (label_field, over, problem_type) != (None, None, None)
    if is_labeled or {text.text_field, "label"} <= fields:
        return _with_problem_type(labels_spec, problem_type)
    return text if text_field is not None else _recognize_fields(path, fields, text, conversations)


def _check_folder(source: str, path: Path) -> None:
    """Reject a missing source with the nearest name, and a folder without readable files."""
    find_documents(source)
    DocumentFiles(root=path).files()


def _recognize_fields(
    path: Path, fields: frozenset[str], text: TextSpec, conversations: ConversationsSpec
) -> TextSpec | PairsSpec | LabelsSpec | ConversationsSpec:
    """Return the spec of a file by the default names of its fields, or `text` if none of the rules applies."""
    source, encoding = text.source, text.encoding
    if {"tokens", "labels"} <= fields:
        return LabelsSpec(source=source, encoding=encoding, over="tokens")
    if {"source", "target"} <= fields:
        return PairsSpec(source=source, encoding=encoding)
    has_messages = uncompressed_suffix(path) == ".jsonl" and not fields.isdisjoint(MESSAGES_FIELDS)
    if (has_messages or {*EXCHANGE_FIELDS} <= fields) and text.text_field not in fields:
        return conversations
    is_pairs = uncompressed_suffix(path) == ".tsv" and _has_two_columns(path, encoding)
    return PairsSpec(source=source, encoding=encoding) if is_pairs else text


def _with_problem_type(spec: LabelsSpec, problem_type: ProblemType | None) -> LabelsSpec:
    """Return the spec with the given kind of labels, or with the kind detected from its source."""
    kind = problem_type or kind_of_labels(spec.source, spec.encoding, spec.label_field, over=spec.over)
    return replace(spec, problem_type=kind)


def guess_label_format(labels: Iterable[str], separator: str) -> Literal["", "numbers", "lists"]:
    """Return what labels that are read as single labels look like: "numbers", "lists" or "" (neither).

    They look like numbers if all are numbers, and at least `MIN_NUMBERS`. They look like lists if more than half of
    them contain the separator.

    Args:
        labels: Distinct labels.
        separator: Separator of the labels in a list.
    """
    distinct = list(labels)
    if len(distinct) >= MIN_NUMBERS and all(NUMBER.fullmatch(label) for label in distinct):
        return "numbers"
    return "lists" if 2 * sum(separator in label for label in distinct) > len(distinct) else ""


def kind_of_labels(
    source: str, encoding: str, label_field: str, *, over: Literal["texts", "tokens"] = "texts"
) -> ProblemType:
    """Return the kind of the labels of a named dataset or a file.

    If the label of the first object of a JSONL file is a list, texts have several labels. If it is a decimal number,
    labels are numbers. In all other files, and over tokens, a text or word has one label.
    """
    if source in LABEL_DATASETS:
        return LABEL_DATASETS[source].problem_type
    path = find_path(source)
    if over == "texts" and uncompressed_suffix(path) == ".jsonl" and path.is_file():
        label = _first_object(path, encoding).get(label_field)
        if isinstance(label, list):
            return "multi_label_classification"
        if isinstance(label, float):
            return "regression"
    return "single_label_classification"


def _has_two_columns(path: Path, encoding: str) -> bool:
    """Return True if the first line of a `.tsv` file has two columns, none of them called "text"."""
    first = next(_first_lines(path, encoding), "").split("\t")
    return len(first) == 2 and "text" not in (column.strip() for column in first)


def _read_fields(path: Path, encoding: str) -> frozenset[str]:
    """Return the keys of a JSONL file's first object, or the columns of a table; empty for other files."""
    suffix = uncompressed_suffix(path)
    if suffix == ".jsonl":
        return frozenset(_first_object(path, encoding))
    first = next(_first_lines(path, encoding), "") if suffix in TABLE_SUFFIXES else ""
    return frozenset(column_names(first, suffix) if first else ())


def _first_object(path: Path, encoding: str) -> dict[str, object]:
    """Return the first object of a JSONL file or JSON array, or an empty one if it cannot be read."""
    try:
        return next((values for _, values in read_objects(path, encoding, "replace", [])), {})
    except UserError:
        return {}


def _first_lines(path: Path, encoding: str) -> Iterator[str]:
    return (line for line in islice(read_lines(path, encoding, "replace"), SAMPLE_LINES) if line.strip())
