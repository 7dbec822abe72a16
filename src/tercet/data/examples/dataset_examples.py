"""Base class of sources of examples in datasets of other packages, which yield mappings such as the lines of JSONL."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Generic

from tercet.config import UserError
from tercet.data.examples.example_source import ExampleType
from tercet.data.sources.dataset_source import DatasetSource


@dataclass(frozen=True, kw_only=True)
class DatasetExamples(DatasetSource, Generic[ExampleType]):
    """Examples of a dataset.

    Attributes:
        read: Function that reads the example in a mapping; its second argument is the location for messages.
    """

    read: Callable[[dict[str, object], str], ExampleType]

    def examples(self) -> Iterator[ExampleType]:
        """Yield every example, including empty ones.

        Raises:
            UserError: If the dataset yields something else than mappings, or one of them lacks a field.
        """
        for location, row in self.rows():
            if isinstance(row, str):
                raise UserError(f"{location} is a text; yield a mapping with its fields, such as {{'text': ...}}")
            yield self.read(row, location)
