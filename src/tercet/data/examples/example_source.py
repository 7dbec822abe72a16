"""Protocols of examples (pairs, labeled texts and conversations) and of their sources."""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol, TypeVar

from tercet.config import UserError
from tercet.data.sources.text_source import TextSource


class AnyExample(Protocol):
    """Pair, labeled text or conversation."""

    @property
    def texts(self) -> Sequence[str]:
        """Both sentences of a pair, the text or words of a labeled text, or the messages of a conversation."""
        ...

    @property
    def identity(self) -> str:
        """Text that must not be in both the training and the validation part."""
        ...

    @property
    def is_empty(self) -> bool:
        """True if nothing can be learned from the example."""
        ...


ExampleType = TypeVar("ExampleType", bound=AnyExample)
AnyExampleType = TypeVar("AnyExampleType", bound=AnyExample, covariant=True)


class ExampleSource(TextSource, Protocol[AnyExampleType]):
    """Source of examples of one kind.

    Attributes:
        example_name: Description of a nonempty example, for messages.
    """

    example_name: ClassVar[str]

    def examples(self) -> Iterator[AnyExampleType]:
        """Yield every example, including empty ones."""
        ...


def read_examples(source: ExampleSource[ExampleType]) -> Iterator[ExampleType]:
    """Yield the examples that are not empty.

    Raises:
        UserError: If a file cannot be read, or all examples are empty.
    """
    is_empty = True
    for example in source.examples():
        if not example.is_empty:
            is_empty = False
            yield example
    if is_empty:
        raise no_example_error(source)


def no_example_error(source: ExampleSource[AnyExample]) -> UserError:
    return UserError(f"{source.name} has no {source.example_name}; use a file that contains some")
