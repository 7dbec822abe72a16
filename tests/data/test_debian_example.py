"""The example on Debian's packages: each package once, and no held-out text in the text for pretraining."""

import json
import os
import runpy
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "debian" / "packages.py"
debian = SimpleNamespace(**runpy.run_path(str(EXAMPLE)))


def test_descriptions_are_put_together() -> None:
    read_lines = [
        "a synopsis",
        "Some text that",
        "runs on.",
        ".",
        "Another:",
        "  * a point",
        "  * one more",
        "and the end",
    ]
    assert debian.join_description(read_lines) == (
        "a synopsis\nSome text that runs on.\nAnother:\n* a point\n* one more\nand the end"
    )
    records = list(debian.parse_stanzas("\nA: b: c\nB:\n x\n  y\n\n\nA: d\n".splitlines()))
    assert records == [{"A": ["b: c"], "B": ["", "x", " y"]}, {"A": ["d"]}]


def index(n: int = 400) -> tuple[str, str]:
    """Return an index as apt provides it: sources of two packages each, in sections of unequal size."""
    packages, translations = list[str](), list[str]()
    for number in range(n):
        section = "libs" if number < 0.8 * n else f"contrib/section{number % 14}"
        for uncompressed_suffix in ("", "-dev"):
            name = f"p{number}{uncompressed_suffix}"
            source = f"Source: p{number} (1.0)\n" if uncompressed_suffix else ""
            packages.append(f"Package: {name}\n{source}Section: {section}\nDescription-md5: m{name}\nTag: a,\n b\n")
            description = "same text" if number in (1, n - 1) else f"what {name} does\n .\n  * well"
            translations.append(
                f"Package: {name}\nDescription-md5: m{name}\nDescription-en: {name}'s\n {description}\n"
            )
    packages.append("Package: bare\nSection: libs\nDescription: no more than this\n")
    return "\n".join(packages), "\n".join(translations)


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a fake apt that records its arguments."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in zip(("Packages", "Translations"), index(), strict=True):
        (folder / name).write_text(text)
    scripts = {
        "apt-get": f'echo "$@" >> {folder}/asked\ntest -e {folder}/broken && echo "E: no network" >&2 && exit 100\n'
        f'test "$3" = indextargets && echo {folder}/${{6#Created-By: }}\nexit 0\n',
        "apt-helper": 'cat "$2"\n',
    }
    for name, script in scripts.items():
        (folder / name).write_text("#!/bin/sh\n" + script)
        (folder / name).chmod(stat.S_IRWXU)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_files_from_an_index(apt: Path, tmp_path: Path) -> None:
    folder = tmp_path / "files"
    packages = sorted(debian.fetch_packages(tmp_path / "private"))
    debian.write_files(packages, folder)
    train, held_out = rows(folder / "sections.jsonl"), rows(folder / "sections-held-out.jsonl")
    all_rows = train + held_out
    counts = Counter(row["label"] for row in all_rows)
    assert len(counts) == 12
    assert 0.34 < counts["libs"] / len(all_rows) <= 0.35
    assert 0 < len(held_out) <= len(all_rows) / 10

    def sources(selected_rows: list[dict[str, str]]) -> set[str]:
        return {row["text"].split("'")[0].removesuffix("-dev") for row in selected_rows}

    assert not sources(held_out) & sources(train)
    descriptions = rows(folder / "descriptions.jsonl")
    assert "p7's\nwhat p7 does\n* well" in {row["text"] for row in all_rows + descriptions}
    assert len(descriptions) == len({row["text"] for row in descriptions})
    assert not sources(held_out) & sources(descriptions)
    assert len(sources(descriptions)) + len(sources(held_out)) == 400
    apt_calls = (apt / "asked").read_text().splitlines()
    assert apt_calls[0] == f"-c {tmp_path}/private/apt.conf -qq update"
    assert len(apt_calls) == 3


def test_a_text_with_two_sections_has_no_label() -> None:
    fields = [["a", "s1", "x", "one"], ["b", "s2", "y", "one"], ["c", "s3", "x", "two"], ["d", "s4", "x", "two"]]
    fields += [["e", "s5", "y", "three"], ["f", "s6", "y", "four"]]
    names = [package.name for package in debian.select_packages(debian.Package(*values) for values in fields)]
    assert not {"a", "b", "d"} & set(names)


def test_without_network_the_program_ends_in_one_line(apt: Path, tmp_path: Path) -> None:
    (apt / "broken").touch()
    result = subprocess.run([sys.executable, EXAMPLE, tmp_path / "files"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr == "cannot fetch Debian's indices: E: no network; check the network and apt's sources\n"
    assert not (tmp_path / "files").exists()
