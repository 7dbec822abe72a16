"""Dataset of docstrings of Python's standard library, labeled with the part of the library.

Docstrings are read from the source files of the running Python, without importing them. Words that name the part are
not removed. IDLE is skipped because it is an application, and tests because their docstrings document no library.
"""

import ast
import json
import sys
import sysconfig
import tokenize
import warnings
from array import array
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.cache import create_atomically, digest, is_complete, report_disk_errors, write_meta
from tercet.data.examples.example_source import ExampleType
from tercet.data.examples.labels import Example, LabelTexts
from tercet.data.text_hashes import draw_validation, hash_text

MIN_WORDS = 3  # shorter docstrings, such as "Return repr(self).", do not distinguish parts
MAX_VALIDATION = 1000  # maximum number of validation texts, which are also at most a tenth of all
SKIPPED_FOLDERS = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
FORMAT = 1
DocumentedNode = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
Label = TypeVar("Label", str, tuple[str, ...])

PARTS = {
    "asyncio": "asyncio asyncore asynchat",
    "concurrency": "multiprocessing concurrent threading _threading_local subprocess queue selectors sched",
    "dates": "datetime _pydatetime calendar _strptime zoneinfo",
    "files": "tarfile zipfile gzip bz2 lzma _compression shutil pathlib os ntpath posixpath genericpath tempfile _pyio "
    "glob fnmatch fileinput filecmp stat linecache shelve dbm sqlite3",
    "internet": "http urllib wsgiref xmlrpc ftplib socketserver socket ssl cgi telnetlib webbrowser ipaddress netrc",
    "language": "inspect typing enum ast dis symtable pydoc types dataclasses functools abc _py_abc collections "
    "_collections_abc operator contextlib weakref _weakrefset copy copyreg pickle pickletools tokenize token keyword "
    "opcode pyclbr code codeop annotationlib",
    "logging": "logging",
    "mail": "email mailbox smtplib smtpd imaplib poplib nntplib mimetypes mailcap quopri base64",
    "mathematics": "_pydecimal decimal fractions numbers statistics random heapq bisect",
    "packages": "importlib pkgutil zipimport imp runpy modulefinder distutils venv ensurepip sysconfig site zipapp",
    "screen": "tkinter turtle turtledemo curses",
    "testing": "unittest doctest pdb bdb trace traceback tracemalloc timeit profile cProfile pstats cgitb",
    "text": "encodings codecs difflib textwrap re string locale gettext json csv configparser argparse optparse cmd "
    "shlex pprint stringprep tomllib",
    "xml": "xml html _markupbase plistlib",
}


def read_docstrings(part: str) -> LabelTexts:
    """Return the docstrings of the part "train" or "validation".

    Raises:
        UserError: If this Python has no source files of its library.
    """
    return LabelTexts(name="python-docstrings", items=_split(str(cache_dir()))[part])


@cache
def _split(cache_folder: str) -> dict[str, tuple[Example, ...]]:
    rows = load_rows(Path(cache_folder), "docstrings.json", PARTS, read_library)
    return split_examples([Example((text,), (label,)) for text, label in rows])


def split_examples(examples: list[ExampleType]) -> dict[str, tuple[ExampleType, ...]]:
    """Return the examples of each part; the validation part is drawn by a hash of their identity."""
    hashes = array("Q", (hash_text(example.identity) for example in examples))
    validation_hashes = draw_validation(
        hashes, MAX_VALIDATION, "the library has only one docstring; use a Python that includes its source files"
    )
    held_out = [hash_text(example.identity) in validation_hashes for example in examples]
    return {
        part: tuple(
            example
            for example, is_held_out in zip(examples, held_out, strict=True)
            if is_held_out == (part == "validation")
        )
        for part in ("train", "validation")
    }


def load_rows(cache: Path, name: str, key: object, read: Callable[[Path], list[tuple[str, Any]]]) -> list[Any]:
    """Return the texts and values that `read` finds in Python's standard library, from the cache if possible.

    Args:
        cache: Cache folder.
        name: Name of the cached file.
        key: Everything that the result depends on, except for the library.
        read: Function that returns the texts and values in the library's folder.

    Raises:
        UserError: If the cached file is invalid, or the cache cannot be written.
    """
    library = sysconfig.get_path("stdlib")
    folder = cache / "docstrings" / digest(FORMAT, sys.version, library, key)[:32]
    path = folder / name
    if not is_complete(folder):
        rows = read(Path(library))
        with report_disk_errors(), create_atomically(folder) as new:
            (new / path.name).write_text(json.dumps(rows, ensure_ascii=False), encoding="utf-8")
            write_meta(new, {"python": sys.version, "library": library})
    try:
        return [(text, value) for text, value in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, RecursionError):
        raise UserError(f"{path} was not written by Tercet; remove {folder} to create it again") from None


def read_library(library: Path) -> list[tuple[str, str]]:
    """Return the distinct docstrings in `library` and their parts, sorted, without those of several parts."""
    return drop_ambiguous((text, part) for part, _, text in parse_library(library))


def drop_ambiguous(labeled_texts: Iterable[tuple[str, Label]]) -> list[tuple[str, Label]]:
    """Return the distinct texts with their labels, sorted, without texts that have different labels."""
    labels = dict[str, set[Label]]()
    for text, label in labeled_texts:
        labels.setdefault(text, set()).add(label)
    return sorted((text, next(iter(text_labels))) for text, text_labels in labels.items() if len(text_labels) == 1)


def parse_library(library: Path) -> Iterator[tuple[str, DocumentedNode, str]]:
    """Yield the part, syntax tree and docstring of each module, class and function of `PARTS` in the folder `library`.

    Those without a docstring of at least `MIN_WORDS` words are skipped.

    Raises:
        UserError: If there are no such docstrings.
    """
    empty = True
    for part, modules in PARTS.items():
        for module in modules.split():
            for path in sorted([library / f"{module}.py", *(library / module).rglob("*.py")]):
                for node, text in _parse_file(path, library):
                    empty = False
                    yield part, node, text
    if empty:
        raise UserError(
            f"no source files of Python's library in {library}; use a Python that includes them, "
            "such as Debian's or python.org's"
        )


def _parse_file(path: Path, library: Path) -> Iterator[tuple[DocumentedNode, str]]:
    if not path.is_file() or SKIPPED_FOLDERS & set(path.relative_to(library).parts):
        return
    with tokenize.open(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings about escapes in the library's source are not relevant
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, DocumentedNode):
            text = (ast.get_docstring(node) or "").strip()
            if len(text.split()) >= MIN_WORDS:
                yield node, text
