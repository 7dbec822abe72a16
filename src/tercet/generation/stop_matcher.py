"""Stop texts in a stream: whatever could still become one is held back until it is known not to.

Text comes in pieces that end anywhere. The first stop text to be *complete* counts, and of two that end together the
longer: so the outcome does not depend on where the pieces end.
"""

from collections.abc import Sequence


class StopMatcher:
    """`push` pieces of a text, `flush` at its end: what they return, joined, is the text up to the first stop text."""

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._pending = ""  # always a beginning of some stop text
        self.is_complete = False

    def push(self, piece: str) -> str:
        """The text that is certain now; nothing more once a stop text was found."""
        if self.is_complete:
            return ""
        text = self._pending + piece
        ends = [(start + len(stop), start) for stop in self._stop if (start := text.find(stop)) >= 0]
        if ends:
            self.is_complete = True
            self._pending = ""
            return text[: min(ends)[1]]
        end = len(text) - self._overlap(text)
        self._pending = text[end:]
        return text[:end]

    def flush(self) -> str:
        """What was held back: the text has ended, so it can no longer become a stop text."""
        pending, self._pending = self._pending, ""
        return pending

    def _overlap(self, text: str) -> int:
        """The length of the longest end of `text` with which some stop text begins."""
        sizes = range(min(self._longest - 1, len(text)), 0, -1)
        return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in self._stop)), 0)
