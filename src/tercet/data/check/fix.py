"""A repaired copy of data: texts as `TextRepair` changes them, without empty items and exact duplicates.

Every other field of a row is copied. A file in which nothing is changed is copied byte for byte.
"""

import codecs
import gzip
import hashlib
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from tercet.config import UserError
from tercet.data.check.repaired_items import Spec, find_item_reader
from tercet.data.check.text_repair import TextRepair
from tercet.data.examples.pairs import Pair
from tercet.data.sources.files import open_file, read_lines, read_objects
from tercet.data.sources.formats import encoding_of_mark, is_gzip, is_json, uncompressed_suffix
from tercet.data.sources.line_documents import documents_of_lines
from tercet.data.sources.tables import TABLE_SUFFIXES, numbered_rows
from tercet.data.specs import PairsSpec, TextSpec
from tercet.data.text_hashes import hash_bytes, hash_text
from tercet.reading.text_files import open_regular_file
from tercet.storage import check_output_file, check_output_folder, replace_folder, report_write_errors, write_atomically

QUOTED = re.compile('[",\r\n]')  # characters for which a field of CSV is quoted


@dataclass(frozen=True, kw_only=True)
class RepairReport:
    """Report on a repaired copy.

    Attributes:
        output: Path of the copy.
        changes: Number of changes by kind: "duplicates" and "empty" items that were left out, files that were converted
            to UTF-8 without a mark ("encoding"), and those of `TextRepair`.
    """

    output: str
    changes: dict[str, int]


