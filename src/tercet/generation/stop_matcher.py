"""Stop strings in a stream: text that may be the beginning of a stop string is held back until this is decided.

Text arrives in pieces that may end anywhere. The stop string that is *complete* first counts. If two end at the same
character, the longer one counts. The result therefore does not depend on the boundaries of the pieces.
"""

from collections.abc import Sequence


class StopMatcher:
    """Finds stop strings in a text that arrives in pieces.

    The results of `push` for each piece and of `flush` at the end, joined, are the text up to the first stop string.

    Attributes:
        is_complete: True if a stop string was found.
    """

    def __init__(self, stop: Sequence[str]) -> None:
        self._stop = tuple(stop)
        self._longest = max(map(len, self._stop), default=0)
        self._pending = ""  # always the beginning of a stop string
        self.is_complete = False

    def push(self, piece: str) -> str:
        """Add a piece and return the text that has become certain.

        This excludes an end that may still become a stop string. It is "" if a stop string was found before.
        """
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
        """End the text and return the part of it that was held back."""
        pending, self._pending = self._pending, ""
        return pending

    def _overlap(self, text: str) -> int:
        """Return the length of the longest end of `text` that is the beginning, but not all, of a stop string."""
        sizes = range(min(self._longest - 1, len(text)), 0, -1)
        return next((size for size in sizes if any(stop.startswith(text[-size:]) for stop in self._stop)), 0)
