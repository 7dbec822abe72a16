"""A document file: its bytes, its text in a detected encoding, and an account of everything that is left out."""

import codecs
import io
import re
import zipfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tercet import limits
from tercet.config import UserError
from tercet.data.sources.files import open_file
from tercet.data.sources.formats import encoding_of_mark
from tercet.reading.text_files import check_unpacked

_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufffe\uffff]")  # not text, but frequent in PDF
_LINE_END = re.compile("\r\n?")
_SPACES_AT_END = re.compile(r"[ \t]+$", re.MULTILINE)
_BLANK_LINES = re.compile(r"\n{4,}")


class DocumentPart(NamedTuple):
    """Part of a document, such as a page.

    Attributes:
        text: The text.
        place: Position of the part in the file, such as "page 3".
    """

    text: str
    place: str


class Document(NamedTuple):
    """A document. A file may contain several, such as the messages of a mailbox."""

    parts: list[DocumentPart]
    title: str = ""


class TextPair(NamedTuple):
    """A text and its translation, with the languages that the file names; "" for none."""

    source: str
    target: str
    place: str
    source_language: str = ""
    target_language: str = ""


@dataclass
class DocumentFile:
    """A file that a reader turns into documents or pairs.

    Attributes:
        path: Path of the file.
        encoding: Encoding of the file; None to detect it.
        main_text: If True, remove boilerplate such as navigation, page headers and quoted replies.
        dropped: Number of left out parts by reason.
        used_encoding: Encoding in which the text was read; "" for binary formats.
    """

    path: Path
    encoding: str | None = None
    main_text: bool = False
    dropped: Counter[str] = field(default_factory=Counter[str])
    used_encoding: str = ""

    def drop(self, reason: str, count: int = 1) -> None:
        """Count parts that are left out."""
        if count:
            self.dropped[reason] += count

    def read_bytes(self) -> bytes:
        """Return the bytes of the file.

        Raises:
            UserError: If it cannot be read, or has more than `limits.DOCUMENT_BYTES`.
        """
        with open_file(self.path) as file:
            data = file.read(limits.DOCUMENT_BYTES + 1)
        if len(data) > limits.DOCUMENT_BYTES:
            raise UserError(f"{self.path} has more than {limits.DOCUMENT_BYTES:,} bytes; split it")
        return data

    def decode_text(self, declared: re.Pattern[bytes] | None = None) -> str:
        """Return the text of the file.

        Args:
            declared: Pattern whose first group is the name of the encoding that such a file declares.

        Raises:
            UserError: If it cannot be read, or is not text in the encoding that was passed.
        """
        data = self.read_bytes()
        match = declared.search(data[: limits.SAMPLE_BYTES]) if declared else None
        return self.decode(data, match[1].decode("ascii", "replace") if match else "")

    def decode(self, data: bytes, declared: str = "") -> str:
        """Return the text of bytes, and set `used_encoding`.

        The encoding is the one that was passed, or else the first of these that fits: that of a byte order mark,
        UTF-8, the declared one, and the one detected by character frequencies.

        Raises:
            UserError: If the bytes are not text in the encoding that was passed.
        """
        if self.encoding is not None:
            try:
                self.used_encoding = self.encoding
                return data.decode(encoding_of_mark(data, self.encoding)).removeprefix("\ufeff")
            except UnicodeError as error:
                raise UserError(f"{self.path} is not {self.encoding} text ({error}); omit --encoding") from None
        for name in (encoding_of_mark(data, "utf-8"), declared):
            try:
                text = data.decode(name)
                self.used_encoding = codecs.lookup(name).name
                return text.removeprefix("\ufeff")
            except (UnicodeError, LookupError):
                continue
        from resiliparse.parse.encoding import detect_encoding

        self.used_encoding = detect_encoding(data) or "latin-1"
        text = data.decode(self.used_encoding, "replace")
        self.drop("bytes that are not text in the detected encoding", text.count("\ufffd"))
        return text

    def open_zip(self) -> zipfile.ZipFile:
        """Return the file as a zip archive whose members have all been unpacked once, to check their sizes.

        Raises:
            UserError: If it is damaged, encrypted, or unpacks to far more bytes than text does.
        """
        data = self.read_bytes()
        unpacked = 0
        try:
            archive = zipfile.ZipFile(io.BytesIO(data))
            for member in archive.infolist():
                with archive.open(member) as file:
                    while block := file.read(1 << 20):
                        unpacked += len(block)
                        check_unpacked(self.path, len(data), unpacked)
                        if unpacked > limits.DOCUMENT_BYTES:
                            raise UserError(f"{self.path} unpacks to more than {limits.DOCUMENT_BYTES:,} bytes")
        except RuntimeError:  # zipfile's error for encrypted members
            raise UserError(f"{self.path} is encrypted; save it without a password") from None
        except (zipfile.BadZipFile, EOFError, OSError, ValueError, NotImplementedError) as error:
            raise UserError(f"{self.path} is not a complete zip archive ({error}); copy it again") from None
        return archive


def clean_text(text: str) -> str:
    """Return a text with "\\n" as line end, and without control characters, soft hyphens and superfluous spaces."""
    text = _CONTROL.sub("", _LINE_END.sub("\n", text).replace("\u00ad", ""))
    return _BLANK_LINES.sub("\n\n\n", _SPACES_AT_END.sub("", text)).strip("\n")
