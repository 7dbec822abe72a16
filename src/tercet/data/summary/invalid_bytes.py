"""Bytes that are not UTF-8 in files that should be: their number, and the places of the first ones."""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tercet.data.sources.files import BLOCK, Errors, open_file
from tercet.data.sources.formats import encoding_of_mark

MAX_PLACES = 5
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # invalid bytes as decoded by surrogateescape


@dataclass(frozen=True, kw_only=True)
class InvalidPlace:
    """Place of a byte that is not UTF-8: its offset, counted from 0, and its line, counted from 1."""

    path: str
    line: int
    byte: int


@dataclass(frozen=True, kw_only=True)
class InvalidBytes:
    """Number of bytes that are not UTF-8, and the places of the first ones."""

    count: int = 0
    places: tuple[InvalidPlace, ...] = ()

    @property
    def errors(self) -> Errors:
        """Error handler for reading the files: "replace" if there are invalid bytes, else "strict"."""
        return "replace" if self.count else "strict"


def find_invalid_bytes(paths: Iterable[Path], encoding: str) -> InvalidBytes:
    """Find the invalid bytes of the files `paths`; none if the encoding is not UTF-8.

    Files with the mark of UTF-16 or UTF-32 are not in UTF-8 and have none.

    Raises:
        UserError: If a file cannot be read.
    """
    if codecs.lookup(encoding).name != "utf-8":
        return InvalidBytes()
    count, places = 0, list[InvalidPlace]()
    for path in paths:
        for line, byte in _invalid_bytes(path):
            count += 1
            if len(places) < MAX_PLACES:
                places.append(InvalidPlace(path=str(path), line=line, byte=byte))
    return InvalidBytes(count=count, places=tuple(places))


def _invalid_bytes(path: Path) -> Iterator[tuple[int, int]]:
    """Yield the line and the offset of each byte that is not UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    line, byte = 1, 0  # of the next character
    with open_file(path) as file:
        while True:
            block = file.read(BLOCK)
            if (line, byte) == (1, 0) and encoding_of_mark(block, "utf-8") != "utf-8":
                return
            text = decoder.decode(block, final=not block)
            start = 0
            for number in [*(match.start() for match in _NO_UTF8.finditer(text)), len(text)]:
                segment = text[start:number]
                line += segment.count("\n")
                byte += len(segment.encode("utf-8", "surrogateescape"))
                if number < len(text):
                    yield line, byte
                start = number
            if not block:
                return
