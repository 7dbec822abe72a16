"""List the facts of an old commit that no file contains now: `python tests/english/facts.py COMMIT [PATH ...]`.

Facts are numbers with their units, code spans, flags, exceptions, citations and links. A rewritten text keeps them.
A fact that is gone needs a reason: it was wrong, it was repeated, or it described something that no longer exists.
Exit code 1 if facts are gone.
"""

import argparse
import re
import subprocess
import sys

from lint import ROOT, SUFFIXES

FACT = re.compile(
    r"(?P<code>`[^`\n]+`)"
    r"|(?P<flag>(?<![\w-])--[a-z][\w-]+)"
    r"|(?P<citation>\b[A-Z]\w+(?: et al\.| and [A-Z]\w+)?,? \(?(?:19|20)\d\d\b|arXiv[: ]\d+\.\d+|https?://[^\s)\"'`>]+)"
    r"|(?P<exception>\b[A-Z]\w*(?:Error|Warning)\b)"
    r"|(?P<number>(?<![\w.])\d[\d,.]*(?:e-?\d+)? ?%?"
    r"(?: ?(?:ms|s|GB|MB|KB|KiB|MiB|GiB|tokens|steps|nats|bits|bytes|x)\b)?)"
)
SMALL = re.compile(r"^\d{1,2}$")  # small numbers are in any file


def facts(text: str) -> set[tuple[str, str]]:
    """Return the facts of a text, each with its kind."""
    found = set[tuple[str, str]]()
    for match in FACT.finditer(text):
        value = " ".join(match[0].split()).strip(" .,")
        if match.lastgroup and "${" not in value and not SMALL.match(value):  # ${: a template of JavaScript
            found.add((match.lastgroup, value))
    return found


def run_git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def old_files(commit: str, paths: list[str]) -> dict[str, str]:
    """Return the texts of a commit's files, by path."""
    names = run_git("ls-tree", "-r", "--name-only", commit, "--", *paths).split("\n")
    return {name: run_git("show", f"{commit}:{name}") for name in names if name.endswith(SUFFIXES)}


def current_text() -> str:
    """Return the text of all files that git tracks, as one line."""
    names = run_git("ls-files").split("\n")
    files = [ROOT / name for name in names if (ROOT / name).suffix in SUFFIXES]
    return " ".join(" ".join(file.read_text(encoding="utf-8").split()) for file in files)


def main() -> int:
    parser = argparse.ArgumentParser(description="List the facts of an old commit that no file contains now.")
    parser.add_argument("commit", help="the old commit")
    parser.add_argument("paths", nargs="*", default=["."], help="files and folders of the old commit (default: all)")
    args = parser.parse_args()
    present = current_text()
    plain = present.replace("`", "")
    count = 0
    for name, text in old_files(args.commit, args.paths).items():
        for kind, fact in sorted(facts(text)):
            if fact not in present and fact.strip("`") not in plain:
                count += 1
                line = next((n for n, row in enumerate(text.split("\n"), 1) if fact.split()[0] in row), 0)
                print(f"{name}:{line}: {kind}: {fact}")
    print(f"{count} facts are in no file now", file=sys.stderr)
    return int(count > 0)


if __name__ == "__main__":
    sys.exit(main())
