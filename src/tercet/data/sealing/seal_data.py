"""Division of a data source into training data and a sealed test part, once."""

import hashlib
import json
from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from tercet.config import UserError, parse, to_plain
from tercet.data.corpora.prepared import is_prepared
from tercet.data.datasets.label_datasets import LABEL_DATASETS
from tercet.data.datasets.pair_datasets import PAIR_DATASETS, language_names, pair_files
from tercet.data.datasets.query_datasets import QUERY_DATASETS
from tercet.data.datasets.recognize import recognize
from tercet.data.datasets.text_datasets import DATASETS
from tercet.data.label_spec import LabelsSpec
from tercet.data.min_hash import unite_equal
from tercet.data.sealing.items import Spec, find_document_source, read_documents, read_items
from tercet.data.sealing.rows import SUFFIXES, read_rows
from tercet.data.sealing.seal_record import Kind, Seal, SealedPart
from tercet.data.sealing.tail import cut_tail
from tercet.data.sources.custom_dataset import CustomDataset
from tercet.data.sources.documents import TABULAR_SUFFIXES, DocumentFiles, DocumentSource, DocumentTexts
from tercet.data.sources.files import find_path, read_lines
from tercet.data.sources.formats import uncompressed_suffix
from tercet.data.specs import ConversationsSpec, PairsSpec, TextSpec
from tercet.data.split_specs import Documents
from tercet.data.text_hashes import draw_groups, hash_text
from tercet.spec import Calls, ItemCount, ShareBetween, spec
from tercet.storage import check_output_folder, replace_folder, report_write_errors

RECOGNIZED = (  # settings that are arguments of `recognize`
    "encoding", "text_field", "label_field", "label_pattern", "over", "problem_type", "messages_field", "prompt_field",
    "response_field", "source_language", "target_language",
)  # fmt: skip
READING = (*RECOGNIZED[1:], "documents", "group_field")  # settings by which both parts are read; they are UTF-8
UNITS: dict[Kind, str] = {"text": "documents", "pairs": "pairs", "labels": "texts", "conversations": "conversations"}
KINDS: dict[type[Spec], Kind] = {
    TextSpec: "text", PairsSpec: "pairs", LabelsSpec: "labels", ConversationsSpec: "conversations",
}  # fmt: skip
Rows = Callable[[], Iterator[tuple[str, ...]]]


@spec
class Division:
    """Size of the test part, and the number of calls that may score models on it.

    Args:
        fraction: Fraction of the items, or of the characters of a running text, in the test part.
        count: Maximum number of items in the test part, instead of a fraction.
        calls: Number of calls.
    """

    fraction: ShareBetween = 0.1
    count: ItemCount | None = None
    calls: Calls = 10


@dataclass(frozen=True, kw_only=True)
class FileLayout:
    """Files of a part.

    Attributes:
        suffixes: Suffix of each file, such as (".jsonl",) or (".de", ".en").
        rows: Function that yields the text before the first row of each file, then the text of each item in each file.
        reading: Settings by which the files are read, if they are not those of the source.
    """

    suffixes: tuple[str, ...]
    rows: Rows
    reading: dict[str, Any] | None = None


def seal_data(
    source: str | Path | CustomDataset,
    out: str | Path,
    *,
    target: str | Path | None = None,
    fraction: float | None = None,
    count: int | None = None,
    calls: int = 10,
    settings: Mapping[str, Any] | None = None,
) -> Seal:
    """Divide data into training data and a sealed test part, as `tercet data seal` does.

    Train with the files `train.*` of the folder. `tercet.evaluate_sealed` scores models on the files `test.*`.

    Items with equal texts, and items of a group, are in the same part. They are drawn by a hash of their text or group.
    A running text is cut at a line end, and its end is the test part.

    Args:
        source: File, folder, named dataset of text, or custom dataset that yields texts.
        out: Folder to write, which must be empty or not exist.
        target: File of the translations of `source`, line by line.
        fraction: Fraction of the items, or of the characters of a running text, in the test part (default: 0.1).
        count: Maximum number of items in the test part, instead of a fraction.
        calls: Number of calls that may score models on the test part.
        settings: Keys of `data` by which the source is read, such as {"text_field": "body", "group_field": "author"}.

    Raises:
        UserError: If the source cannot be read or divided, a setting is invalid, or the folder cannot be written.
    """
    if fraction is not None and count is not None:
        raise UserError("a fraction and a count of the test part exclude each other; pass one of them")
    plain = {"count": count, "calls": calls} | ({} if fraction is None else {"fraction": fraction})
    division, folder = parse(Division, plain), Path(out)
    check_output_folder(folder, "--out")
    if folder.is_dir() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty, and data is sealed only once; choose a new folder")
    data = _recognize(source, None if target is None else str(target), settings or {})
    with report_write_errors(folder):
        return _write(data, division, folder)


