"""Numeric and multi-label targets on disk: their scale, targets that cannot be learned, and their summary."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.cli.main import main
from tercet.config import UserError
from tercet.data import HeldOutLabels, LabelsSpec, label_rows, prepare_labels, read_label_examples, summarize_data
from tercet.data import cache as cache_module
from tercet.data.corpora.targets import label_indicators
from tercet.data.datasets import docstring_code
from tercet.data.datasets.recognize import guess_label_format, recognize
from tercet.tokens import BPE

NUMBERS = [(f"text {n}", n % 7 - 1.25) for n in range(53)]
SETS = [(f"text {n}", [name for name, m in (("two", 2), ("three", 3), ("five", 5)) if n % m == 0]) for n in range(53)]
KINDS: dict[str, Any] = {"regression": NUMBERS, "multi_label_classification": SETS}


@pytest.fixture(autouse=True)
def cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    docstring_code._split_lines.cache_clear()
    docstring_code._split_code.cache_clear()
    return tmp_path / "cache"


def file(folder: Path, rows: list[tuple[str, Any]], kind: Any, name: str = "a", **settings: Any) -> LabelsSpec:
    path = folder / f"{name}.jsonl"
    path.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    return LabelsSpec(source=str(path), problem_type=kind, **{"tokenizer": BPE(vocab_size=300), **settings})


@pytest.mark.parametrize("kind", KINDS)
def test_labels_are_those_of_the_file(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "CHUNK_CHARACTERS", 100)  # many batches
    spec = file(tmp_path, [*KINDS[kind], ("", KINDS[kind][0][1])], kind)
    corpus = prepare_labels(spec)
    assert corpus.skipped == 1
    for part, side in ((corpus.train, "train"), (corpus.validation, "validation")):
        expected = [dict(KINDS[kind])[example.text] for example in read_label_examples(spec, side)]  # pyright: ignore[reportArgumentType]
        numbers = np.random.default_rng(1).permutation(len(part))
        rows = label_rows(part, numbers, max_len=40, bos=0, eos=1, pad=2)
        assert isinstance(part.labels, np.memmap)
        if kind == "regression":
            assert (corpus.labels, part.labels.dtype, rows.targets.dtype) == (("label",), np.float64, np.float64)
            assert rows.targets.tolist() == [expected[n] for n in numbers]
        else:
            assert corpus.labels == ("five", "three", "two")
            assert part.label_starts is not None
            assert len(part.labels) == sum(map(len, expected)), "no more than there are"
            label_sets = [{corpus.labels[n] for n in np.flatnonzero(row)} for row in rows.targets]
            assert label_sets == [set(expected[n]) for n in numbers]
            assert rows.targets.dtype == np.float32
            assert set(rows.targets.flatten()) <= {0, 1}
    second = prepare_labels(spec)
    assert (second.scale, second.hash) == (corpus.scale, corpus.hash)


@given(st.lists(st.sets(st.integers(0, 6)), min_size=1, max_size=9), st.randoms(use_true_random=False))
def test_indicators_are_the_sets(sets: list[set[int]], chance: Any) -> None:
    labels = np.array([label for members in sets for label in sorted(members)], dtype=np.int64)
    starts = np.cumsum([0, *map(len, sets)])
    numbers = np.array([chance.randrange(len(sets)) for _ in range(5)])
    indicators = label_indicators(labels, starts, numbers, 7)
    assert [set(np.flatnonzero(row).tolist()) for row in indicators] == [sets[n] for n in numbers]


def test_the_scale_is_that_of_the_training_part(tmp_path: Path) -> None:
    held_out = file(tmp_path, [("z", 1e6), ("y", -1e6)], "regression", "b")
    spec = file(tmp_path, NUMBERS, "regression", validation=HeldOutLabels(source=held_out.source))
    scale = prepare_labels(spec).scale
    values = [number for _, number in NUMBERS]
    mean = sum(values) / len(values)
    assert scale.mean == pytest.approx(mean)
    assert scale.std == pytest.approx((sum((x - mean) ** 2 for x in values) / len(values)) ** 0.5)


@pytest.mark.parametrize(
    ("kind", "rows", "held_out", "words"),
    [
        ("regression", [(text, 3) for text, _ in NUMBERS], NUMBERS, "every training text has the number 3; use data"),
        ("regression", [(t, x * 1e-16) for t, x in NUMBERS], NUMBERS, "deviation of .*; use a smaller unit for all"),
        ("regression", NUMBERS, [("a", 1), ("b", None)], r"b\.jsonl line 2 has nothing as its 'label'"),
        ("multi_label_classification", [(t, []) for t, _ in SETS], SETS, "every training text has no label"),
        ("multi_label_classification", [(t, ["a"]) for t, _ in SETS], SETS, "every training text has the labels 'a'"),
        (
            "multi_label_classification", SETS, [("a", ["two", "six"])],
            r"only the validation part has the label 'six' \(1 times\)",
        ),
    ],
)  # fmt: skip
def test_unlearnable_labels_are_rejected_before_any_file_is_written(
    kind: str, rows: Any, held_out: Any, words: str, tmp_path: Path, cache_folder: Path
) -> None:
    validation = HeldOutLabels(source=file(tmp_path, held_out, kind, "b").source)
    tokenizer = prepare_labels(file(tmp_path, [("a", "x"), ("b", "y"), ("c", "x")], "single_label_classification"))
    before = sorted((cache_folder / "labeled").iterdir())
    with pytest.raises(UserError, match=words) as output:
        prepare_labels(file(tmp_path, rows, kind, validation=validation), tokenizer=tokenizer.tokenizer)
    assert "\n" not in str(output.value)
    assert sorted((cache_folder / "labeled").iterdir()) == before


def test_one_file_with_several_kinds_has_separate_caches(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"text {n},{n % 4};{n % 3}\n" for n in range(40)))
    several: dict[str, Any] = {"problem_type": "multi_label_classification", "tokenizer": BPE(vocab_size=300)}
    read = [
        prepare_labels(LabelsSpec(source=str(path), **{**several, **change})).labels
        for change in ({"problem_type": "single_label_classification"}, {}, {"label_separator": ";"})
    ]
    assert read[0] == read[1]
    assert (len(read[0]), read[2]) == (12, ("0", "1", "2", "3"))
    path.write_text("text,label,good,long\n" + "".join(f"text {n},{n % 4},{n % 2},{n % 3 // 2}\n" for n in range(40)))
    specs = [
        LabelsSpec(source=str(path), **{**several, **change})
        for change in (
            {},
            {"problem_type": "regression"},
            {"label_fields": ("good", "long")},
            {"label_fields": ("good",)},
        )
    ]
    corpora = [prepare_labels(spec) for spec in specs]
    assert len({corpus.hash for corpus in corpora}) == 4
    assert [corpus.labels for corpus in corpora[1:]] == [("label",), ("good", "long"), ("good",)]
    assert corpora[1].train.labels.dtype == np.float64
    assert prepare_labels(specs[0]).train.labels.dtype == np.int64


def test_named_dataset_has_its_kind() -> None:
    with pytest.raises(UserError, match=r"lines has one number per text; set data\.problem_type to regression"):
        read_label_examples(LabelsSpec(source="python-docstring-lines"), "train")
    with pytest.raises(UserError, match=r"docstrings has one label per text; set data\.problem_type to single_label_"):
        read_label_examples(LabelsSpec(source="python-docstrings", problem_type="regression"), "train")


def test_code_of_a_small_library(tmp_path: Path) -> None:
    (tmp_path / "csv.py").write_text(
        '"""The module is no function."""\n'
        "class A:\n"
        '    """A class with a\n    docstring of two lines."""\n'
        "    def f(self):\n"
        '        """Says nothing at all."""\n'
        "        def g():\n            if 1: raise KeyError\n            return 3\n"
        "        return None\n"
        "async def h(cls, *rest):\n"
        '    """Goes on and on."""\n'
        "    async for x in rest:\n        yield x\n"
        "def i(*, key):\n"
        '    """Takes a key alone."""\n'
        "    while key: return 0\n"
        "def j():\n"
        '    """Takes a key alone."""\n'  # of two kinds of code
    )
    assert docstring_code.read_code_labels(tmp_path) == [
        ("Goes on and on.", ("arguments", "loops", "method", "yields")),
        ("Says nothing at all.", ("method",)),
    ]
    assert [(text, 2 ** float(number)) for text, number in docstring_code.read_lines_of_code(tmp_path)] == [
        ("A class with a\ndocstring of two lines.", pytest.approx(7, rel=1e-3)),
        ("Goes on and on.", pytest.approx(3, rel=1e-3)),
        ("Says nothing at all.", pytest.approx(5, rel=1e-3)),
    ]


@pytest.mark.exhaustive
def test_code_of_this_python() -> None:
    lines = LabelsSpec(source="python-docstring-lines", problem_type="regression")
    code = LabelsSpec(source="python-docstring-code", problem_type="multi_label_classification")
    for spec in (lines, code):
        train, validation = (read_label_examples(spec, part) for part in ("train", "validation"))
        assert len(train) > 3500
        assert len(validation) >= len(train) // 10
        assert not {example.text for example in train} & {example.text for example in validation}
    counts = Counter(label for example in read_label_examples(code, "train") for label in example.labels)
    assert len(counts) == 7
    assert 0.4 < prepare_labels(lines).scale.std < 3


def test_kind_of_labels_is_detected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {"regression": NUMBERS, "multi_label_classification": SETS, "single_label_classification": [("a", 3)]}
    for kind, rows in kinds.items():
        spec = recognize(file(tmp_path, rows, "single_label_classification").source)
        assert isinstance(spec, LabelsSpec)
        assert spec.problem_type == kind
    summary = summarize_data(file(tmp_path, NUMBERS, "regression"))
    assert summary.numbers is not None
    values = [number for _, number in NUMBERS]
    assert (summary.numbers.min, summary.numbers.max, summary.labels) == (min(values), max(values), {})
    assert (summary.numbers.mean, summary.numbers.std) == (
        pytest.approx(np.mean(values)),
        pytest.approx(np.std(values)),
    )
    source = file(tmp_path, SETS, "single_label_classification").source
    assert main(["data", "look", source]) == 0
    output = capsys.readouterr().out
    assert "labels per text   56 in total, 0 to 3; half have at most 1" in output
    assert "  two             27  50.9%" in output
    assert main(["data", source, "--label-field", "label"]) == 0
    assert "  two         27   50.9%" in capsys.readouterr().out
    assert main(["data", file(tmp_path, NUMBERS, "single_label_classification").source, "--label-field", "label"]) == 0
    assert "numbers           -1.25 to 4.75; mean " in capsys.readouterr().out


def test_labels_that_look_like_something_else_are_pointed_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,label\n" + "".join(f"text {n},{n / 4}\n" for n in range(30)))
    assert main(["data", "look", str(path)]) == 0
    assert (
        "look like numbers, but each is read as the name of a class; to change this, pass --problem-type regression"
        in (capsys.readouterr().err)
    )
    assert main(["data", "look", str(path), "--problem-type", "regression"]) == 0
    captured = capsys.readouterr()
    assert captured.err == ""
    assert "numbers           0 to 7.25; half are at most 3.625" in captured.out
    assert guess_label_format(["a,b", "b, c", "a"], ",") == "lists"
    assert guess_label_format([str(n) for n in range(5)], ",") == "", "five classes may well be called 0 to 4"
