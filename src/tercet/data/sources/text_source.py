"""Protocol of all sources of text."""

from typing import Protocol


class TextSource(Protocol):
    """Files, or texts in memory. `name` is the name of the source in messages."""

    @property
    def name(self) -> str: ...

    def hash(self) -> str:
        """Return the sha256 of the complete content."""
        ...

    def size(self) -> int | None:
        """Return the number of bytes of text, or None if it is unknown before the source is read."""
        ...
