"""Datasets of docstrings of Python's standard library and properties of the documented code.

python-docstring-lines   a number: log2 of the number of lines of the class or function, without its docstring
python-docstring-code    any number of labels: arguments and statements of the function

Most docstrings do not state these properties directly. If equal docstrings belong to code with different properties,
they are left out.
"""

import ast
import math
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tercet.cache_dir import cache_dir
from tercet.data.datasets.docstrings import PARTS, drop_ambiguous, load_rows, parse_library, split_examples
from tercet.data.examples.labels import Example, LabelTexts

Function = ast.FunctionDef | ast.AsyncFunctionDef
LABEL_NODES: dict[str, type[ast.AST] | tuple[type[ast.AST], ...]] = {
    "branches": ast.If,
    "loops": (ast.For, ast.AsyncFor, ast.While),
    "raises": ast.Raise,
    "yields": (ast.Yield, ast.YieldFrom),
}


def read_docstring_lines(part: str) -> LabelTexts:
    """Return the docstrings of classes and functions in the part "train" or "validation", with log2 of their lines."""
    return LabelTexts(name="python-docstring-lines", items=_split_lines(str(cache_dir()))[part])


def read_docstring_code(part: str) -> LabelTexts:
    """Return the docstrings of functions in the part "train" or "validation", with the labels of their code."""
    return LabelTexts(name="python-docstring-code", items=_split_code(str(cache_dir()))[part])


@cache
def _split_lines(cache_folder: str) -> dict[str, tuple[Example, ...]]:
    rows = load_rows(Path(cache_folder), "lines.json", [PARTS, "lines"], read_lines_of_code)
    return split_examples([Example((text,), (number,)) for text, number in rows])


@cache
def _split_code(cache_folder: str) -> dict[str, tuple[Example, ...]]:
    rows = load_rows(Path(cache_folder), "code.json", [PARTS, "code"], read_code_labels)
    return split_examples([Example((text,), tuple(labels)) for text, labels in rows])


def read_lines_of_code(library: Path) -> list[tuple[str, str]]:
    """Return the docstrings of classes and functions in the folder `library`, sorted, with log2 of their code lines.

    The logarithms are text, rounded to four decimals. Equal docstrings with different numbers of lines are left out.
    """
    return drop_ambiguous(
        (text, repr(round(math.log2(_count_lines(node)), 4)))
        for _, node, text in parse_library(library)
        if not isinstance(node, ast.Module)
    )


def read_code_labels(library: Path) -> list[tuple[str, tuple[str, ...]]]:
    """Return the docstrings of functions in the folder `library`, sorted, with the labels of their code.

    Equal docstrings with different labels are left out.
    """
    return drop_ambiguous(
        (text, describe_function(node)) for _, node, text in parse_library(library) if isinstance(node, Function)
    )


def describe_function(node: Function) -> tuple[str, ...]:
    """Return the labels of a function, sorted.

    "arguments": it has arguments other than self and cls.
    "method": it has the argument self or cls.
    "returns": it returns something other than None.
    The other labels are those of `LABEL_NODES`, for statements and expressions in its body.
    """
    arguments = node.args
    all_arguments = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    names = {argument.arg for argument in all_arguments if argument is not None}
    labels = {"method"} if names & {"self", "cls"} else set[str]()
    if names - {"self", "cls"}:
        labels.add("arguments")
    for part in _iterate_body(node):
        labels |= {label for label, kind in LABEL_NODES.items() if isinstance(part, kind)}
        if isinstance(part, ast.Return) and not (
            part.value is None or (isinstance(part.value, ast.Constant) and part.value.value is None)
        ):
            labels.add("returns")
    return tuple(sorted(labels))


def _iterate_body(node: Function) -> Iterator[ast.AST]:
    """Yield all nodes of a function's body, except those of nested functions and classes."""
    pending: list[ast.AST] = [*node.body]
    while pending:
        part = pending.pop()
        yield part
        if not isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            pending += ast.iter_child_nodes(part)


def _count_lines(node: ast.ClassDef | Function) -> int:
    docstring = node.body[0]
    assert node.end_lineno is not None
    assert docstring.end_lineno is not None
    return node.end_lineno - node.lineno - (docstring.end_lineno - docstring.lineno) or 1