class DataRepair:
    """Writes a repaired copy of data."""

    def __init__(self, spec: Spec, out: Path) -> None:
        """Initialize, and check that the copy can be written.

        Args:
            spec: Settings of the data.
            out: File to write, or folder for the copy of a folder or of two files.

        Raises:
            UserError: If the data is not of files that can be repaired, or `out` exists or cannot be written.
        """
        self._spec, self._out, self._reader = spec, out, find_item_reader(spec)
        self._text, self._dropped, self._seen = TextRepair(), Counter[str](), set[int]()
        self._check_output()

    def write(self) -> RepairReport:
        """Write the copy and return the report.

        Raises:
            UserError: If the copy cannot be written, or a file cannot be read.
        """
        paths, spec = self._reader.paths, self._spec
        if isinstance(spec, PairsSpec) and spec.target is not None:
            with report_write_errors(self._out), replace_folder(self._out) as folder:
                self._write_sides(paths, [folder / name for name in self._reader.names])
        elif self._reader.is_folder:
            with report_write_errors(self._out), replace_folder(self._out) as folder:
                for path, name in zip(paths, self._reader.names, strict=True):
                    (folder / name).parent.mkdir(parents=True, exist_ok=True)
                    with (folder / name).open("wb") as file:
                        is_kept = self._write_file(path, file)
                    if not is_kept:
                        (folder / name).unlink()
        else:
            write_atomically(self._out, self._write_only_file)
        return RepairReport(output=str(self._out), changes=dict(sorted(self._changes.items())))

    @property
    def _changes(self) -> Counter[str]:
        return self._text.changes + self._dropped

    def _check_output(self) -> None:
        reader, out = self._reader, self._out
        if out.exists() and not (out.is_dir() and not any(out.iterdir())):
            raise UserError(f"--fix {out} exists already; pass the name of a new file or folder")
        if not reader.writes_folder:
            path = reader.paths[0]
            check_output_file(out, "--fix", example=path.name)
            if (uncompressed_suffix(out), is_json(out), is_gzip(out)) != (
                uncompressed_suffix(path), is_json(path), is_gzip(path),
            ):  # fmt: skip
                suffix = "".join(path.suffixes[-2 if is_gzip(path) else -1 :])
                raise UserError(f"--fix {out} must end with {suffix or 'no suffix'}, as {path} does; change its name")
            return
        check_output_folder(out, "--fix")
        if reader.is_folder and out.resolve().is_relative_to(reader.root.resolve()):
            raise UserError(f"--fix {out} is inside of {reader.root}, which would then contain it; pass another folder")

    def _keeps(self, *, is_empty: bool, identity: int) -> bool:
        """Return True for the first of equal items, and count the others and empty ones."""
        is_duplicate = identity in self._seen
        self._seen.add(identity)
        self._dropped.update(["empty"] if is_empty else ["duplicates"] if is_duplicate else [])
        return not (is_empty or is_duplicate)

    def _write_file(self, path: Path, file: IO[bytes]) -> bool:
        """Write the copy of a file, and return False if it is one document that is left out."""
        before, is_kept = self._changes.total(), True
        self._count_encoding(path)
        with _packed(path, file) as output:
            for chunk in self._repaired(path):
                if chunk is None:
                    is_kept = False
                else:
                    output.write(chunk.encode())
        if self._changes.total() == before:
            _copy(path, file)
        return is_kept

    def _write_only_file(self, file: IO[bytes]) -> None:
        self._write_file(self._reader.paths[0], file)

    def _write_sides(self, paths: list[Path], outputs: list[Path]) -> None:
        """Write the copies of two files that are read line by line."""
        for output in outputs:
            output.parent.mkdir(parents=True, exist_ok=True)
        for path in paths:
            self._count_encoding(path)
        with outputs[0].open("wb") as first, outputs[1].open("wb") as second:
            with _packed(paths[0], first) as source, _packed(paths[1], second) as target:
                for lines in zip(*(read_lines(path, self._spec.encoding) for path in paths), strict=True):
                    repaired = Pair(*map(self._text.join_lines, lines))
                    pair = Pair(*(side.strip() for side in repaired))
                    if self._keeps(is_empty=pair.is_empty, identity=hash_text("\0".join(pair))):
                        source.write(f"{repaired.source}\n".encode())
                        target.write(f"{repaired.target}\n".encode())
            if not self._changes.total():
                _copy(paths[0], first)
                _copy(paths[1], second)

    def _repaired(self, path: Path) -> Iterator[str | None]:
        """Yield the content of the copy of a file. None means that the file is one document that is left out."""
        if uncompressed_suffix(path) == ".jsonl":
            yield from self._objects(path)
        elif uncompressed_suffix(path) in TABLE_SUFFIXES:
            yield from self._rows(path)
        elif isinstance(self._spec, TextSpec) and self._spec.documents != "file":
            separator = ""
            for chunks in documents_of_lines(self._lines(path), self._spec.documents):
                document = "".join(chunks)
                if self._keeps(is_empty=False, identity=hash_text(document)):
                    yield f"{separator}{document}\n"
                    separator = "\n" if self._spec.documents == "blank_line" else ""
        else:
            yield from self._document(path)

    def _lines(self, path: Path) -> Iterator[str]:
        for line in read_lines(path, self._spec.encoding):
            yield from self._text.split_lines(line)

    def _document(self, path: Path) -> Iterator[str | None]:
        hasher, is_empty = hashlib.blake2b(), True
        for line in self._lines(path):
            hasher.update(f"{line}\n".encode())
            is_empty = is_empty and not line.strip()
            yield f"{line}\n"
        if self._reader.is_folder and not self._keeps(is_empty=is_empty, identity=hash_bytes(hasher.digest())):
            yield None

    def _objects(self, path: Path) -> Iterator[str]:
        is_array = is_json(path)
        before, after = ("[\n", "") if is_array else ("", "\n")
        for location, row in read_objects(path, self._spec.encoding, "strict", []):
            repaired = {
                name: self._repair_value(value) if name in self._reader.fields else value for name, value in row.items()
            }
            item = self._reader.read_object(repaired, location)
            if self._keeps(is_empty=item.is_empty, identity=hash_text(item.identity)):
                yield f"{before}{_to_json(repaired)}{after}"
                before = ",\n" if is_array else ""
        if is_array:
            yield "[]\n" if before == "[\n" else "\n]\n"

    def _repair_value(self, value: object) -> object:
        """Return a repaired text, or a repaired list of texts or messages."""
        if isinstance(value, str):
            return self._text.repair(value)
        if isinstance(value, list):
            return [self._repair_value(item) for item in cast(list[object], value)]
        if isinstance(value, dict):  # a message
            message = cast(dict[str, object], value)
            return {
                name: self._repair_value(item) if name in ("content", "value") else item
                for name, item in message.items()
            }
        return value

    def _rows(self, path: Path) -> Iterator[str]:
        is_tsv = uncompressed_suffix(path) == ".tsv"
        to_line = "\t".join if is_tsv else _csv_line
        repair = self._text.join_lines if is_tsv else self._text.repair
        header = None if self._reader.has_header else list(self._reader.columns)
        for number, row in numbered_rows(read_lines(path, self._spec.encoding), str(path)):
            if header is None:
                header = [name.strip() for name in row]
                yield f"{to_line(row)}\n"
                continue
            repaired = [
                repair(field) if name in self._reader.fields else field for name, field in zip(header, row, strict=True)
            ]
            item = self._reader.read_row(dict(zip(header, repaired, strict=True)), f"{path} line {number}")
            if self._keeps(is_empty=item.is_empty, identity=hash_text(item.identity)):
                yield f"{to_line(repaired)}\n"

    def _count_encoding(self, path: Path) -> None:
        with open_file(path) as file:
            start = file.read(4)
        encoding = codecs.lookup(encoding_of_mark(start, self._spec.encoding)).name
        if encoding not in ("utf-8", "ascii") or start.startswith(codecs.BOM_UTF8):
            self._dropped["encoding"] += 1


def _packed(path: Path, file: IO[bytes]) -> AbstractContextManager[IO[bytes] | gzip.GzipFile]:
    """Return a file that packs what is written to it if `path` is `.gz`. Leaving its context does not close `file`."""
    return gzip.GzipFile(filename="", mode="wb", fileobj=file, mtime=0) if is_gzip(path) else nullcontext(file)


def _copy(path: Path, file: IO[bytes]) -> None:
    """Replace the content of an open file by that of the file `path`."""
    file.seek(0)
    file.truncate()
    with open_regular_file(path) as original:
        shutil.copyfileobj(cast(BinaryIO, original), file)


def _to_json(row: dict[str, object]) -> str:
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:  # half a surrogate pair in a field that is not read
        return json.dumps(row)
    return text


def _csv_line(row: list[str]) -> str:
    if row == [""]:
        return '""'
    return ",".join('"' + field.replace('"', '""') + '"' if QUOTED.search(field) else field for field in row)
