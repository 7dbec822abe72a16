"""What everything that text comes from has in common."""

from typing import Protocol


class TextSource(Protocol):
    """Files, or texts in memory, that something is made of."""

    @property
    def name(self) -> str: ...

    def hash(self) -> str:
        """Return the sha256 of everything that is read."""
        ...

    def size(self) -> int | None:
        """Return the bytes of text, or None if they are not known before the text is read."""
        ...
