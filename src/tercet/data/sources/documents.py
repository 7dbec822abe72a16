"""Documents from files, as a stream of pieces of text, so that memory use is bounded.

A piece ends at a position at which no tokenizer joins characters: after a single newline between two characters that
are not white space. The concatenated ids of the pieces are therefore the ids of the whole document. Long text without
such a position is cut at other positions (see `cut_pieces`).
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import NamedTuple, Protocol

from tercet.config import UserError
from tercet.data.sources import fasta
from tercet.data.sources.files import (
    BLOCK,
    Errors,
    find_group,
    get_text,
    is_json_array,
    read_lines,
    read_objects,
    read_text,
    report_file_errors,
    suggest_path,
)
from tercet.data.sources.folders import walk_folder
from tercet.data.sources.formats import (
    TEXT_SUFFIXES,
    check_readable,
    extract_command,
    is_gzip,
    is_json,
    is_text_without_ending,
    uncompressed_suffix,
)
from tercet.data.sources.line_documents import DocumentUnit, documents_of_lines, has_document_per_line
from tercet.data.sources.parquet_columns import read_parquet
from tercet.data.sources.sequence_files import UNCHANGED, SequenceFile, SequenceSettings
from tercet.data.sources.sequence_headers import find_value, parse_header
from tercet.data.sources.tables import TABLE_SUFFIXES, read_table
from tercet.data.sources.text_source import TextSource
from tercet.messages import shorten
from tercet.reading.text_files import open_regular_file

PIECE = 1 << 16  # minimum characters before a cut; longer pieces encode more slowly
MAX_PIECE = 1 << 22  # characters after which text without a suitable position is cut
MANY_DOCUMENTS = 20  # documents of which a tenth can be held out
COUNTED_CHARACTERS = 1 << 26  # characters in which so many documents are looked for
TABULAR_SUFFIXES = (".jsonl", *TABLE_SUFFIXES, ".parquet", *fasta.SUFFIXES)  # files of several documents
SUFFIXES = (*TEXT_SUFFIXES, *TABULAR_SUFFIXES)

EXAMPLE_SUFFIXES = (".txt", ".md", ".jsonl", ".csv", ".parquet", ".fasta")  # usual suffix of each format in messages

_SINGLE_NEWLINE = re.compile(r"(?<=\S)\n(?=\S)")
_BEFORE_WORD = re.compile(r"(?=[ \t]\S)")  # for text without newlines
_LAST_OF_RUN = re.compile(r"(?=\n\S)")  # for text with only "\r\n" or empty lines; suits GPT-2's pattern too


class TextPiece(NamedTuple):
    """Part of a document. It is empty only if it comes from `all_pieces` and the document is empty.

    Attributes:
        last: True if the document ends with this piece.
        record: Name of the sequence in its file; empty for other documents.
        group: Group of the document; empty if the source has no groups.
    """

    text: str
    last: bool
    record: str = ""
    group: str = ""


class DocumentSource(TextSource, Protocol):
    """Source of documents."""

    def pieces(self) -> Iterator[TextPiece]: ...


@dataclass(frozen=True, kw_only=True)
class DocumentTexts:
    """Documents in memory. `documents` is the unit of a document in each text, as in `TextSpec`."""

    name: str
    texts: tuple[str, ...]
    documents: DocumentUnit = "file"

    def pieces(self) -> Iterator[TextPiece]:
        for text in self.texts:
            for document in (
                [[text]] if self.documents == "file" else documents_of_lines(text.split("\n"), self.documents)
            ):
                yield from cut_pieces(document)

    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()

    def size(self) -> int:
        return sum(len(text.encode()) for text in self.texts)


@dataclass(frozen=True, kw_only=True)
class DocumentFiles:
    """Documents in the file or folder `root`.

    A document is a line of JSONL, a row of CSV, TSV and Parquet, or a record of FASTA and FASTQ. `documents` is the
    unit of a document in a text file, as in `TextSpec`, and `sequences` are the settings for FASTA and FASTQ.
    `group_field` and `group_pattern` are also those of `TextSpec`. With `may_be_empty`, a source without text is not an
    error.
    """

    root: Path
    encoding: str = "utf-8"
    text_field: str = "text"
    documents: DocumentUnit = "file"
    sequences: SequenceSettings = UNCHANGED
    errors: Errors = "strict"
    may_be_empty: bool = False
    group_field: str | None = None
    group_pattern: str | None = None

    @property
    def name(self) -> str:
        return str(self.root)

    def files(self) -> list[Path]:
        """Return the file itself, or every readable file below the folder, sorted by path.

        Linked folders are followed, and hidden files are left out.

        Raises:
            UserError: If `root` does not exist, or is a folder without readable files.
        """
        if self.root.is_file():
            return [self.root]
        if not self.root.is_dir():
            if self.root.exists():
                raise UserError(f"{self.root} is not a regular file; copy its content into one")
            raise UserError(f"no such file or folder: {self.root}{suggest_path(self.root)}")
        readable = sorted(self._readable(), key=lambda path: path.relative_to(self.root).as_posix())
        if not readable and (command := extract_command(self.root, self.count_unread_files())):
            raise UserError(f"the folder {self.root} has only documents; extract their text: {command}")
        if not readable:
            raise UserError(f"the folder {self.root} has no readable file; add {', '.join(EXAMPLE_SUFFIXES)} files")
        return readable

    def has_files(self) -> bool:
        """Return True if `files` would return any file. The search stops at the first one.

        Raises:
            UserError: If the folder is too large.
        """
        return self.root.is_file() or any(self._readable())

    def _readable(self) -> Iterator[Path]:
        return (path for path in walk_folder(self.root) if self._is_readable(path))

    def _is_readable(self, path: Path) -> bool:
        if not path.is_file():
            return False
        if is_json(path):
            return is_json_array(path)
        return uncompressed_suffix(path) in SUFFIXES or is_text_without_ending(path, self.encoding)

    def count_unread_files(self) -> Counter[str]:
        """Count the files below the folder that are not read, by suffix."""
        if not self.root.is_dir():
            return Counter()
        unread = (path for path in walk_folder(self.root) if path.is_file() and not self._is_readable(path))
        return Counter(path.suffix.lower() for path in unread)

    def pieces(self) -> Iterator[TextPiece]:
        """Yield every nonempty document, piece by piece.

        Raises:
            UserError: If there is no text at all, or a file is damaged or does not have the format of its name.
        """
        empty = True
        for piece in self.all_pieces():
            if piece.text:
                empty = False
                yield piece
        if empty and not self.may_be_empty:
            if note := next(describe_left_out_records(self), ""):
                raise UserError(f"{note}; no text remains: use other files, or change data.sequence_ambiguous")
            raise UserError(f"{self.root} is empty; use a file that contains text")

    def all_pieces(self) -> Iterator[TextPiece]:
        """Yield pieces as `pieces` does, and an empty piece for each empty document. No text at all is not an error."""
        for path in self.files():
            if fasta.find_sequence_reader(uncompressed_suffix(path)):
                for piece in self._sequence_file(path).pieces():
                    yield TextPiece(piece.text, piece.last, piece.record, self._find_group(piece.header) or "")
                continue
            for document, group in self._documents(path):
                piece = None
                for piece in cut_pieces(document):
                    yield piece._replace(group=group) if group else piece
                if piece is None:
                    yield TextPiece("", last=True)

    def sequence_files(self) -> list[SequenceFile]:
        """Return the FASTA and FASTQ files."""
        return [self._sequence_file(path) for path in self.files() if uncompressed_suffix(path) in fasta.SUFFIXES]

    def _sequence_file(self, path: Path) -> SequenceFile:
        return SequenceFile(
            path=path,
            encoding=self.encoding,
            errors=self.errors,
            settings=self.sequences,
            find_header_problem=self._find_header_problem if self._has_groups else None,
            header_remedy="set data.group_field or data.group_pattern to match the headers, or correct them",
        )

    @property
    def _has_groups(self) -> bool:
        return self.group_field is not None or self.group_pattern is not None

    def _find_group(self, header: str) -> str | None:
        return find_value(header, self.group_field or "", self.group_pattern) if self._has_groups else None

    def _find_header_problem(self, header: str) -> str:
        """Return the reason why a header has no group, or ""."""
        if self._find_group(header):
            return ""
        fields = shorten(", ".join(parse_header(header)))
        name = "group" if self.group_pattern else repr(self.group_field)
        return f"no {name} in its header{f' (fields: {fields})' if fields else ''}"

    def hash(self) -> str:
        digest = hashlib.sha256()
        for path in self.files():
            name = path.name if path == self.root else path.relative_to(self.root).as_posix()
            digest.update(f"{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            with report_file_errors(path), open_regular_file(path) as file:
                while block := file.read(BLOCK):
                    digest.update(block)
        return digest.hexdigest()

    def size(self) -> int | None:
        files = self.files()
        is_plain_text = all(uncompressed_suffix(path) not in TABULAR_SUFFIXES and not is_gzip(path) for path in files)
        return sum(path.stat().st_size for path in files) if is_plain_text else None

    def has_many_documents(self) -> bool:
        """Return True if a tenth of the documents can represent all.

        There must be at least `MANY_DOCUMENTS`. If each file is one document, none may contain more than a tenth of the
        bytes. The documents of other files are counted in the first `COUNTED_CHARACTERS` characters.
        """
        files = self.files()
        several = [path for path in files if self.documents != "file" or uncompressed_suffix(path) in TABULAR_SUFFIXES]
        if not several:
            sizes = [path.stat().st_size for path in files]
            return len(files) >= MANY_DOCUMENTS and 10 * max(sizes) <= sum(sizes)
        documents = characters = 0
        for piece in chain.from_iterable(replace(self, root=path).all_pieces() for path in several):
            documents, characters = documents + (piece.last and bool(piece.text)), characters + len(piece.text)
            if documents >= MANY_DOCUMENTS or characters >= COUNTED_CHARACTERS:
                break
        return documents >= MANY_DOCUMENTS

    def looks_like_lines(self) -> bool:
        """Return True if a .txt file is read as one document but looks like one document per line."""
        if self.documents != "file" or not self.root.is_file() or uncompressed_suffix(self.root) != ".txt":
            return False
        return has_document_per_line(next(read_text(self.root, self.encoding, self.errors)))

    def _documents(self, path: Path) -> Iterator[tuple[Iterable[str], str]]:
        """Yield the text and the group of each document of a file other than FASTA and FASTQ."""
        suffix, group_field = uncompressed_suffix(path), self.group_field
        if self.group_pattern is not None:
            raise UserError(
                f"{path} has no headers, to which data.group_pattern applies; set data.group_field to a field of the "
                "file"
            )
        group_fields = [] if group_field is None else [group_field]
        match suffix:
            case ".jsonl":
                for location, row in read_objects(path, self.encoding, self.errors, [self.text_field, *group_fields]):
                    text = get_text(row, self.text_field, location, "data.text_field")
                    yield [text], find_group(row, group_field, location)
            case ".csv" | ".tsv":
                required = {
                    self.text_field: "data.text_field (--text-field)",
                    **dict.fromkeys(group_fields, "data.group_field"),
                }
                for location, row in read_table(read_lines(path, self.encoding, self.errors), str(path), required):
                    yield [row[self.text_field]], find_group(dict(row), group_field, location)
            case ".parquet":
                for text, group in read_parquet(path, self.text_field, group_field):
                    yield [text], group
            case _ if group_field is not None:
                raise UserError(
                    f"{path} has no field {group_field!r}, because it is plain text; write its documents to a .jsonl "
                    "or .csv file with a group for each, or remove data.group_field"
                )
            case _:
                check_readable(path, self.encoding)
                if self.documents == "file":
                    yield read_text(path, self.encoding, self.errors), ""
                else:
                    lines = read_lines(path, self.encoding, self.errors)
                    yield from ((document, "") for document in documents_of_lines(lines, self.documents))


def describe_left_out_records(source: object) -> Iterator[str]:
    """Yield a note on each FASTA and FASTQ file of a source with records that its settings leave out."""
    if isinstance(source, DocumentFiles) and source.sequences.leaves_out:
        yield from filter(None, (file.describe_left_out() for file in source.sequence_files()))


def cut_pieces(chunks: Iterable[str]) -> Iterator[TextPiece]:
    """Yield the document that consists of `chunks` in pieces; no piece if it is empty.

    A piece ends after the first single newline beyond `PIECE` characters. If there is none in about `MAX_PIECE`
    characters, it ends before another line or a word beyond `PIECE` characters, or else after `MAX_PIECE` characters.
    """
    rest = ""
    n_searched = 0  # characters of `rest` without a place to cut, so that long text is searched only once
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE):  # slicing a long chunk for each piece would be quadratic
            rest += chunk[start : start + PIECE]
            while end := _find_cut(rest, n_searched):
                yield TextPiece(rest[:end], last=False)
                rest, n_searched = rest[end:], max(0, n_searched - end)
            n_searched = len(rest) - 1
    if rest:
        yield TextPiece(rest, last=True)


def _find_cut(text: str, n_searched: int) -> int | None:
    """Return the position of a cut inside `text`, or None if more text is required to find one."""
    if newline := _SINGLE_NEWLINE.search(text, max(PIECE, n_searched)):
        return newline.end()
    if len(text) <= MAX_PIECE:
        return None
    fair = _LAST_OF_RUN.search(text, PIECE) or _BEFORE_WORD.search(text, PIECE)
    return fair.start() if fair else MAX_PIECE
