"""Examples of datasets in other packages as a source of documents, or as rows such as the lines of a JSONL file.

Their code may raise any error, yield anything, and yield something else at each call, for example if it draws random
numbers. Each of these is reported in one line.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Any

from tercet.config import UserError, to_plain
from tercet.data.sources.custom_dataset import CustomDataset
from tercet.data.sources.documents import TextPiece, cut_pieces
from tercet.data.sources.files import check_unicode, find_group, get_text
from tercet.messages import describe_error, shorten, show

Row = str | dict[str, object]
FIRST_ROWS = 100  # rows that are compared before a run starts


@dataclass(frozen=True, kw_only=True)
class DatasetSource:
    """A dataset of another package."""

    dataset: CustomDataset

    @property
    def name(self) -> str:
        return self.dataset.kind

    def rows(self) -> Iterator[tuple[str, Row]]:
        """Yield the location of each example for messages, and the example.

        Mappings are converted as if they were written to JSON and read again: tuples become lists, and numbers and
        arrays of NumPy become numbers and lists.

        Raises:
            UserError: If the code of the dataset raises an error, or yields something else than texts and mappings.
        """
        examples: Iterator[Any] | None = None
        for number in count(1):
            location = f"{self.name}, example {number:,}"
            try:
                examples = iter(self.dataset.examples()) if examples is None else examples
                example = next(examples)
            except StopIteration:
                return
            except Exception as error:  # the code is the user's, and may raise anything
                settings = shorten(
                    ", ".join(f"{key}: {value}" for key, value in list(to_plain(self.dataset).items())[1:])
                )
                read = f"{location} cannot be read{f' with {settings}' if settings else ''}"
                raise UserError(f"{read}: {describe_error(error)}; correct its settings or code") from None
            yield location, _to_row(example, location)

    def hash(self) -> str:
        return self.measure()[0]

    def size(self) -> int | None:
        return None  # unknown before all examples are read

    def measure(self) -> tuple[str, int]:
        """Read all examples, and return the sha256 of their content and their size in bytes."""
        digest, size = hashlib.sha256(), 0
        for _, row in self.rows():
            line = json.dumps(row, sort_keys=True).encode()
            digest.update(line + b"\n")
            size += len(line)
        return digest.hexdigest(), size

    def check(self) -> None:
        """Check that there is an example, and that the first ones are the same when they are read again.

        Raises:
            UserError: If there is none, they differ, or `rows` raises it.
        """
        first, again = ([row for _, row in islice(self.rows(), FIRST_ROWS)] for _ in range(2))
        if not first:
            raise UserError(f"{self.name} has no examples; check its settings")
        if first != again:
            raise self.changed_error()

    def changed_error(self) -> UserError:
        return UserError(
            f"{self.name} does not have the same examples each time that they are read; sort the names of files, draw "
            "random numbers with a fixed seed, and do not change its data during training"
        )


@dataclass(frozen=True, kw_only=True)
class DatasetDocuments(DatasetSource):
    """Documents of a dataset. The text of a mapping is in `text_field`, and its group in `group_field`."""

    text_field: str = "text"
    group_field: str | None = None

    def pieces(self) -> Iterator[TextPiece]:
        """Yield every nonempty document, piece by piece.

        Raises:
            UserError: If there is no text at all, an example has no text or group, or `rows` raises it.
        """
        is_empty = True
        for location, row in self.rows():
            text = row if isinstance(row, str) else get_text(row, self.text_field, location, "data.text_field")
            if isinstance(row, str) and self.group_field is not None:
                raise UserError(f"{location} is a text, which has no group; yield mappings with {self.group_field!r}")
            group = "" if isinstance(row, str) else find_group(row, self.group_field, location)
            for piece in cut_pieces([text]):
                is_empty = False
                yield piece._replace(group=group)
        if is_empty:
            raise UserError(f"{self.name} has no text; check its settings")


def _to_row(example: object, location: str) -> Row:
    if isinstance(example, str):
        check_unicode(example, location)
        return str(example)
    if not isinstance(example, Mapping):
        raise UserError(f"{location} is {show(example)}; yield a text, or a mapping such as {{'text': ...}}")
    try:
        return json.loads(json.dumps({**example}, default=_to_list))
    except (TypeError, ValueError, RecursionError) as error:
        raise UserError(
            f"{location} has a value that JSON cannot contain ({describe_error(error)}); yield texts, numbers and lists"
        ) from None


def _to_list(value: Any) -> Any:
    """Return the numbers of a NumPy array, or a scalar as a number."""
    if not hasattr(value, "tolist"):
        raise TypeError(f"{type(value).__name__} {show(value)}")
    return value.tolist()
