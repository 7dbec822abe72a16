"""The named sets are what they say: enough texts, nothing on both sides, and nothing that leaks into pretraining."""

import json
import os
import shutil
import stat
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tercet.cli.main import main
from tercet.config import UserError
from tercet.data import DATASETS, LABEL_DATASETS, LabelsSpec, examples_of
from tercet.data.datasets import debian, docstrings
from tercet.data.datasets.text_datasets import find_documents
from tercet.data.sources.documents import DocumentTexts


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    for name in ("TERCET_DATA", "TERCET_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    docstrings._split.cache_clear()
    return tmp_path / "cache"


def test_every_set_says_what_it_is() -> None:
    assert sorted(LABEL_DATASETS) == [
        "debian-sections",
        "python-docstring-code",
        "python-docstring-lines",
        "python-docstrings",
    ]
    assert all(one.description and one.origin for one in LABEL_DATASETS.values())


def test_docstrings_of_a_small_library(tmp_path: Path) -> None:
    files = {
        "logging/__init__.py": '"""Logging of one thing."""\nclass A:\n  """Logging\n    of two things."""\n',
        "logging/handlers.py": 'async def f():\n  def g():\n    "Shared by both parts."\n',
        "logging/tests/test_a.py": '"""Never read by anyone."""',
        "idlelib/a.py": '"""An application, not library."""',
        "json.py": '# coding: latin-1\n"""J\xe9son of\n\n    many things. \\d"""\ndef f():\n  "Shared by both parts."',
        "csv.py": 'raise ImportError\ndef f():\n  "Two words"\ndef g():\n  "Logging of one thing."\n  "not one"\n',
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(text.encode("latin-1"))
    assert docstrings.read_library(tmp_path) == [
        ("Jéson of\n\nmany things. \\d", "text"),
        ("Logging\nof two things.", "logging"),
    ]
    with pytest.raises(UserError, match=r"no source file of Python's library in .*use a Python that brings them"):
        docstrings.read_library(tmp_path / "none")


def test_no_module_is_in_two_parts() -> None:
    modules = [module for modules in docstrings.PARTS.values() for module in modules.split()]
    assert len(modules) == len(set(modules))
    assert list(docstrings.PARTS) == sorted(docstrings.PARTS)


@pytest.mark.slow
def test_docstrings_of_this_python(monkeypatch: pytest.MonkeyPatch, kept: Path) -> None:
    loaded = set(sys.modules)
    train, validation = (examples_of(LabelsSpec(source="python-docstrings"), part) for part in ("train", "validation"))
    assert not {name for name in set(sys.modules) - loaded if name.startswith(("tkinter", "distutils", "turtle"))}
    every = train + validation
    assert len(every) >= 4000
    assert len(validation) == len(every) // 10
    assert len({one.text for one in every}) == len(every)
    counts = Counter(one.labels[0] for one in every)
    assert set(counts) == set(docstrings.PARTS)
    assert max(counts.values()) <= 0.35 * len(every)
    assert [one.text for one in train] == sorted(one.text for one in train)
    assert {one.labels[0] for one in validation} == set(counts)
    docstrings._split.cache_clear()
    monkeypatch.setattr(docstrings, "read_library", None)  # the second time nothing is read
    assert examples_of(LabelsSpec(source="python-docstrings"), "train") == train


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
    """What apt would give: sources of two packages each, in sections of unequal size."""
    packages, translations = list[str](), list[str]()
    for number in range(n):
        section = "libs" if number < 0.8 * n else f"contrib/section{number % 14}"
        for uncompressed_suffix in ("", "-dev"):
            name = f"p{number}{uncompressed_suffix}"
            source = f"Source: p{number} (1.0)\n" if uncompressed_suffix else ""
            packages.append(f"Package: {name}\n{source}Section: {section}\nDescription-md5: m{name}\nTag: a,\n b\n")
            told = "same text" if number in (1, n - 1) else f"what {name} does\n .\n  * well"
            translations.append(f"Package: {name}\nDescription-md5: m{name}\nDescription-en: {name}'s\n {told}\n")
    packages.append("Package: bare\nSection: libs\nDescription: no more than this\n")
    return "\n".join(packages), "\n".join(translations)


@pytest.fixture
def apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for apt, which notes what it was asked."""
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
    monkeypatch.setattr(debian, "VALIDATION", 40)
    return folder


def test_sections_from_an_index(apt: Path, kept: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = LabelsSpec(source="debian-sections")
    train, validation = examples_of(spec, "train"), examples_of(spec, "validation")
    every = train + validation
    counts = Counter(one.labels[0] for one in every)
    assert len(counts) == 12
    assert 0.34 < counts["libs"] / len(every) <= 0.35
    assert 0 < len(validation) <= 40

    def sources(texts: list[str]) -> set[str]:
        return {text.split("'")[0].removesuffix("-dev") for text in texts}

    held = sources([one.text for one in validation])
    assert not held & sources([one.text for one in train])
    assert "p7's\nwhat p7 does\n* well" in {one.text for one in every} | set(texts_of("debian-descriptions"))
    pretraining = texts_of("debian-descriptions")
    assert len(pretraining) == len(set(pretraining))
    assert not held & sources(pretraining)
    assert len(sources(pretraining)) + len(held) == 400, "and all others are there"
    asked = (apt / "asked").read_text().splitlines()
    assert len(asked) == 3, "fetched once"
    settings = asked[0].split()[1]
    assert asked[0] == f"-c {settings} -qq update"
    assert not Path(settings).exists(), "and nothing left behind"
    with monkeypatch.context() as patch:  # another machine gets it as a file
        (kept.parent / "data" / "debian").mkdir(parents=True)
        shutil.copy(kept / "debian" / debian.FILE, kept.parent / "data" / "debian")
        patch.setenv("TERCET_CACHE", str(kept.parent / "none"))
        patch.setenv("TERCET_DATA", str(kept.parent / "data"))
        assert examples_of(spec, "validation") == validation
    (kept / "debian" / debian.FILE).write_bytes(b"damaged")
    assert examples_of(spec, "train") == train, "damage is mended"


def texts_of(name: str) -> list[str]:
    source = find_documents(name)
    assert isinstance(source, DocumentTexts)
    return list(source.texts)


def test_a_text_with_two_sections_has_no_label(tmp_path: Path) -> None:
    rows = [["a", "s1", "x", "one"], ["b", "s2", "y", "one"], ["c", "s3", "x", "two"], ["d", "s4", "x", "two"]]
    rows += [["e", "s5", "y", "three"], ["f", "s6", "y", "four"]]
    path = tmp_path / debian.FILE
    with debian.gzip.open(path, "wt") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    names = [package.name for package in debian._select_packages(path, 0)]
    assert "a" not in names
    assert "b" not in names
    assert "d" not in names
    path.write_bytes(b"[]")
    with pytest.raises(UserError, match="is not a list of packages that Tercet wrote; remove it to fetch it again"):
        debian._read_packages(path, 1)


def test_without_apt_or_network_the_remedy_is_told(
    apt: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (apt / "broken").touch()
    remedy = r"copy debian/packages\.jsonl\.gz from the cache of a Debian machine that is, and set TERCET_DATA"
    with pytest.raises(UserError, match=rf"cannot fetch Debian's indices \(no network\); try again, or {remedy}"):
        find_documents("debian-descriptions")
    assert main(["data", "debian-sections"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    (apt / "broken").unlink()
    (apt / "Packages").rename(apt / "none")
    (apt / "apt-get").write_text("#!/bin/sh\nexit 0\n")
    with pytest.raises(UserError, match="apt has no index of translations; see that its sources name a Debian"):
        find_documents("debian-descriptions")
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    with pytest.raises(UserError, match=rf"not on this machine and downloads are switched off; {remedy}"):
        find_documents("debian-descriptions")
    monkeypatch.setenv("PATH", "")
    with pytest.raises(UserError, match=rf"need apt, and this machine has none; {remedy}"):
        find_documents("debian-descriptions")


@pytest.mark.exhaustive
def test_the_real_debian(kept: Path) -> None:
    if not shutil.which("apt-get") or not Path(debian.APT_HELPER).is_file():
        pytest.skip("there is no apt on this machine")
    before = subprocess.run(["apt-get", "indextargets"], capture_output=True, check=True).stdout
    try:
        train = examples_of(LabelsSpec(source="debian-sections"), "train")
    except UserError as error:
        pytest.skip(f"apt cannot fetch its indices: {error}")
    validation = examples_of(LabelsSpec(source="debian-sections"), "validation")
    every = train + validation
    counts = Counter(one.labels[0] for one in every)
    assert len(every) > 20_000
    assert 1500 < len(validation) <= 2000
    assert 8 <= len(counts) <= 12
    assert max(counts.values()) <= 0.35 * len(every)
    assert not {one.text for one in train} & {one.text for one in validation}
    pretraining = texts_of("debian-descriptions")
    assert sum(map(len, pretraining)) > 15_000_000
    assert not set(pretraining) & {one.text for one in validation}
    assert subprocess.run(["apt-get", "indextargets"], capture_output=True, check=True).stdout == before


def test_the_command_line_shows_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("text,label\na cat,x\na cat,y\na\u00a0dog,x\n,x\n")
    (tmp_path / "b.tsv").write_text("text\tlabel\na cat\tx\nan owl\ty\n")
    assert main(["data", str(tmp_path / "a.csv"), str(tmp_path / "b.tsv")]) == 0
    told = capsys.readouterr().out
    assert (
        "train texts       3; half have at most 5 characters, the longest 5; 1 stand there again; "
        "1 with other labels than at first; 1 more without text\n" in told
    )
    assert "in both parts     1\nlabels            2\n" in told
    assert "  x        2   66.7%        1   50.0%\n  y        1   33.3%        1   50.0%\n" in told
    assert told.endswith("for example\n  x: a cat\n  y: a cat\n")
    (tmp_path / "c.jsonl").write_text('{"tokens": ["a", "cat"], "labels": ["D", "N"]}')
    assert main(["data", str(tmp_path / "c.jsonl"), "--over", "tokens"]) == 0
    assert "texts             1; half" in capsys.readouterr().out
    assert main(["data", str(tmp_path / "b.tsv"), "--label-field", "lable"]) == 2
    assert "did you mean 'label'" in capsys.readouterr().err
    assert main(["data"]) == 0
    told = capsys.readouterr().out
    assert all(name in told for name in (*DATASETS, *LABEL_DATASETS))
