"""Where bytes are no UTF-8, in files that should be: counted, and the first of them named."""

import codecs
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tercet.data.sources.files import BLOCK, Errors, open_file

MAX_PLACES = 5
_NO_UTF8 = re.compile("[\udc80-\udcff]")  # as surrogateescape writes a byte


@dataclass(frozen=True, kw_only=True)
class InvalidPlace:
    """A byte that is no UTF-8, counted from 0, and its line, from 1."""

    path: str
    line: int
    byte: int


@dataclass(frozen=True, kw_only=True)
class InvalidBytes:
    """How many bytes are no UTF-8, and the first of them."""

    count: int = 0
    places: tuple[InvalidPlace, ...] = ()

    @property
    def errors(self) -> Errors:
        """How to read on."""
        return "replace" if self.count else "strict"


def find_invalid_bytes(paths: Iterable[Path], encoding: str) -> InvalidBytes:
    """Those of the files `paths`; none where they have another encoding.

    Raises:
        UserError: where a file cannot be read.
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
    """Line and byte of each byte that is no UTF-8."""
    decoder = codecs.getincrementaldecoder("utf-8")("surrogateescape")
    line, byte = 1, 0  # of what is looked at next
    with open_file(path) as file:
        while True:
            block = file.read(BLOCK)
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
