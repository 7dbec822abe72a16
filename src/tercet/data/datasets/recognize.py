"""Detection of text, pairs, labeled texts and conversations from the name and first lines of a file.

The first of these rules that applies to the fields (keys or columns) of a JSONL file or a table decides. Everything
else is text.

- a text and "label": labeled texts
- "tokens" and "labels": texts with a label for each word
- "source" and "target": pairs
- "messages" or "conversations" in JSONL, or "prompt" and "response", and no text: conversations
- two columns of a `.tsv` file, none of them called "text": pairs

The text may also be in another of `TEXT_FIELDS`. If there is only one more field besides "id", and it is one of
`LABEL_FIELDS`, the texts are labeled. Two fields of `PAIR_FIELDS`, or two that are codes of languages such as "de" and
"en", are pairs. `describe_fields` reports such a guess.

In JSONL, lists of labels and numbers are recognized by the first label, if it is a list or a decimal number. In a table
every value is text, and 3 may be a number or the name of a class, so `guess_label_format` only gives a hint.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
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
from tercet.data.label_spec import LabelsSpec
from tercet.data.sources.custom_dataset import CustomDataset, Source
from tercet.data.sources.dataset_source import DatasetSource
from tercet.data.sources.documents import DocumentFiles
from tercet.data.sources.fasta import SUFFIXES as SEQUENCE_SUFFIXES
from tercet.data.sources.files import find_path, read_lines, read_objects
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.sources.tables import TABLE_SUFFIXES, column_names, is_separator_line
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec
from tercet.spec import ProblemType

TEXT_FIELDS = ("text", "sequence", "content", "body", "sentence")
LABEL_FIELDS = ("label", "class", "category", "sentiment")
PAIR_FIELDS = (("source", "target"), ("src", "tgt"))
LANGUAGE = re.compile("[a-z]{2}")
JSON_LINES = Path("examples.jsonl")  # stands for a dataset of another package, which is read as JSONL
SAMPLE_LINES = 100  # lines searched for the first nonempty one
MIN_NUMBERS = 20  # distinct numbers; fewer may be the names of classes


def recognize(
    source: Source,
    target: str | None = None,
    *,
    encoding: str = "utf-8",
    text_field: str | None = None,
    label_field: str | None = None,
    label_pattern: str | None = None,
    over: Literal["texts", "tokens"] | None = None,
    problem_type: ProblemType | None = None,
    messages_field: str | None = None,
    prompt_field: str | None = None,
    response_field: str | None = None,
    source_language: str | None = None,
    target_language: str | None = None,
) -> TextSpec | PairsSpec | LabelsSpec | ConversationsSpec:
    """Return the spec to read `source`, by the arguments or else by the rules of this module.

    Args:
        source: Named dataset, path, or dataset of another package, whose first example decides like the first line of
            JSONL.
        target: File of translations, line by line. If set, `source` contains the other side of the pairs.
        encoding: Encoding of the files.
        text_field: Name of the text's field (default: "text"). If set, a file without "label" is text.
        label_field, label_pattern, over, problem_type: Field of the label (default: "label"), pattern of the label in
            FASTA, unit and kind of the labels. If one is set, the source contains labeled texts.
        messages_field, prompt_field, response_field: Fields of conversations. If one is set, these are expected.
        source_language, target_language: Names of the fields of pairs. If one is set, the source contains pairs.

    Raises:
        UserError: If the source does not exist, or is a folder without readable files.
    """
    if target is not None or source in PAIR_DATASETS or (source_language, target_language) != (None, None):
        return PairsSpec(
            source=source, target=target, encoding=encoding,
            source_language=source_language, target_language=target_language,
        )  # fmt: skip
    exchange = {"messages_field": messages_field, "prompt_field": prompt_field, "response_field": response_field}
    conversations = _conversations(source, encoding, exchange)
    if any(exchange.values()):
        return conversations
    text = TextSpec(source=source, encoding=encoding, text_field=text_field or "text")
    if source in DATASETS:
        return text
    labels_spec = LabelsSpec(
        source=source, encoding=encoding, text_field=text.text_field, label_field=label_field or "label",
        label_pattern=label_pattern, over=over or "texts", problem_type=problem_type or "single_label_classification",
    )  # fmt: skip
    if source in LABEL_DATASETS:
        return _with_problem_type(labels_spec, problem_type)
    if (path_and_fields := _find_fields(source, encoding)) is None:
        return text
    path, fields = path_and_fields
    if text_field is None:
        labels_spec = _guess_fields(labels_spec, fields, guess_label=label_field is None)
        text = replace(text, text_field=labels_spec.text_field)
    if {text.text_field, labels_spec.label_field} <= {*fields} or any((label_field, label_pattern, over, problem_type)):
        return _with_problem_type(labels_spec, problem_type)
    return text if text_field is not None else _recognize_fields(path, fields, text, conversations)


def _conversations(source: Source, encoding: str, fields: Mapping[str, str | None]) -> ConversationsSpec:
    settings: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
    return ConversationsSpec(source=source, encoding=encoding, **settings)


def _find_fields(source: Source, encoding: str) -> tuple[Path, list[str]] | None:
    """Return the path and the fields of a file or dataset, or None for a folder.

    Raises:
        UserError: If the source does not exist, or is a folder without readable files.
    """
    if isinstance(source, CustomDataset):
        return JSON_LINES, list(_first_row(source))
    path = find_path(source)
    if path.is_file():
        return path, read_fields(path, encoding)
    _check_folder(source, path)
    return None


def _check_folder(source: str, path: Path) -> None:
    """Reject a missing source with the nearest name, and a folder without readable files."""
    find_documents(source)
    DocumentFiles(root=path).files()


def _guess_fields(spec: LabelsSpec, fields: list[str], *, guess_label: bool) -> LabelsSpec:
    """Return the spec with the fields of the text and, with `guess_label`, of the label that a file probably has."""
    text_field = next((name for name in TEXT_FIELDS if name in fields), None)
    if text_field is None:
        return spec
    others = [name for name in fields if name not in (text_field, "id")]
    has_label = guess_label and len(others) == 1 and others[0] in LABEL_FIELDS
    return replace(spec, text_field=text_field, label_field=others[0] if has_label else spec.label_field)


def _recognize_fields(
    path: Path, fields: list[str], text: TextSpec, conversations: ConversationsSpec
) -> TextSpec | PairsSpec | LabelsSpec | ConversationsSpec:
    """Return the spec of a file by the default names of its fields, or `text` if none of the rules applies."""
    source, encoding = text.source, text.encoding
    if {"tokens", "labels"} <= {*fields}:
        return LabelsSpec(source=source, encoding=encoding, over="tokens")
    if {"source", "target"} <= {*fields}:
        return PairsSpec(source=source, encoding=encoding)
    if tuple(fields) in PAIR_FIELDS or (len(fields) == 2 and all(LANGUAGE.fullmatch(name) for name in fields)):
        first, second = fields
        return PairsSpec(source=source, encoding=encoding, source_language=first, target_language=second)
    has_messages = uncompressed_suffix(path) == ".jsonl" and not {*fields}.isdisjoint(MESSAGES_FIELDS)
    if (has_messages or {*EXCHANGE_FIELDS} <= {*fields}) and text.text_field not in fields:
        return conversations
    is_pairs = uncompressed_suffix(path) == ".tsv" and _has_two_columns(path, encoding)
    return PairsSpec(source=source, encoding=encoding) if is_pairs else text


def _with_problem_type(spec: LabelsSpec, problem_type: ProblemType | None) -> LabelsSpec:
    """Return the spec with the given kind of labels, or with the kind detected from its source."""
    kind = problem_type or kind_of_labels(spec.source, spec.encoding, spec.label_field, over=spec.over)
    return replace(spec, problem_type=kind)


def describe_fields(spec: TextSpec | PairsSpec | LabelsSpec | ConversationsSpec) -> str:
    """Return the fields of a recognized spec for a message, or "" if they have their usual names."""
    match spec:
        case PairsSpec():
            fields = {"source": spec.source_language or "source", "target": spec.target_language or "target"}
        case LabelsSpec() if uncompressed_suffix(Path(str(spec.source))) in SEQUENCE_SUFFIXES:
            is_usual = spec.label_pattern is not None or spec.label_field == "label"
            return "" if is_usual else f"the label in {spec.label_field!r} of its headers (--label-field)"
        case LabelsSpec():
            fields = {"text": spec.text_field, "label": spec.label_field}
        case TextSpec():
            fields = {"text": spec.text_field}
        case _:
            return ""
    if all(name == field for name, field in fields.items()):
        return ""
    return " and ".join(f"the {name} in {field!r} (--{name}-field)" for name, field in fields.items())


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
    source: Source, encoding: str, label_field: str, *, over: Literal["texts", "tokens"] = "texts"
) -> ProblemType:
    """Return the kind of the labels of a named dataset or a file.

    If the label of the first object of a JSONL file is a list, texts have several labels. If it is a decimal number,
    labels are numbers. In all other files, and over tokens, a text or word has one label.
    """
    if source in LABEL_DATASETS:
        return LABEL_DATASETS[str(source)].problem_type
    is_custom = isinstance(source, CustomDataset)
    path = JSON_LINES if is_custom else find_path(source)
    if over == "texts" and (is_custom or (uncompressed_suffix(path) == ".jsonl" and path.is_file())):
        label = (_first_row(source) if is_custom else _first_object(path, encoding)).get(label_field)
        if isinstance(label, list):
            return "multi_label_classification"
        if isinstance(label, float):
            return "regression"
    return "single_label_classification"


def _has_two_columns(path: Path, encoding: str) -> bool:
    """Return True if the first line of a `.tsv` file has two columns, none of them called "text"."""
    first = next(_first_lines(path, encoding), "").split("\t")
    return len(first) == 2 and "text" not in (column.strip() for column in first)


def read_fields(path: Path, encoding: str) -> list[str]:
    """Return the keys of a JSONL file's first object, or the columns of a table; empty for other files."""
    suffix = uncompressed_suffix(path)
    if suffix == ".jsonl":
        return list(_first_object(path, encoding))
    lines = (line for line in _first_lines(path, encoding) if not (suffix == ".csv" and is_separator_line(line)))
    first = next(lines, "") if suffix in TABLE_SUFFIXES else ""
    return column_names(first, suffix) if first else []


def _first_row(dataset: CustomDataset) -> dict[str, object]:
    """Return the first example of a dataset if it is a mapping, or an empty one."""
    _, row = next(DatasetSource(dataset=dataset).rows(), ("", ""))
    return {} if isinstance(row, str) else row


def _first_object(path: Path, encoding: str) -> dict[str, object]:
    """Return the first object of a JSONL file or JSON array, or an empty one if it cannot be read."""
    try:
        return next((values for _, values in read_objects(path, encoding, "replace", [])), {})
    except UserError:
        return {}


def _first_lines(path: Path, encoding: str) -> Iterator[str]:
    return (line for line in islice(read_lines(path, encoding, "replace"), SAMPLE_LINES) if line.strip())
