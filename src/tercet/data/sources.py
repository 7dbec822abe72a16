"""Documents from files, as a stream of pieces of text: a file of any size is never in memory whole.

A piece ends where no tokenizer of ours would join across: just after a newline that stands alone between two characters
that are not white space. So the pieces' ids, joined, are the ids of the whole document.
"""

import codecs
import gzip
import hashlib
import json
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, NamedTuple, Protocol, cast

from tercet.config import UserError, suggest

PIECE = 1 << 16  # characters: from here on a piece ends at the first good place; longer ones encode more slowly
LONGEST = 1 << 22  # characters: text without a good place is cut here, wherever that is
BLOCK = 1 << 20  # bytes read at a time
SUFFIXES = (".txt", ".md", ".jsonl", ".parquet")

_ALONE = re.compile(r"(?<=\S)\n(?=\S)")
_LAST_OF_RUN = re.compile(r"(?=\n\S)")  # good for GPT-2's split too, where a text has only "\r\n" or empty lines


class TextPiece(NamedTuple):
    """A part of a document, never empty; `last` where the document ends with it."""

    text: str
    last: bool


class DocumentSource(Protocol):
    """Somewhere documents come from."""

    @property
    def name(self) -> str: ...

    def pieces(self) -> Iterator[TextPiece]: ...

    def hash(self) -> str:
        """sha256 of everything that `pieces` depends on."""
        ...

    def size(self) -> int | None:
        """Bytes of text, where that can be told without reading."""
        ...


@dataclass(frozen=True, kw_only=True)
class DocumentTexts:
    """Documents in memory."""

    name: str
    texts: tuple[str, ...]

    def pieces(self) -> Iterator[TextPiece]:
        for text in self.texts:
            yield from cut_pieces([text])

    def hash(self) -> str:
        return hashlib.sha256(json.dumps(self.texts).encode()).hexdigest()

    def size(self) -> int:
        return sum(len(text.encode()) for text in self.texts)


@dataclass(frozen=True, kw_only=True)
class DocumentFiles:
    """Documents in the file or folder `root`: a text file is one, as is each line of JSONL and each row of Parquet."""

    root: Path
    encoding: str = "utf-8"
    text_field: str = "text"

    @property
    def name(self) -> str:
        return str(self.root)

    def files(self) -> list[Path]:
        """The file itself, or every readable file below the folder, sorted by path; hidden ones are left out.

        Raises:
            UserError: where `root` does not exist, or is a folder with nothing to read.
        """
        if self.root.is_file():
            return [self.root]
        if not self.root.is_dir():
            raise UserError(f"no such file or folder: {self.root}{_suggest_path(self.root)}")
        paths = [path.relative_to(self.root) for path in self.root.rglob("*")]
        readable = [
            path
            for path in sorted(paths, key=Path.as_posix)
            if uncompressed_suffix(path) in SUFFIXES
            and not any(part.startswith(".") for part in path.parts)
            and (self.root / path).is_file()
        ]
        if not readable:
            raise UserError(f"the folder {self.root} has no file to read; put {', '.join(SUFFIXES)} files there")
        return [self.root / path for path in readable]

    def pieces(self) -> Iterator[TextPiece]:
        """Every document, piece by piece; empty ones are left out.

        Raises:
            UserError: where there is no text at all, or a file is broken or not what its name says.
        """
        empty = True
        for path in self.files():
            for document in self._documents(path):
                for piece in cut_pieces(document):
                    empty = False
                    yield piece
        if empty:
            raise UserError(f"{self.root} is empty; give a file with some text in it")

    def hash(self) -> str:
        digest = hashlib.sha256()
        for path in self.files():
            name = path.name if path == self.root else path.relative_to(self.root).as_posix()
            digest.update(f"{name}\0{path.stat().st_size}\0".encode("utf-8", "surrogateescape"))
            with _report_file_errors(path), path.open("rb") as file:
                while block := file.read(BLOCK):
                    digest.update(block)
        return digest.hexdigest()

    def size(self) -> int | None:
        files = self.files()
        is_plain_text = all(path.suffix not in (".jsonl", ".parquet", ".gz") for path in files)
        return sum(path.stat().st_size for path in files) if is_plain_text else None

    def _documents(self, path: Path) -> Iterator[Iterable[str]]:
        match uncompressed_suffix(path):
            case ".jsonl":
                yield from ([text] for text in _read_json_lines(path, self.encoding, self.text_field))
            case ".parquet":
                yield from ([text] for text in _read_parquet(path, self.text_field))
            case _:
                yield _read_text(path, self.encoding)


def cut_pieces(chunks: Iterable[str]) -> Iterator[TextPiece]:
    """The document made of `chunks`, in pieces of about `PIECE` characters; none where it is empty."""
    rest = ""
    for chunk in chunks:
        for start in range(0, len(chunk), PIECE):  # in short steps, or a long chunk would be copied for every piece
            rest += chunk[start : start + PIECE]
            while end := _find_cut(rest):
                yield TextPiece(rest[:end], last=False)
                rest = rest[end:]
    if rest:
        yield TextPiece(rest, last=True)