def _recognize(source: str | Path | CustomDataset, target: str | None, settings: Mapping[str, Any]) -> Spec:
    """Return the settings by which the source is read.

    Raises:
        UserError: If a setting is unknown or invalid, or the source is one that cannot be divided.
    """
    source = source if isinstance(source, CustomDataset) else str(source)
    for datasets in (PAIR_DATASETS, LABEL_DATASETS, QUERY_DATASETS):
        if target is None and source in datasets:
            raise UserError(
                f"{source} is a named dataset with fixed parts; pass a file, or a dataset of text "
                f"({', '.join(DATASETS)})"
            )
    known = {name: settings[name] for name in RECOGNIZED if settings.get(name) is not None}
    others = {name: value for name, value in settings.items() if name not in known and value is not None}
    try:
        data = recognize(source, target, **known)
        if isinstance(data, TextSpec) and "group_field" in others:
            data = replace(data, validation=Documents())  # which groups require
    except ValueError as error:
        raise UserError(str(error)) from None
    data = replace(parse(type(data), {**to_plain(data), **others}, name="data"), source=data.source)
    if isinstance(source, CustomDataset) and not isinstance(data, TextSpec):
        raise UserError(
            f"{source} yields {UNITS[KINDS[type(data)]]}, which cannot be sealed; write them to a .jsonl file"
        )
    if isinstance(data, TextSpec) and source not in DATASETS and is_prepared(data):
        raise UserError(f"{source} contains token ids, which have no text; seal the text before it is prepared")
    return data


def _write(data: Spec, division: Division, folder: Path) -> Seal:
    kind = KINDS[type(data)]
    document_source = find_document_source(data) if isinstance(data, TextSpec) else None
    is_running = isinstance(data, TextSpec) and data.documents == "file" and _is_plain_text(document_source)
    if document_source is not None and is_running:
        if division.count is not None:
            raise UserError(f"{data.source} is one running text, which has no documents to count; pass a fraction")
        text = "".join(text for text, _ in read_documents(document_source))
        cut = cut_tail(text, division.fraction, name=str(data.source))
        parts = text[:cut], text[cut:]
        layout = FileLayout(suffixes=(".txt",), rows=lambda: iter([("",), *((part,) for part in parts)]))
        is_test, items = np.array([False, True]), tuple(map(len, parts))
    else:
        layout = _find_layout(data, document_source)
        is_test = _draw(data, division)
        items = int((~is_test).sum()), int(is_test.sum())
    with replace_folder(folder) as new:
        train, test = _write_parts(new, layout, is_test, items, str(data.source))
        seal = Seal(
            kind=kind,
            source=str(data.source),
            unit="characters" if is_running else UNITS[kind],
            reading=_changed_settings(data) if layout.reading is None else layout.reading,
            division="tail" if is_running else "drawn",
            fraction=None if division.count else division.fraction,
            count=division.count,
            train=train,
            test=test,
            allowed_calls=division.calls,
        )
        seal.write(new)
    return seal


def _is_plain_text(source: DocumentSource | None) -> bool:
    """Return True for a single text: in memory, or in a file whose documents are not rows."""
    if isinstance(source, DocumentTexts):
        return len(source.texts) == 1
    files = source.files() if isinstance(source, DocumentFiles) else []
    return len(files) == 1 and uncompressed_suffix(files[0]) not in TABULAR_SUFFIXES


def _find_layout(data: Spec, source: DocumentSource | None) -> FileLayout:
    """Return the layout of the parts: that of the source if it is one file, and else JSONL."""
    if isinstance(data, TextSpec):
        assert source is not None
        if _is_plain_text(source):
            end = "\n" if data.documents == "line" else "\n\n"
            return FileLayout(suffixes=(".txt",), rows=lambda: _documents(source, lambda text, _: text + end))
        files = source.files() if isinstance(source, DocumentFiles) else []
        if len(files) != 1 or uncompressed_suffix(files[0]) not in SUFFIXES:
            return _json_layout(data, source)
        path = files[0]
    elif isinstance(data, PairsSpec) and data.target is not None:
        paths = [find_path(str(data.source)), find_path(data.target)]
        names = [name or side for name, side in zip(language_names(data), ("source", "target"), strict=True)]
        suffixes = tuple(f".{name}" for name in names)
        return FileLayout(suffixes=suffixes, rows=lambda: _parallel_rows(paths, data.encoding))
    else:
        path = find_path(str(data.source))
    encoding = data.encoding

    def rows() -> Iterator[tuple[str]]:
        has_header = not isinstance(data, PairsSpec) or pair_files(data, str(path), None).has_fields()
        return ((row,) for row in read_rows(path, encoding, has_header=has_header))

    return FileLayout(suffixes=(uncompressed_suffix(path),), rows=rows)


