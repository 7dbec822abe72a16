"""The named labeled datasets: enough texts, disjoint parts, and no overlap with the text for pretraining."""

import sys
from collections import Counter
from pathlib import Path

import pytest

from tercet.cli.main import main
from tercet.config import UserError
from tercet.data import DATASETS, LABEL_DATASETS, LabelsSpec, read_label_examples
from tercet.data.datasets import docstrings


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    for name in ("TERCET_DATA", "TERCET_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    docstrings._split.cache_clear()
    return tmp_path / "cache"


def test_every_dataset_has_a_description() -> None:
    assert sorted(LABEL_DATASETS) == [
        "python-docstring-code",
        "python-docstring-lines",
        "python-docstrings",
    ]
    assert all(dataset.description and dataset.origin for dataset in LABEL_DATASETS.values())


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
    with pytest.raises(UserError, match=r"no source files of Python's library in .*use a Python that includes them"):
        docstrings.read_library(tmp_path / "none")


def test_no_module_is_in_two_parts() -> None:
    modules = [module for modules in docstrings.PARTS.values() for module in modules.split()]
    assert len(modules) == len(set(modules))
    assert list(docstrings.PARTS) == sorted(docstrings.PARTS)


@pytest.mark.exhaustive
def test_docstrings_of_this_python(monkeypatch: pytest.MonkeyPatch, cache_folder: Path) -> None:
    modules = set(sys.modules)
    train, validation = (
        read_label_examples(LabelsSpec(source="python-docstrings"), part) for part in ("train", "validation")
    )
    assert not {name for name in set(sys.modules) - modules if name.startswith(("tkinter", "distutils", "turtle"))}
    examples = train + validation
    assert len(examples) >= 4000
    assert len(validation) == len(examples) // 10
    assert len({example.text for example in examples}) == len(examples)
    counts = Counter(example.labels[0] for example in examples)
    assert set(counts) == set(docstrings.PARTS)
    assert max(counts.values()) <= 0.35 * len(examples)
    assert [example.text for example in train] == sorted(example.text for example in train)
    assert {example.labels[0] for example in validation} == set(counts)
    docstrings._split.cache_clear()
    monkeypatch.setattr(docstrings, "read_library", None)  # the second call reads no file
    assert read_label_examples(LabelsSpec(source="python-docstrings"), "train") == train


def test_the_command_line_shows_labels(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.csv").write_text("text,label\na cat,x\na cat,y\na\u00a0dog,x\n,x\n")
    (tmp_path / "b.tsv").write_text("text\tlabel\na cat\tx\nan owl\ty\n")
    assert main(["data", str(tmp_path / "a.csv"), str(tmp_path / "b.tsv")]) == 0
    output = capsys.readouterr().out
    assert (
        "train texts       3; half have at most 5 characters, the longest 5; 1 duplicate; "
        "1 with other labels than their first occurrence; 1 more without text\n" in output
    )
    assert "in both parts     1\nlabels            2\n" in output
    assert "  x        2   66.7%        1   50.0%\n  y        1   33.3%        1   50.0%\n" in output
    assert output.endswith("for example\n  x: a cat\n  y: a cat\n")
    (tmp_path / "c.jsonl").write_text('{"tokens": ["a", "cat"], "labels": ["D", "N"]}')
    assert main(["data", str(tmp_path / "c.jsonl"), "--over", "tokens"]) == 0
    assert "texts             1; half" in capsys.readouterr().out
    assert main(["data", str(tmp_path / "b.tsv"), "--label-field", "lable"]) == 2
    assert "did you mean 'label'" in capsys.readouterr().err
    assert main(["data"]) == 0
    output = capsys.readouterr().out
    assert all(name in output for name in (*DATASETS, *LABEL_DATASETS))
