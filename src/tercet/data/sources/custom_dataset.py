"""Datasets of other packages, which recipes select by import path.

data:
  source: {kind: "my_package.reads:Records", path: reads.db}
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tercet.config import Plain, parse, to_plain
from tercet.custom_code import is_import_path
from tercet.messages import show
from tercet.spec import Custom, Name, spec


class CustomDataset(Custom):
    """Base class of the specs of datasets in other packages."""

    def examples(self) -> Iterable[str | Mapping[str, Any]]:
        """Return all examples, which are the same and in the same order at every call.

        They are read several times as a stream, so they need not fit into memory. A method with `yield` suffices.

        Returns:
            Documents of running text as texts or mappings, and all other examples as mappings. A mapping has the fields
            of a line of JSONL, such as "text" and "label", with values that JSON can contain.
        """
        raise NotImplementedError(f"{self.kind} has no method examples")

    def __str__(self) -> str:
        return self.kind


Source = Name | CustomDataset  # of the data of a recipe, or of its validation part


@spec
class _Selection:
    source: Source


def read_source(text: str) -> str | CustomDataset:
    """Return the source in an argument: a dataset of another package, or the argument itself.

    Args:
        text: Path or name, import path such as "my_package.reads:Records", or YAML such as
            `{kind: "my_package.reads:Records", path: reads.db}`.

    Raises:
        UserError: If the dataset cannot be imported, is not allowed, or has invalid settings.
    """
    return parse(_Selection, {"source": plain_source(text)}).source


def plain_source(source: str | Path | CustomDataset) -> str | Plain:
    """Return the source in an argument, as in `read_source`, or a dataset as the value of a recipe key.

    Raises:
        UserError: If the argument begins as a YAML mapping, but is not valid YAML.
    """
    if isinstance(source, CustomDataset):
        return to_plain(source)
    text = str(source)
    if not text.startswith("{"):
        return text

    from tercet.settings_yaml import parse_value  # imported late, because YAML is rarely used here

    return parse_value(text, name=show(text))


def name_datasets(data: Mapping[str, Any]) -> Plain:
    """Return the `data` of a recipe with names instead of its datasets of other packages.

    It can be parsed without their code, to find out how examples are read, but not to open the data.
    """
    changes: Plain = {}
    source = data.get("source")
    kind = source.get("kind") if isinstance(source, Mapping) else source
    if isinstance(kind, str) and is_import_path(kind):
        changes["source"] = kind.replace(":", ".")
    if isinstance(validation := data.get("validation"), Mapping):
        changes["validation"] = name_datasets(validation)
    return {**data, **changes}
