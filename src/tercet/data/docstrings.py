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

from tercet.config import UserError
from tercet.data.cache import appearing, cache_folder, digest, disk_errors_told, seal, whole
from tercet.data.labels import Example, LabelledTexts
from tercet.data.splitting import draw, place

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


def docstrings(part: str) -> LabelledTexts:
    """The docstrings for "train" or "validation".

    Raises:
        UserError: where Python came without the source files of its library.
    """
    return LabelledTexts(name="python-docstrings", items=_divided(str(cache_folder()))[part])


@cache
def _divided(kept_in: str) -> dict[str, tuple[Example, ...]]:
    examples = _kept(Path(kept_in))
    places = array("Q", (place(example.text) for example in examples))
    drawn = draw(places, VALIDATION, "the library has one docstring alone")
    held_out = [place(example.text) in drawn for example in examples]
    return {
        part: tuple(example for example, held in zip(examples, held_out, strict=True) if held == (part == "validation"))
        for part in ("train", "validation")
    }


def _kept(kept_in: Path) -> list[Example]:
    """All examples, kept on disk: reading the library takes some seconds."""
    library = sysconfig.get_path("stdlib")
    folder = kept_in / "docstrings" / digest(FORMAT, sys.version, library, PARTS)[:32]
    path = folder / "docstrings.json"
    if not whole(folder):
        found = read_library(Path(library))
        with disk_errors_told(), appearing(folder) as new:
            (new / path.name).write_text(json.dumps(found, ensure_ascii=False), encoding="utf-8")
            seal(new, {"python": sys.version, "library": library})
    return [Example((text,), (label,)) for text, label in json.loads(path.read_text(encoding="utf-8"))]


def read_library(library: Path) -> list[tuple[str, str]]:
    """Each docstring below the folder `library` once, and its part, sorted; one that two parts have is left out."""
    labels = dict[str, set[str]]()
    for label, modules in PARTS.items():
        for module in modules.split():
            for path in sorted([library / f"{module}.py", *(library / module).rglob("*.py")]):
                for text in _texts(path, library):
                    labels.setdefault(text, set()).add(label)
    if not labels:
        raise UserError(
            f"there is no source file of Python's library in {library}; use a Python that brings them, "
            "such as Debian's or python.org's"
        )
    return sorted((text, min(known)) for text, known in labels.items() if len(known) == 1)


def _texts(path: Path, library: Path) -> Iterator[str]:
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
