"""Count phrases that make technical English hard to read: `python tests/english/lint.py [--show] [PATH ...]`.

`markers.toml` lists the phrases. The rate of each kind of text is reported per 1,000 words. A test limits it.
"""

import argparse
import ast
import re
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DIRECTIVES = ("#!", "# fmt", "# type", "# pyright", "# noqa", "# pragma")
# A string or a comment; `tokenize` would take a third of the time of a check.
PYTHON_TOKEN = re.compile(
    r"\"\"\"(?:[^\\]|\\.)*?\"\"\"|'''(?:[^\\]|\\.)*?'''|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'|#[^\n]*", re.DOTALL
)
C_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
JS_STRING = re.compile(r"\"(?:[^\"\\\n]|\\.)*\"|`(?:[^`\\]|\\.)*`")
YAML_COMMENT = re.compile(r"(?:^|\s)#[^\n]*")
FENCE = re.compile(r"```.*?```", re.DOTALL)
SUFFIXES = (".py", ".md", ".js", ".css", ".h", ".cpp", ".yaml", ".yml")
Docstring = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Text:
    """A piece of prose: its kind, its file and line, and its words."""

    kind: str
    path: Path
    line: int
    words: str


@dataclass(frozen=True)
class Marker:
    """A phrase to avoid, and what to write instead."""

    what: str
    instead: str
    pattern: re.Pattern[str]
    docstrings: bool = False


def read_markers() -> list[Marker]:
    entries = tomllib.loads((Path(__file__).parent / "markers.toml").read_text(encoding="utf-8"))["marker"]
    flags = re.IGNORECASE | re.MULTILINE
    return [Marker(**entry | {"pattern": re.compile(entry["pattern"], flags)}) for entry in entries]


def python_texts(path: Path) -> Iterator[Text]:
    """Yield docstrings, comments, and strings that contain a space."""
    source = path.read_text(encoding="utf-8")
    nodes = list(ast.walk(ast.parse(source)))
    skipped = set[int]()
    for node in nodes:
        if isinstance(node, Docstring) and (docstring := ast.get_docstring(node)) is not None:
            skipped.add(id(node.body[0].value))  # type: ignore[attr-defined]
            yield Text("docstrings", path, node.body[0].lineno, docstring)
        elif isinstance(node, ast.JoinedStr):
            skipped |= {id(part) for part in node.values}
            parts = [part.value if isinstance(part, ast.Constant) else " x " for part in node.values]
            yield Text("messages", path, node.lineno, "".join(map(str, parts)))
    for node in nodes:
        value = node.value if isinstance(node, ast.Constant) and id(node) not in skipped else None
        if isinstance(value, str) and " " in value.strip():
            yield Text("messages", path, getattr(node, "lineno", 1), value)
    for match in PYTHON_TOKEN.finditer(source):
        if match[0].startswith("#") and not match[0].startswith(DIRECTIVES):
            yield Text("comments", path, source.count("\n", 0, match.start()) + 1, match[0][1:])


def markdown_text(path: Path) -> Text:
    """Return the prose of a page, with the comments of its code blocks and without code."""

    def keep_comments(block: re.Match[str]) -> str:
        return "\n".join(line.partition("# ")[2] for line in block[0].splitlines())

    prose = FENCE.sub(keep_comments, path.read_text(encoding="utf-8"))
    return Text(
        "changelog" if path.stem == "CHANGELOG" else "docs", path, 1, re.sub(r"`[^`\n]*`|\]\([^)\n]*\)", " x ", prose)
    )


def matched_texts(path: Path, pattern: re.Pattern[str], kind: str) -> Iterator[Text]:
    source = path.read_text(encoding="utf-8")
    for match in pattern.finditer(source):
        if " " in match[0].strip('/*#`" \n'):
            yield Text(kind, path, source.count("\n", 0, match.start()) + 1, match[0].strip('/*#`" \n'))


def texts(path: Path) -> Iterator[Text]:
    """Yield all prose of a file."""
    match path.suffix:
        case ".py":
            yield from python_texts(path)
        case ".md":
            yield markdown_text(path)
        case ".js":
            yield from matched_texts(path, C_COMMENT, "JavaScript")
            yield from matched_texts(path, JS_STRING, "JavaScript")
        case ".css" | ".h" | ".cpp":
            yield from matched_texts(path, C_COMMENT, "CSS" if path.suffix == ".css" else "C++")
        case _:
            yield from matched_texts(path, YAML_COMMENT, "YAML")


def files(paths: Sequence[Path]) -> list[Path]:
    """Return the files at or below the paths that contain prose."""
    found = {file for path in paths for file in ([path] if path.is_file() else path.rglob("*"))}
    return sorted(file for file in found if file.suffix in SUFFIXES)


def hits(text: Text, markers: Sequence[Marker]) -> Iterator[tuple[Marker, str]]:
    """Yield each marker that a text contains, with the words around it. Wrapped lines are joined first."""
    joined = re.sub(r"(?<=\S)[ \t]*\n[ \t]*(?=[^\s*\-|#>\d])", " ", text.words)
    for marker in markers:
        if not marker.docstrings or text.kind == "docstrings":
            for match in marker.pattern.finditer(joined):
                yield marker, " ".join(joined[max(0, match.start() - 50) : match.end() + 50].split())


def rates(paths: Sequence[Path], *, show: bool = False) -> dict[str, float]:
    """Return the number of markers per 1,000 words for each kind of text below the paths."""
    markers, words, counts = read_markers(), Counter[str](), defaultdict[str, int](int)
    for file in files(paths):
        for text in texts(file):
            words[text.kind] += len(text.words.split())
            for marker, context in hits(text, markers):
                counts[text.kind] += 1
                if show:
                    print(f"{text.path}:{text.line}: {marker.what} (write: {marker.instead}): ...{context}...")
    return {kind: 1000 * counts[kind] / words[kind] for kind in sorted(words) if words[kind]}


def main() -> int:
    parser = argparse.ArgumentParser(description="Count phrases that make technical English hard to read.")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT / "src"], help="files and folders (default: src)")
    parser.add_argument("--show", action="store_true", help="print each phrase with its place")
    args = parser.parse_args()
    if missing := [str(path) for path in args.paths if not path.exists()]:
        print(f"not found: {', '.join(missing)}", file=sys.stderr)
        return 2
    for kind, rate in rates(args.paths, show=args.show).items():
        print(f"{kind:12} {rate:5.1f} per 1,000 words")
    return 0


if __name__ == "__main__":
    sys.exit(main())
