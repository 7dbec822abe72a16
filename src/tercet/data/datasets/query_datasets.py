"""Named datasets of queries and their documents."""

from collections.abc import Callable
from dataclasses import dataclass

from tercet.data.datasets.text_datasets import find_example_file
from tercet.data.examples.queries import DatasetQueries, QueryFile, QuerySource, QueryTexts
from tercet.data.sources.custom_dataset import CustomDataset
from tercet.data.specs import QueriesSpec, Side

LIBRARY = "read from the running Python's source files, so it differs between versions; PSF license"


@dataclass(frozen=True, kw_only=True)
class QueryDataset:
    """Named dataset of queries and their documents.

    Attributes:
        description, origin: Texts for the list of datasets.
        open: Function that returns the pairs of a part.
    """

    description: str
    origin: str
    open: Callable[[Side], QuerySource]


def find_queries(spec: QueriesSpec, part: Side = "train") -> QuerySource:
    """Return a part of the named dataset `spec.source`, the file at this path, or the dataset of another package.

    `./python-docstring-search` is always a path. A path with a suffix is not checked before it is read.

    Raises:
        UserError: If a name without suffix is neither a dataset nor a file, or a part other than "train" of a file is
            requested.
    """
    if spec.source in QUERY_DATASETS:
        return QUERY_DATASETS[str(spec.source)].open(part)
    file = QueryFile(
        path=find_example_file(spec.source, part, QUERY_DATASETS, "queries"),
        query_field=spec.query_field,
        document_field=spec.document_field,
        negative_field=spec.negative_field,
        encoding=spec.encoding,
    )
    if isinstance(spec.source, CustomDataset):
        return DatasetQueries(dataset=spec.source, read=file.read_object)
    return file


def _docstring_search(part: Side) -> QueryTexts:
    from tercet.data.datasets.docstring_search import read_docstring_search

    return read_docstring_search(part)


QUERY_DATASETS = {
    "python-docstring-search": QueryDataset(
        description="first lines of docstrings of Python's standard library, and the code that they describe: some "
        "5,000 functions",
        origin=LIBRARY,
        open=_docstring_search,
    ),
}
