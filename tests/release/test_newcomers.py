"""The scripts of the new users: their files, their commands, and one of them with few steps."""

import ast
import importlib
import json
import random
import shlex
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from newcomers import biologist, documents, hub_model, linguist
from newcomers.desk import Desk
from newcomers_from_wheel import PEOPLE, work
from readme_from_wheel import ROOT, SERVERS, shell_lines

from tercet.cli.main import VERBS, make_parser, read_arguments
from tercet.data import read_documents

FOLDER = ROOT / "tests" / "release" / "newcomers"


def commands(name: str) -> Iterator[list[str]]:
    """Yield the words of each line of a script that begins with "tercet". Inserted values are left out."""
    nodes = [*ast.walk(ast.parse((FOLDER / f"{name}.py").read_text(encoding="utf-8")))]
    formatted = [list(node.values) for node in nodes if isinstance(node, ast.JoinedStr)]
    pieces = {id(part) for parts in formatted for part in parts}
    plain = [[node] for node in nodes if isinstance(node, ast.Constant) and id(node) not in pieces]
    for parts in formatted + plain:
        text = "".join(str(part.value) if isinstance(part, ast.Constant) else "" for part in parts)
        for line in shell_lines(text.replace("\\\n", " ")):
            if line.strip().startswith("tercet "):
                yield shlex.split(line.partition(" || ")[0].partition(" 2>")[0].partition(" > ")[0])


def test_each_script_is_run() -> None:
    assert {path.stem for path in FOLDER.glob("*.py")} == {*PEOPLE, "desk"}


@pytest.mark.parametrize("name", PEOPLE)
def test_commands_of_newcomers_are_valid(name: str) -> None:
    lines = [words for words in commands(name) if len(words) > 2]
    assert len(lines) >= 10
    for words in lines:
        assert words[1] in VERBS
        if words[-1] != "--out":
            read_arguments(*make_parser(words[1:]), words[1:])


def test_newcomers_use_most_verbs() -> None:
    used = {words[1] for name in PEOPLE for words in commands(name)}
    assert used >= {
        "train",
        "evaluate",
        "errors",
        "embed",
        "fill",
        "translate",
        "classify",
        "compare",
        "convert",
        *SERVERS,
    } - {"watch"}


@pytest.mark.slow
def test_documents_have_four_formats_and_one_page_about_bicycles(tmp_path: Path) -> None:
    documents.write_files(tmp_path)
    kinds = Counter(path.suffix for path in (tmp_path / "handbook").rglob("*") if path.is_file())
    assert min(kinds[kind] for kind in (".html", ".md", ".pdf", ".docx")) > 20
    assert "bicycle" not in "".join(text for _, text in documents.pages())
    (tmp_path / "handbook" / "manuals" / "damaged.pdf").unlink()
    texts = {document.id: document.text for document in read_documents(tmp_path / "handbook")}
    assert len(texts) == sum(kinds.values()) - 1
    assert min(map(len, texts.values())) > 150
    assert texts["letters/bicycles.docx"].startswith(documents.TITLE)


def test_sequences_contain_mutated_motifs_of_their_family() -> None:
    draw = random.Random(1)
    for family, motifs in biologist.FAMILIES.items():
        text = biologist.sequence(draw, family, 3).upper()
        assert 78 <= len(text) <= 122
        for motif in motifs:
            windows = (text[start : start + len(motif)] for start in range(len(text)))
            assert max(sum(map(str.__eq__, motif, window)) for window in windows) >= 7


def test_species_of_the_test_are_in_no_other_file(tmp_path: Path) -> None:
    biologist.write_files(tmp_path)
    species = [
        {line.rpartition("=")[2] for line in (tmp_path / name).read_text().splitlines() if ">" in line}
        for name in ("families.fa", "test.fa")
    ]
    assert all(species)
    assert not species[0] & species[1]


def test_sentences_agree_and_tests_are_new(tmp_path: Path) -> None:
    assert linguist.harmonic("tolan", "lar", "ler") == "tolanlar"
    assert linguist.harmonic("merid", "lar", "ler") == "meridler"
    linguist.write_files(tmp_path)
    training = {line.partition(",")[0] for line in (tmp_path / "pairs.csv").read_text().splitlines()}
    test = (tmp_path / "test.tolan").read_text().splitlines()
    assert len(training) == 4001
    assert len(test) == 200
    assert not training & {*test}


def test_labels_of_sentences_are_balanced(tmp_path: Path) -> None:
    hub_model.write_files(tmp_path)
    labels = Counter(line.rpartition(",")[2] for line in (tmp_path / "labels.csv").read_text().splitlines()[1:])
    assert {*labels} == {*hub_model.KINDS}
    assert min(labels.values()) > 100


@pytest.mark.slow
def test_checks_and_commands_that_fail_are_reported(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    desk = Desk(tmp_path, tmp_path / "environment", wheel=None, steps=3)
    assert not [key for key in desk.variables if key.startswith(("TERCET_", "OMP_"))]
    assert desk.type("pip install 'tercet[serve]'\n  echo a \\\n  b  # c") == "a b\n"
    with desk.check("learned", trained=True):
        raise AssertionError
    assert not desk.failures
    with desk.check("right"):
        assert json.loads("[1]") == [2]
    with desk.check("exists", trained=True):
        desk.read("missing.json")
    assert desk.failures == ["check: right", "check: exists"]
    assert "FileNotFoundError" in capsys.readouterr().out


def test_work_that_ends_with_an_error_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    desk = Desk(tmp_path, tmp_path / "environment", wheel=None, steps=3)
    person = importlib.import_module("newcomers.linguist")
    monkeypatch.setattr(person, "work", lambda desk: desk.read("missing.json"))
    work("linguist", desk)
    assert desk.failures == ["the work was not finished"]


@pytest.mark.exhaustive
@pytest.mark.timeout(900)
def test_linguist_with_few_steps(installed: Path, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    desk = Desk(tmp_path, installed, wheel=None, steps=4)
    desk.variables |= {"OMP_NUM_THREADS": "1", "TERCET_KERNEL": "off"}  # kernels would be compiled first
    work("linguist", desk)
    assert not desk.failures
