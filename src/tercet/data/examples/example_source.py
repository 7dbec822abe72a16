"""What pairs, labeled texts and conversations have in common, and where they come from."""

from collections.abc import Iterator, Sequence
from typing import ClassVar, Protocol, TypeVar

from tercet.config import UserError
from tercet.data.sources.text_source import TextSource


class AnyExample(Protocol):
    """A pair, a labeled text or a conversation."""

    @property
    def texts(self) -> Sequence[str]:
        """All of its texts."""
        ...

    @property
    def identity(self) -> str:
        """The text that must not be in both the training and the validation part."""
        ...

    @property
    def is_empty(self) -> bool:
        """True if nothing can be learned from it."""
        ...


ExampleType = TypeVar("ExampleType", bound=AnyExample)
AnyExampleType = TypeVar("AnyExampleType", bound=AnyExample, covariant=True)


class ExampleSource(TextSource, Protocol[AnyExampleType]):
    """Somewhere examples of one kind come from.

    Attributes:
        example_name: What an example is that is not empty.
    """

    example_name: ClassVar[str]

    def examples(self) -> Iterator[AnyExampleType]:
        """Yield every example, empty ones too."""
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
    return UserError(f"{source.name} has no {source.example_name}; give a file with some")
