"""Extraction of texts or sentence pairs from files and folders of documents into one JSONL file.

Files are read in sorted order, so that equal inputs give equal output. A file that cannot be read does not stop the
extraction. Everything that is left out is counted in the report.
"""

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO

from tercet.config import UserError
from tercet.data.extraction.document_file import DocumentFile, clean_text
from tercet.data.extraction.readers import DOCUMENT_READERS, PAIR_READERS, PLAIN_TEXT, check_packages
from tercet.data.sources.files import find_path, suggest_path
from tercet.data.sources.folders import walk_folder
from tercet.data.sources.formats import describe_left_out, is_text_without_ending, uncompressed_suffix
from tercet.data.text_hashes import hash_near_duplicate
from tercet.messages import describe_error, one_line
from tercet.storage.atomic import write_atomically

OUTPUT_SUFFIXES = (".jsonl", ".ndjson")
Record = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class Extraction:
    """Settings of an extraction.

    Attributes:
        sources: Files and folders.
        encoding: Encoding of all text files; None to detect it for each.
        pairs: If True, extract pairs from translation memories instead of texts from documents.
        source_language, target_language: Wanted languages of pairs, or names of columns; "" for any.
        split: If True, write each page, chapter, sheet or cell as a document.
        main_text: If True, remove boilerplate.
        drop_duplicates: If True, leave out texts that are near duplicates of earlier ones.
    """

    sources: tuple[str, ...]
    encoding: str | None = None
    pairs: bool = False
    source_language: str = ""
    target_language: str = ""
    split: bool = False
    main_text: bool = False
    drop_duplicates: bool = False


@dataclass(frozen=True, kw_only=True)
class UnreadableFile:
    """A file that could not be read, or only in part, and the reason."""

    path: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class DroppedParts:
    """Number of parts of a file that were left out for one reason."""

    path: str
    reason: str
    count: int


@dataclass(kw_only=True)
class ExtractionReport:
    """Report of an extraction.

    Attributes:
        output: Path of the written file.
        unit: Kind of the lines of the output.
        count: Number of lines.
        characters: Number of characters of their texts.
        files: Number of read files by format.
        encodings: Number of read text files by encoding.
        dropped: Left out parts of files.
        unreadable: Files that could not be read.
        left_out: Number of files of other formats by suffix.
    """

    output: str
    unit: str
    count: int = 0
    characters: int = 0
    files: dict[str, int] = field(default_factory=dict[str, int])
    encodings: dict[str, int] = field(default_factory=dict[str, int])
    dropped: list[DroppedParts] = field(default_factory=list[DroppedParts])
    unreadable: list[UnreadableFile] = field(default_factory=list[UnreadableFile])
    left_out: dict[str, int] = field(default_factory=dict[str, int])

    def totals(self) -> Counter[str]:
        """Return the number of left out parts of all files by reason."""
        totals = Counter[str]()
        for parts in self.dropped:
            totals[parts.reason] += parts.count
        return totals


def extract_documents(extraction: Extraction, out: Path) -> ExtractionReport:
    """Extract texts or pairs into the JSONL file `out`, and return the report.

    A line has the keys `text`, `source` (the path of the file) and `format`, and if they are known `title`, `place` and
    `encoding`. A line of a pair has `source`, `target`, `file`, `format` and `place`, and if they are known
    `source_language` and `target_language`.

    Raises:
        UserError: If a package is missing, a source does not exist, nothing could be extracted, or the output cannot be
            written.
    """
    check_packages()
    if out.suffix.lower() not in OUTPUT_SUFFIXES:
        raise UserError(f"{out} must end with {' or '.join(OUTPUT_SUFFIXES)}; choose another name")
    report = ExtractionReport(output=str(out), unit="pairs" if extraction.pairs else "documents")
    paths = [path for source in extraction.sources for path in _find_files(source)]
    hashes = set[tuple[int, ...]]()

    def write(output: BinaryIO) -> None:
        for path in dict.fromkeys(paths):
            for record in _read_file(path, extraction, report, hashes):
                output.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
        if not report.count:
            raise UserError(_describe_nothing(extraction, report))

    write_atomically(out, write)
    return report


def _find_files(source: str) -> list[Path]:
    """Return the file itself, or all files below the folder, sorted by path."""
    root = find_path(source)
    if root.is_dir():
        return sorted(walk_folder(root), key=lambda path: path.relative_to(root).as_posix())
    if not root.exists():
        raise UserError(f"no such file or folder: {root}{suggest_path(root)}")
    return [root]