def _json_layout(data: TextSpec, source: DocumentSource) -> FileLayout:
    """Return the layout of documents as objects with the key `text`, and with the group if there are groups."""
    group_field = data.group_field

    def to_line(text: str, group: str) -> str:
        return json.dumps({"text": text} | ({group_field: group} if group_field else {}), ensure_ascii=False) + "\n"

    reading = {"group_field": group_field} if group_field else {}
    return FileLayout(suffixes=(".jsonl",), rows=lambda: _documents(source, to_line), reading=reading)


def _documents(source: DocumentSource, to_row: Callable[[str, str], str]) -> Iterator[tuple[str]]:
    yield ("",)
    for text, group in read_documents(source):
        yield (to_row(text, group),)


def _parallel_rows(paths: Sequence[Path], encoding: str) -> Iterator[tuple[str, ...]]:
    yield ("",) * len(paths)
    for lines in zip(*(read_lines(path, encoding) for path in paths), strict=True):
        yield tuple(line + "\n" for line in lines)


def _changed_settings(data: Spec) -> dict[str, Any]:
    """Return the settings of `READING` that are not the defaults."""
    default = parse(type(data), {"source": "data"})
    names = [name for name in READING if hasattr(data, name)]
    return {name: value for name in names if (value := getattr(data, name)) != getattr(default, name)}


def _draw(data: Spec, division: Division) -> np.ndarray:
    """Return a mask (N,) of the items in the test part. Empty items are in the training part.

    Raises:
        UserError: If the data cannot be read, or has too few items.
    """
    contents, groups, filled = array("Q"), array("Q"), bytearray()
    for item in read_items(data):
        content = hash_text(item.content)
        contents.append(content)
        groups.append(hash_text(item.group) if item.group else content)
        filled.append(not item.is_empty)
    is_filled = np.frombuffer(filled, np.bool_)
    count, unit = int(is_filled.sum()), UNITS[KINDS[type(data)]]
    limit = division.count or max(1, round(count * division.fraction))
    if limit >= count:
        raise UserError(f"{data.source} has {count:,} {unit}, too few to seal {limit:,} of them; use more data")
    keys = unite_equal(*(np.frombuffer(hashes, np.uint64)[is_filled] for hashes in (contents, groups)))
    drawn = draw_groups(keys, limit)
    if drawn is None:
        raise UserError(f"the {unit} of {data.source} are all equal or of one group, so they cannot be divided")
    is_test = np.zeros(len(is_filled), bool)
    is_test[is_filled] = drawn
    return is_test


def _write_parts(
    folder: Path, layout: FileLayout, is_test: np.ndarray, items: tuple[int, ...], name: str
) -> tuple[SealedPart, SealedPart]:
    """Write the files of both parts.

    Args:
        folder: Folder of the files.
        layout: Their layout.
        is_test: (N,) mask of the items in the test part.
        items: Number of items in each part.
        name: Name of the source in messages.

    Raises:
        UserError: If the source has other items than before.
    """
    with ExitStack() as stack:
        files = [[_HashedFile(stack, folder / f"{part}{end}") for end in layout.suffixes] for part in ("train", "test")]
        rows = layout.rows()
        headers = next(rows)
        for part in files:
            for file, header in zip(part, headers, strict=True):
                file.write(header)
        try:
            for row, test in zip(rows, is_test.tolist(), strict=True):
                for file, text in zip(files[test], row, strict=True):
                    file.write(text)
        except ValueError:
            raise UserError(f"{name} has changed while it was read; run the command again") from None
    train, test = (
        SealedPart(
            items=count,
            bytes=sum(file.size for file in part),
            files={file.name: file.sha.hexdigest() for file in part},
        )
        for count, part in zip(items, files, strict=True)
    )
    return train, test


class _HashedFile:
    """File that is written in UTF-8, with its size and SHA-256."""

    def __init__(self, stack: ExitStack, path: Path) -> None:
        self.name, self.size, self.sha = path.name, 0, hashlib.sha256()
        self._file: BinaryIO = stack.enter_context(path.open("wb"))

    def write(self, text: str) -> None:
        data = text.encode("utf-8", "backslashreplace")  # JSON can contain half of a surrogate pair, as an escape
        self._file.write(data)
        self.sha.update(data)
        self.size += len(data)
