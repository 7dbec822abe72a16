"""Dataset for code search: the first line of a function's docstring as the query, and its code as the document.

The code is that of the function without its docstring and decorators, with comments removed. Its name stays, as in
CodeSearchNet (Husain et al. 2019).
"""

import ast
from functools import cache
from pathlib import Path

from tercet.cache_dir import cache_dir
from tercet.data.datasets.docstring_code import Function
from tercet.data.datasets.docstrings import MIN_WORDS, PARTS, load_rows, parse_library, split_examples
from tercet.data.examples.queries import QueryPair, QueryTexts


def read_docstring_search(part: str) -> QueryTexts:
    """Return the pairs of the part "train" or "validation".

    Raises:
        UserError: If this Python has no source files of its library.
    """
    return QueryTexts(name="python-docstring-search", items=_split(str(cache_dir()))[part])


@cache
def _split(cache_folder: str) -> dict[str, tuple[QueryPair, ...]]:
    rows = load_rows(Path(cache_folder), "search.json", [PARTS, "search"], read_functions)
    return split_examples([QueryPair(query, document) for query, document in rows])


def read_functions(library: Path) -> list[tuple[str, str]]:
    """Return the distinct pairs of a query and the code of a function in the folder `library`, sorted.

    Docstrings whose first line has fewer than `MIN_WORDS` words are left out, and functions without statements.
    """
    pairs = set[tuple[str, str]]()
    for _, node, text in parse_library(library):
        query = text.splitlines()[0].strip()
        if isinstance(node, Function) and len(query.split()) >= MIN_WORDS and len(node.body) > 1:
            node.body, node.decorator_list = node.body[1:], []
            pairs.add((query, ast.unparse(node)))
    return sorted(pairs)
