"""Named sets of labelled texts."""

from collections.abc import Callable
from dataclasses import dataclass

from tercet.config import UserError, suggest
from tercet.data.datasets.text_datasets import check_moved
from tercet.data.examples.labels import LabelFile, LabelSource, LabelTexts
from tercet.data.sources.files import find_path
from tercet.data.specs import LabelsSpec, Side
from tercet.spec import ProblemType

LIBRARY = "read from the running Python's source files, so it differs between versions; PSF licence"
PROBLEM_DESCRIPTIONS: dict[ProblemType, str] = {
    "single_label_classification": "a label a text",
    "multi_label_classification": "any number of labels a text",
    "regression": "a number a text",
}


@dataclass(frozen=True, kw_only=True)
class LabelDataset:
    """A set of labelled texts that can be asked for by name.

    Attributes:
        open: the texts of a part.
        problem_type: whether a text has one label, several, or a number.
    """

    description: str
    origin: str
    open: Callable[[Side], LabelSource]
    problem_type: ProblemType = "single_label_classification"


def find_labels(spec: LabelsSpec, part: Side = "train") -> LabelSource:
    """The named set that `spec.source` is, else the file at its path (`./python-docstrings` is always a path).

    Raises:
        UserError: where it is neither, or a file is asked for another part than "train".
    """
    if spec.source in LABEL_DATASETS:
        if spec.over == "tokens":
            raise UserError(f"{spec.source} has a label a text; set data.over to texts")
        problem_type = LABEL_DATASETS[spec.source].problem_type
        if spec.problem_type != problem_type:
            raise UserError(
                f"{spec.source} has {PROBLEM_DESCRIPTIONS[problem_type]}; set data.problem_type to {problem_type}"
            )
        return LABEL_DATASETS[spec.source].open(part)
    if part != "train":
        raise UserError(f"{spec.source} has no {part} part of its own; the sets that do: {', '.join(LABEL_DATASETS)}")
    path = find_path(spec.source)
    if path.name == spec.source and not path.suffix and not path.exists():
        check_moved(spec.source)
        guess = suggest(spec.source, LABEL_DATASETS)
        raise UserError(f"no set of labelled texts or file is called {spec.source!r}{guess}")
    return LabelFile(
        path=path,
        text_field=spec.text_field,
        label_field=spec.label_field,
        over=spec.over,
        encoding=spec.encoding,
        problem_type=spec.problem_type,
        label_separator=spec.label_separator,
        label_fields=spec.label_fields,
    )


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
        description="docstrings of Python's standard library and the part of it that they stand in: some 6,000 in 14",
        origin=LIBRARY,
        open=_python_docstrings,
    ),
    "python-docstring-lines": LabelDataset(
        description="the same of classes and functions, and the log2 of their lines of code: some 6,000 numbers",
        origin=LIBRARY,
        open=_docstring_lines,
        problem_type="regression",
    ),
    "python-docstring-code": LabelDataset(
        description="the same of functions, and what each takes and does: some 5,000 with any of 7 labels",
        origin=LIBRARY,
        open=_docstring_code,
        problem_type="multi_label_classification",
    ),
}
