"""Formats of files, detected by suffix (in either case) and by the first bytes.

A single file is read, or rejected with the name of its format. In a folder, files of other formats are left out and
counted (`describe_left_out`).
"""

import codecs
import gzip
import re
import shlex
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path

from tercet.config import UserError
from tercet.messages import counted, one_line
from tercet.reading.text_files import open_regular_file

GZIP = ".gz"
ALIASES = {".ndjson": ".jsonl", ".json": ".jsonl", ".jsonlines": ".jsonl", ".pq": ".parquet"}
# Suffixes of plain text: prose, readable markup, logs, source code and settings.
TEXT_SUFFIXES = (
    ".txt", ".text", ".md", ".markdown", ".rst", ".adoc", ".org", ".tex", ".log", ".abc",
    ".py", ".pyi", ".js", ".mjs", ".ts", ".jsx", ".tsx", ".c", ".h", ".cc", ".cpp", ".cxx", ".hh", ".hpp", ".cu", ".cs",
    ".java", ".kt", ".scala", ".go", ".rs", ".swift", ".rb", ".php", ".pl", ".lua", ".r", ".jl", ".hs", ".ml", ".ex",
    ".exs", ".erl", ".clj", ".lisp", ".el", ".f90", ".asm", ".s", ".sh", ".bash", ".zsh", ".ps1", ".sql", ".css",
    ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg", ".conf",
)  # fmt: skip
# Formats that are not read, because their markup or compressed parts would be learned with their text.
UNREADABLE = {
    **dict.fromkeys((".html", ".htm", ".xhtml"), "HTML"), ".ipynb": "a notebook",
    **dict.fromkeys((".po", ".pot"), "gettext translations"), ".tmx": "a translation memory",
    **dict.fromkeys((".xlf", ".xliff"), "XLIFF"), **dict.fromkeys((".srt", ".vtt"), "subtitles"), ".pdf": "PDF",
    **dict.fromkeys((".doc", ".docx", ".odt", ".rtf", ".epub"), "a text document of an office program"),
    **dict.fromkeys((".xls", ".xlsx", ".ods"), "a spreadsheet"), **dict.fromkeys((".ppt", ".pptx", ".odp"), "slides"),
    **dict.fromkeys((".zip", ".tar", ".tgz", ".7z", ".rar"), "an archive"),
    **dict.fromkeys((".bz2", ".xz", ".zst", ".lz4"), "compressed by something other than gzip"),
    **dict.fromkeys((".arrow", ".feather", ".tfrecord", ".h5", ".hdf5", ".npz", ".pkl", ".pickle", ".pt"), "binary"),
    **dict.fromkeys((".db", ".sqlite", ".sqlite3"), "a database"),
}  # fmt: skip
# Formats whose text `tercet data extract` reads, and those of translations, from which it extracts pairs.
DOCUMENT_SUFFIXES = (
    ".html", ".htm", ".xhtml", ".ipynb", ".srt", ".vtt", ".pdf", ".docx", ".epub", ".xlsx", ".ods", ".eml", ".mbox",
)  # fmt: skip
TRANSLATION_SUFFIXES = (".po", ".tmx")
MAGIC = {
    b"%PDF-": "PDF", b"PK\x03\x04": "an archive", b"\x1f\x8b": "compressed by gzip without the suffix .gz",
    b"BZh": "compressed by bzip2", b"\xfd7zXZ\x00": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by Zstandard", b"PAR1": "Parquet",
    b"\x93NUMPY": "a NumPy array", b"\x89PNG": "a picture", b"\xff\xd8\xff": "a picture",
    b"SQLite format 3": "a database", b"{\\rtf": "a text document of an office program",
}  # fmt: skip
WIDE_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
SAMPLE_BYTES = 4096  # bytes at the start of a file that are examined
MIN_ZEROS = 8  # a file without a text suffix is binary if its sample has this many zero bytes and they are a tenth
MAX_ENDINGS_SHOWN = 4  # suffixes in a message


def is_gzip(path: Path) -> bool:
    """Return True if the suffix of the path is `.gz`."""
    return path.suffix.lower() == GZIP


def uncompressed_suffix(path: Path) -> str:
    """Return the suffix of a path without `.gz`, in lower case.

    A suffix in `ALIASES` is replaced, so that `.json` and `.ndjson` become `.jsonl`.
    """
    suffix = _uncompressed_ending(path)
    return ALIASES.get(suffix, suffix)


