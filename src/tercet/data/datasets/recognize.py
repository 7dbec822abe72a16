"""Detection of text, pairs, labeled texts and conversations from the name and first lines of a file.

Labels are lists or numbers if the first label of a JSONL file is unambiguous. In a table every value is text, and 3 may
be a number or the name of a class, so `guess_label_format` only gives a hint.
"""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from tercet.config import UserError
from tercet.data.datasets.label_datasets import LABEL_DATASETS
from tercet.data.datasets.pair_datasets import PAIR_DATASETS
from tercet.data.datasets.text_datasets import DATASETS
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

    A table or JSONL file with the fields "source" and "target" contains pairs. With a text and a "label" it contains
    labeled texts, with only a text it is text. Without these, messages or a prompt and its response are conversations.
    A `.tsv` file of two columns without these names contains pairs.

    Args:
        target: File of translations, line by line.
        text_field, label_field: Names of the fields (default: "text" and "label", or "tokens" and "labels").
        over: Unit of a label. If set, the source contains labeled texts.
        problem_type: Kind of the labels. If set, the source contains labeled texts.
        messages_field, prompt_field, response_field: Names of the fields. If one is set, the source contains
            conversations.

    Raises:
        UserError: If the source does not exist, or has none of these fields.
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
        DocumentFiles(root=path).files()
        return text
    fields = _read_fields(path, encoding)
    is_labelled = (label_field, over, problem_type) != (None, None, None)
    if is_labelled or {text.text_field, "label"} <= fields:
        return _with_problem_type(labels_spec, problem_type)
    return text if text_field is not None else _recognize_fields(path, fields, text, conversations)


def _recognize_fields(
    path: Path, fields: frozenset[str], text: TextSpec, conversations: ConversationsSpec
) -> TextSpec | PairsSpec | LabelsSpec | ConversationsSpec:
    """Return the spec of a file whose fields have their default names; `text` if it has no others."""
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
    """Return what the labels of texts with one label each may be instead.

    They are "numbers" if all are numbers, at least `MIN_NUMBERS` different ones. They are "lists" if more than half of
    them contain the separator.
    """
    distinct = list(labels)
    if len(distinct) >= MIN_NUMBERS and all(NUMBER.fullmatch(label) for label in distinct):
        return "numbers"
    return "lists" if 2 * sum(separator in label for label in distinct) > len(distinct) else ""


def kind_of_labels(
    source: str, encoding: str, label_field: str, *, over: Literal["texts", "tokens"] = "texts"
) -> ProblemType:
    """Return the kind of labels of a dataset or a file.

    For JSONL, it is detected from the first object if its label cannot be the name of a class. Otherwise a text has one
    label.
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
    """Return True if a `.tsv` file starts with two columns that do not have our names."""
    first = next(_first_lines(path, encoding), "").split("\t")
    return len(first) == 2 and "text" not in (column.strip() for column in first)


def _read_fields(path: Path, encoding: str) -> frozenset[str]:
    """Return the keys of the first object, or the columns in the header; empty if the file has neither."""
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
