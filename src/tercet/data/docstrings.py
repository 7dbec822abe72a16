"""Docstrings of Python's standard library and the part of it that they stand in: labelled texts without a download.

They are read from the source files of the running Python, of which nothing is imported. What names the part within a
text is left as it is. IDLE is an application, and tests are not documentation, so neither is read.
"""

import ast
import json
import sys
import sysconfig
import tokenize
import warnings
from array import array
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from tercet.cache_dir import cache_dir
from tercet.config import UserError
from tercet.data.cache import create_atomically, digest, is_complete, report_disk_errors, write_meta
from tercet.data.labels import Example, LabelledTexts
from tercet.data.splitting import draw_validation, hash_text

LEAST_WORDS = 3  # below, as in "Return repr(self)." cut short, there is nothing to tell parts apart by
VALIDATION = 1000  # texts at most, and a tenth
SKIPPED = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
FORMAT = 1

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


def read_docstrings(part: str) -> LabelledTexts:
    """The docstrings for "train" or "validation".

    Raises:
        UserError: where Python came without the source files of its library.
    """
    return LabelledTexts(name="python-docstrings", items=_split(str(cache_dir()))[part])


@cache
def _split(cache_folder: str) -> dict[str, tuple[Example, ...]]:
    examples = _load_examples(Path(cache_folder))
    hashes = array("Q", (hash_text(example.text) for example in examples))
    drawn = draw_validation(hashes, VALIDATION, "the library has one docstring alone")
    held_out = [hash_text(example.text) in drawn for example in examples]
    return {
        part: tuple(
            example
            for example, is_held_out in zip(examples, held_out, strict=True)
            if is_held_out == (part == "validation")
        )
        for part in ("train", "validation")
    }


def _load_examples(cache: Path) -> list[Example]:
    """All examples, kept on disk: reading the library takes some seconds."""
    library = sysconfig.get_path("stdlib")
    folder = cache / "docstrings" / digest(FORMAT, sys.version, library, PARTS)[:32]
    path = folder / "docstrings.json"
    if not is_complete(folder):
        docstrings = read_library(Path(library))
        with report_disk_errors(), create_atomically(folder) as new:
            (new / path.name).write_text(json.dumps(docstrings, ensure_ascii=False), encoding="utf-8")
            write_meta(new, {"python": sys.version, "library": library})
    try:
        return [Example((text,), (label,)) for text, label in json.loads(path.read_text(encoding="utf-8"))]
    except (OSError, ValueError, TypeError, RecursionError):
        raise UserError(f"{path} is not what Tercet wrote there; remove {folder} to make it anew") from None


def read_library(library: Path) -> list[tuple[str, str]]:
    """Each docstring below the folder `library` once, and its part, sorted; one that two parts have is left out."""
    labels = dict[str, set[str]]()
    for label, modules in PARTS.items():
        for module in modules.split():
            for path in sorted([library / f"{module}.py", *(library / module).rglob("*.py")]):
                for text in _read_file(path, library):
                    labels.setdefault(text, set()).add(label)
    if not labels:
        raise UserError(
            f"there is no source file of Python's library in {library}; use a Python that brings them, "
            "such as Debian's or python.org's"
        )
    return sorted((text, min(sections)) for text, sections in labels.items() if len(sections) == 1)


def _read_file(path: Path, library: Path) -> Iterator[str]:
    if not path.is_file() or SKIPPED & set(path.relative_to(library).parts):
        return
    with tokenize.open(path) as file, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the library's own escapes are is not ours to say
        tree = ast.parse(file.read())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            text = (ast.get_docstring(node) or "").strip()
            if len(text.split()) >= LEAST_WORDS:
                yield text