def is_json(path: Path) -> bool:
    """Return True if the suffix is `.json`. Such a file may contain an array, an object per line, or settings."""
    return _uncompressed_ending(path) == ".json"


def _uncompressed_ending(path: Path) -> str:
    return (Path(path.stem).suffix if is_gzip(path) else path.suffix).lower()


def check_readable(path: Path, encoding: str) -> None:
    """Check that a file to be read as plain text has no other format.

    Raises:
        UserError: If its suffix or its first bytes are those of a format that is not supported.
    """
    suffix = uncompressed_suffix(path)
    format_name = UNREADABLE.get(suffix) or _format_of_bytes(_first_bytes(path), suffix, encoding)
    if format_name is not None and (command := extract_command(path, [suffix])):
        raise UserError(f"{path} is {format_name}; extract its text: {command}")
    if format_name is not None:
        raise UserError(f"{path} is {format_name}, which is not supported; convert its text to .txt, .jsonl or .csv")


def is_text_without_ending(path: Path, encoding: str) -> bool:
    """Return True if the name of a file has no suffix except `.gz`, and its first bytes are text in this encoding."""
    if _uncompressed_ending(path):
        return False
    data = _first_bytes(path)
    try:
        decoder = codecs.getincrementaldecoder(encoding_of_mark(data, encoding))()
        decoder.decode(data)  # the last character may be incomplete
    except UnicodeError:
        return False
    return _format_of_bytes(data, "", encoding) is None


def extract_command(source: Path | str, suffixes: Iterable[str]) -> str:
    """Return the command that extracts the text or the pairs of files with these suffixes, or "" if none does."""
    found = {*suffixes}
    if not found.isdisjoint(DOCUMENT_SUFFIXES):
        return f"tercet data extract {shlex.quote(str(source))} --out texts.jsonl"
    if not found.isdisjoint(TRANSLATION_SUFFIXES):
        return f"tercet data extract {shlex.quote(str(source))} --pairs --out pairs.jsonl"
    return ""


def encoding_of_mark(data: bytes, encoding: str) -> str:
    """Return the encoding of a file that starts with `data`, and is read as `encoding`.

    Spreadsheet programs export tables as UTF-16. No text in UTF-8 starts with the mark of UTF-16 or UTF-32.
    """
    if codecs.lookup(encoding).name != "utf-8":
        return encoding
    if data.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32"
    return "utf-16" if data.startswith(WIDE_MARKS) else encoding


def describe_left_out(counts: Mapping[str, int]) -> str:
    """Return the number of left out files of each suffix as text, most frequent first: "3 .png, 1 .html"."""
    most_frequent = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:MAX_ENDINGS_SHOWN]
    descriptions = [f"{count:,} {one_line(ending) or 'without an ending'}" for ending, count in most_frequent]
    n_others = sum(counts.values()) - sum(count for _, count in most_frequent)
    return ", ".join([*descriptions, *([counted(n_others, "other", "others")] if n_others else [])])


def _first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file, of a `.gz` file those of its content."""
    try:
        with open_regular_file(path) as file:
            return gzip.GzipFile(fileobj=file).read(SAMPLE_BYTES) if is_gzip(path) else file.read(SAMPLE_BYTES)
    except (OSError, EOFError, zlib.error):
        return b""  # reading the file raises the error


def _format_of_bytes(data: bytes, suffix: str, encoding: str) -> str | None:
    """Return the name of the format of a file that starts with `data`, or None if it may be text."""
    format_name = next((name for magic, name in MAGIC.items() if data.startswith(magic)), None)
    # UTF-16 and UTF-32 contain zero bytes too. Without the right encoding they are rejected with a hint.
    if format_name or data.startswith(WIDE_MARKS) or re.match("utf[-_ ]?(16|32)|u16|u32|ucs", encoding.lower()):
        return format_name
    if len(data) >= MIN_ZEROS and max(data[::2].count(0), data[1::2].count(0)) > 0.4 * len(data):
        return "UTF-16 without a mark (set data.encoding or --encoding to utf-16-le or utf-16-be) or binary"
    if suffix not in TEXT_SUFFIXES and data.count(0) >= max(MIN_ZEROS, len(data) // 10):
        return "binary"
    return None
