"""Scripts of a text. The script of a letter is the first word of its Unicode name, after a word in `WIDTHS`."""

import unicodedata

import numpy as np

BLOCK_CHARACTERS = 1 << 20  # characters counted at once
WIDTHS = ("FULLWIDTH", "HALFWIDTH", "MODIFIER")  # words that precede the script in a name


class ScriptCounts:
    """Counts of characters, from which the shares of scripts follow."""

    def __init__(self) -> None:
        self._counts = np.zeros(0x110000, dtype=np.int64)  # by code point
        self._pending, self._length = list[str](), 0

    def push(self, text: str) -> None:
        self._pending.append(text)
        self._length += len(text)
        if self._length >= BLOCK_CHARACTERS:
            self._count()

    def characters(self) -> dict[str, int]:
        """Return the number of occurrences of each character."""
        self._count()
        return {chr(code): int(self._counts[code]) for code in np.flatnonzero(self._counts).tolist()}

    def shares(self) -> dict[str, float]:
        """Return the share of each script among all letters, largest first."""
        totals = dict[str, int]()
        for character, count in self.characters().items():
            if script := find_script(character):
                totals[script] = totals.get(script, 0) + count
        letters = sum(totals.values())
        return {name: count / letters for name, count in sorted(totals.items(), key=lambda item: (-item[1], item[0]))}

    def _count(self) -> None:
        codes = np.frombuffer("".join(self._pending).encode("utf-32-le"), dtype="<u4")
        if len(codes):
            counts = np.bincount(codes)
            self._counts[: len(counts)] += counts
        self._pending, self._length = [], 0


def find_script(character: str) -> str | None:
    """Return the script of a letter, such as "Latin" or "Cjk", or None for other characters."""
    if not unicodedata.category(character).startswith("L"):
        return None
    words = unicodedata.name(character, "UNKNOWN").replace("-", " ").split()
    return words[1 if words[0] in WIDTHS and len(words) > 1 else 0].capitalize()
