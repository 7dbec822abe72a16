"""Named datasets of labeled texts."""

from collections.abc import Callable
from dataclasses import dataclass

from tercet.config import UserError
from tercet.data.datasets.query_datasets import LIBRARY, find_queries
from tercet.data.datasets.text_datasets import find_example_file
from tercet.data.examples.labels import DatasetLabels, LabelFile, LabelSource, LabelTexts
from tercet.data.label_spec import LabelsSpec
from tercet.data.sources.custom_dataset import CustomDataset
from tercet.data.specs import QueriesSpec, Side
from tercet.spec import ProblemType

PROBLEM_DESCRIPTIONS: dict[ProblemType, str] = {
    "single_label_classification": "one label per text",
    "multi_label_classification": "any number of labels per text",
    "regression": "one number per text",
}


@dataclass(frozen=True, kw_only=True)
class LabelDataset:
    """Named dataset of labeled texts.

    Attributes:
        description, origin: Texts for the list of datasets.
        open: Function that returns the labeled texts of a part.
        problem_type: Kind of the labels of a text: one label, several, or a number.
    """

    description: str
    origin: str
    open: Callable[[Side], LabelSource]
    problem_type: ProblemType = "single_label_classification"


def find_labels(spec: LabelsSpec, part: Side = "train") -> LabelSource:
    """Return a part of the named dataset `spec.source`, the file at this path, or the dataset of another package.

    With `spec.negatives`, these are queries and documents, from which labeled pairs are made.

    `./python-docstrings` is always a path. A path with a suffix is not checked before it is read.

    Raises:
        UserError: If a name without suffix is neither a dataset nor a file, the dataset has other labels than `spec`,
            a part other than "train" of a file is requested, or patterns of headers apply to a dataset.
    """
    if spec.negatives:
        from tercet.data.examples.negatives import NegativesSource

        queries = QueriesSpec(
            source=spec.source,
            query_field=spec.text_field,
            document_field=spec.pair_field or "",  # never empty, which the spec checks
            negative_field=spec.negative_field,
            encoding=spec.encoding,
        )
        return NegativesSource(source=find_queries(queries, part), count=spec.negatives, label=spec.label_fields[0])
    if spec.source in LABEL_DATASETS:
        if spec.over == "tokens":
            raise UserError(f"{spec.source} labels texts, not words; set data.over to texts")
        if spec.has_groups or spec.label_pattern is not None:
            raise UserError(
                f"{spec.source} has no groups and headers; remove data.group_field, data.group_pattern and "
                "data.label_pattern"
            )
        problem_type = LABEL_DATASETS[str(spec.source)].problem_type
        if spec.problem_type != problem_type:
            raise UserError(
                f"{spec.source} has {PROBLEM_DESCRIPTIONS[problem_type]}; set data.problem_type to {problem_type}"
            )
        return LABEL_DATASETS[str(spec.source)].open(part)
    file = LabelFile(
        path=find_example_file(spec.source, part, LABEL_DATASETS, "labeled texts"),
        text_field=spec.text_field,
        label_field=spec.label_field,
        label_pattern=spec.label_pattern,
        group_field=spec.group_field,
        group_pattern=spec.group_pattern,
        pair_field=spec.pair_field,
        over=spec.over,
        encoding=spec.encoding,
        problem_type=spec.problem_type,
        label_separator=spec.label_separator,
        label_fields=spec.label_fields,
        sequences=spec.sequences,
    )
    if not isinstance(spec.source, CustomDataset):
        return file
    if (spec.label_pattern, spec.group_pattern) != (None, None):
        raise UserError(f"{spec.source} has no headers; remove data.label_pattern and data.group_pattern")
    return DatasetLabels(dataset=spec.source, read=file.read_object)


def _python_docstrings(part: Side) -> LabelTexts:
    from tercet.data.datasets.docstrings import read_docstrings

    return read_docstrings(part)


def _docstring_lines(part: Side) -> LabelTexts:
    from tercet.data.datasets.docstring_code import read_docstring_lines

    return read_docstring_lines(part)


def _docstring_code(part: Side) -> LabelTexts:
    from tercet.data.datasets.docstring_code import read_docstring_code

    return read_docstring_code(part)


LABEL_DATASETS = {
    "python-docstrings": LabelDataset(
        description="docstrings of Python's standard library, labeled with their part of it: some 6,000 in 14 parts",
        origin=LIBRARY,
        open=_python_docstrings,
    ),
    "python-docstring-lines": LabelDataset(
        description="docstrings of the library's classes and functions, with log2 of their code lines: some 6,000",
        origin=LIBRARY,
        open=_docstring_lines,
        problem_type="regression",
    ),
    "python-docstring-code": LabelDataset(
        description="docstrings of the library's functions, with properties of their code: some 5,000, any of 7 labels",
        origin=LIBRARY,
        open=_docstring_code,
        problem_type="multi_label_classification",
    ),
}