def _describe_nothing(extraction: Extraction, report: ExtractionReport) -> str:
    message = f"no {report.unit} were extracted from {', '.join(extraction.sources)}"
    if report.unreadable:
        return f"{message}; {report.unreadable[0].reason}"
    if report.left_out:
        return f"{message}; files of other formats: {describe_left_out(report.left_out)}{_pairs_hint(report)}"
    reasons = ", ".join(f"{count:,} {reason}" for reason, count in report.totals().items())
    return f"{message}; left out: {reasons or 'nothing'}"


def _pairs_hint(report: ExtractionReport) -> str:
    return " (for translations, pass --pairs)" if {*report.left_out} & {*PAIR_READERS} else ""


def _read_file(
    path: Path, extraction: Extraction, report: ExtractionReport, hashes: set[tuple[int, ...]]
) -> Iterator[Record]:
    """Yield the records of a file that are kept, and complete the report."""
    readers = PAIR_READERS if extraction.pairs else DOCUMENT_READERS
    reader = readers.get(uncompressed_suffix(path))
    if not path.is_file():
        report.unreadable.append(UnreadableFile(path=str(path), reason=f"{path} is not a regular file"))
        return
    if reader is None and not extraction.pairs and is_text_without_ending(path, extraction.encoding or "utf-8"):
        reader = PLAIN_TEXT
    if reader is None:
        report.left_out[path.suffix.lower()] = report.left_out.get(path.suffix.lower(), 0) + 1
        return
    file = DocumentFile(path, extraction.encoding, extraction.main_text)
    try:
        for texts, record in _read_records(file, extraction):
            if not all(text.strip() for text in texts):
                file.drop("pairs with an empty side" if extraction.pairs else "documents without text")
                continue
            identity = tuple(map(hash_near_duplicate, texts)) if extraction.drop_duplicates else ()
            if identity in hashes:
                file.drop(f"{report.unit} that are near duplicates of earlier ones")
                continue
            hashes.update([identity] if identity else [])
            report.count += 1
            report.characters += sum(map(len, texts))
            yield record
    except UserError as error:
        report.unreadable.append(UnreadableFile(path=str(path), reason=one_line(str(error))))
    except Exception as error:  # readers of third parties raise many kinds of exceptions for malformed files
        reason = f"{path} is not a readable {reader.format} file ({describe_error(error)}); check or remove it"
        report.unreadable.append(UnreadableFile(path=str(path), reason=one_line(reason)))
    else:
        report.files[reader.format] = report.files.get(reader.format, 0) + 1
        if file.used_encoding:
            report.encodings[file.used_encoding] = report.encodings.get(file.used_encoding, 0) + 1
    report.dropped += [
        DroppedParts(path=str(path), reason=reason, count=count) for reason, count in sorted(file.dropped.items())
    ]


def _read_records(file: DocumentFile, extraction: Extraction) -> Iterator[tuple[tuple[str, ...], Record]]:
    """Yield the texts of each document or pair, and its record."""
    suffix = uncompressed_suffix(file.path)
    if extraction.pairs:
        format_name, read_pairs = PAIR_READERS[suffix]
        for pair in read_pairs(file, (extraction.source_language, extraction.target_language)):
            texts = (clean_text(pair.source).strip(), clean_text(pair.target).strip())
            yield texts, _without_empty({
                "source": texts[0], "target": texts[1], "file": str(file.path), "format": format_name,
                "place": pair.place, "source_language": pair.source_language, "target_language": pair.target_language,
            })  # fmt: skip
        return
    format_name, read = DOCUMENT_READERS.get(suffix, PLAIN_TEXT)
    for document in read(file):
        parts = document.parts
        is_whole = not extraction.split or len(parts) <= 1
        places = [parts[0].place if len(parts) == 1 else ""] if is_whole else [part.place for part in parts]
        texts = [_join(part.text for part in parts)] if is_whole else [clean_text(part.text) for part in parts]
        for text, place in zip(texts, places, strict=True):
            encoding = file.used_encoding if file.used_encoding not in ("utf-8", "ascii") else ""
            yield (text,), _without_empty({
                "text": text, "source": str(file.path), "format": format_name, "title": clean_text(document.title),
                "place": place, "encoding": encoding,
            })  # fmt: skip


def _join(texts: Iterable[str]) -> str:
    return "\n\n".join(text for text in map(clean_text, texts) if text)


def _without_empty(record: Record) -> Record:
    return {key: value for key, value in record.items() if value or key in ("text", "source", "target")}