def _find_cut(text: str) -> int | None:
    """Where to cut `text`, leaving something on both sides; None to wait for more of it."""
    if newline := _ALONE.search(text, PIECE):
        return newline.end()
    if len(text) <= LONGEST:
        return None
    last_of_run = _LAST_OF_RUN.search(text, PIECE)
    return last_of_run.start() if last_of_run else LONGEST


def _read_text(path: Path, encoding: str) -> Iterator[str]:
    """The text of a file in blocks, newlines as they are, without a byte-order mark."""
    decoder = codecs.getincrementaldecoder(encoding)()
    start = 0  # of the bytes that the decoder looks at next
    with _open_file(path) as file:
        while True:
            block = file.read(BLOCK)
            n_undecoded = len(decoder.getstate()[0])
            try:
                text = decoder.decode(block, final=not block)
            except UnicodeDecodeError as error:
                raise UserError(
                    f"{path} is not {encoding} text: byte {start - n_undecoded + error.start} cannot be read; "
                    "set data.encoding (--encoding) to the file's own, such as latin-1, cp1252 or utf-16"
                ) from None
            yield text.removeprefix("\ufeff") if start == 0 else text
            start += len(block)
            if not block:
                return


def read_lines(path: Path, encoding: str) -> Iterator[str]:
    """The lines of a file, which end at "\\n" alone; after the last of these there is none unless it has text."""
    rest = ""
    for block in _read_text(path, encoding):
        *complete, rest = (rest + block).split("\n")
        yield from complete
    if rest:
        yield rest


def _read_json_lines(path: Path, encoding: str, field: str) -> Iterator[str]:
    for location, values in read_json_objects(path, encoding, [field]):
        yield get_text(values, field, location, "data.text_field")


def read_json_objects(path: Path, encoding: str, fields: Sequence[str]) -> Iterator[tuple[str, dict[str, object]]]:
    """The object on each line of a JSONL file, and where it stands; `fields` are those that it should have."""
    for number, line in enumerate(read_lines(path, encoding), 1):
        if not line.strip():
            continue
        location = f"{path} line {number}"
        try:
            row: object = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", "nested too deep")
            raise UserError(f"{location} is not JSON ({reason}); each line must hold one object") from None
        if not isinstance(row, dict):
            example = ", ".join(f"{json.dumps(field)}: ..." for field in fields)
            raise UserError(f"{location} is not a JSON object; write {{{example}}} on each line")
        yield location, cast(dict[str, object], row)


def get_text(values: dict[str, object], field: str, location: str, setting: str) -> str:
    """The text under the key `field`, which `setting` chose."""
    if field not in values:
        raise UserError(f"{location} has no field {field!r}{suggest(field, values)} (set {setting})")
    text = values[field]
    if not isinstance(text, str):
        raise UserError(f"{location}: the field {field!r} is not text; set {setting} to one that is")
    return _check_unicode(text, location)


def _read_parquet(path: Path, field: str) -> Iterator[str]:
    try:
        from pyarrow import ArrowException, parquet, types
    except ImportError:
        raise UserError(f"{path}: reading Parquet needs pyarrow; pip install 'tercet[parquet]'") from None
    with _open_file(path) as file:
        try:
            table = parquet.ParquetFile(file)
            columns = table.schema_arrow
            if field not in columns.names:
                raise UserError(f"{path} has no column {field!r}{suggest(field, columns.names)} (set data.text_field)")
            kind = columns.field(field).type
            if not (types.is_string(kind) or types.is_large_string(kind)):
                raise UserError(f"{path}: the column {field!r} is not text; set data.text_field to one that is")
            for batch in table.iter_batches(batch_size=1024, columns=[field]):
                yield from (text for text in batch.column(0).to_pylist() if text)
        except ArrowException as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"{path} is not a whole Parquet file: {reason}; copy it again") from None


def _check_unicode(text: str, location: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{location}: the text has half a surrogate pair (\\ud800...); remove it") from None
    return text


@contextmanager
def _open_file(path: Path) -> Generator[IO[bytes]]:
    with _report_file_errors(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        yield cast(IO[bytes], file)


@contextmanager
def _report_file_errors(path: Path) -> Generator[None]:
    try:
        yield
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UserError(f"{path} is a broken gzip file ({error}); copy it again, or unpack what is whole") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror or error}; check the file and its permissions") from None


def uncompressed_suffix(path: Path) -> str:
    """That of the file before it was compressed."""
    return Path(path.stem).suffix if path.suffix == ".gz" else path.suffix


def _suggest_path(path: Path) -> str:
    """What to say after a path that does not exist."""
    if not path.parent.is_dir():
        return "; its folder does not exist either"
    names = [other.name for other in path.parent.iterdir() if not other.name.startswith(".")]
    known = suggest(path.name, names)
    return known if known.startswith("; did you mean") else f"; look in {path.parent.resolve()}"
