"""Repair of text that needs no guess: line ends, control characters, wrong encodings, and Unicode normalization.

A check counts what the repair would change, so that a repaired text has none of these findings.

Mojibake is text in UTF-8 that was read in another encoding, such as "cafÃ©" instead of "café". It is repaired by ftfy
(Speer 2019), which decodes a line again if the line then contains fewer unlikely sequences of characters.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ufeff]")  # except tabs and line ends, and with byte-order marks
SURROGATE = re.compile("[\ud800-\udfff]")  # half a pair, which UTF-8 cannot contain


def has_ftfy() -> bool:
    """Return True if ftfy, by which mojibake is found and repaired, is installed."""
    return find_spec("ftfy") is not None


class TextRepair:
    """Repairs texts and counts the changes.

    Attributes:
        changes: Number of changed "line_ends" (carriage returns), "control_characters", lines of "mojibake", and lines
            that were not in "unicode_nfc".
    """

    def __init__(self) -> None:
        self.changes = Counter[str]()
        self._decode_again = _find_decoder() if has_ftfy() else None

    def repair(self, text: str) -> str:
        """Return the text with line feeds as line ends, repaired mojibake, without control characters, and in NFC.

        The repair of a repaired text changes nothing: a removed character may join the parts of another fault, so it is
        repeated until the text does not change.
        """
        while (repaired := self._repair_once(text)) != text:
            text = repaired
        return text

    def split_lines(self, line: str) -> list[str]:
        """Return the repaired lines in a line that may contain carriage returns, each of which ends a line."""
        lines = line.removesuffix("\r").split("\r")
        self.changes["line_ends"] += line.count("\r")
        return [self.repair(part) for part in lines]

    def join_lines(self, line: str) -> str:
        """Return the repaired line. Carriage returns at its end are removed, and others become spaces."""
        self.changes["line_ends"] += line.count("\r")
        return self.repair(line.rstrip("\r").replace("\r", " "))

    def _repair_once(self, text: str) -> str:
        if "\r" in text:
            self.changes["line_ends"] += text.count("\r")
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        if not text.isascii():
            if self._decode_again is not None:
                text = self._change_lines(text, self._decode_again, "mojibake")
            if not unicodedata.is_normalized("NFC", text):
                text = self._change_lines(text, lambda line: unicodedata.normalize("NFC", line), "unicode_nfc")
        if CONTROL.search(text):
            text, n_removed = CONTROL.subn("", text)
            self.changes["control_characters"] += n_removed
        return text

    def _change_lines(self, text: str, change: Callable[[str], str], name: str) -> str:
        lines = text.split("\n")
        changed = [line if line.isascii() else change(line) for line in lines]
        self.changes[name] += sum(old != new for old, new in zip(lines, changed, strict=True))
        return "\n".join(changed)


def _find_decoder() -> Callable[[str], str]:
    from ftfy import fix_encoding
    from ftfy.badness import is_bad

    def decode_again(line: str) -> str:
        if not is_bad(line):
            return line
        decoded = fix_encoding(line)
        return line if SURROGATE.search(decoded) else decoded

    return decode_again
