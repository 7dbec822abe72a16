"""Labels of all kinds are read exactly; invalid labels are reported in one line with file and row."""

import csv
import io
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tercet.config import UserError, parse
from tercet.data import LabelFile, LabelsSpec
from tercet.data.examples.label_values import parse_number, read_number, split_labels

MULTI: dict[str, Any] = {"problem_type": "multi_label_classification"}
LABEL = st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=6)
SETS = st.lists(st.lists(LABEL, max_size=4), min_size=1, max_size=6)
NUMBER = st.floats(-1e15, 1e15) | st.integers(-(10**15), 10**15)


def read(path: Path, data: str, **settings: Any) -> list[tuple[str, ...]]:
    path.write_text(data, encoding="utf-8")
    return [item.labels for item in LabelFile(path=path, **settings).examples()]


def table(rows: list[tuple[Any, ...]]) -> str:
    buffer = io.StringIO(newline="")
    csv.writer(buffer, lineterminator="\n").writerows(rows)
    return buffer.getvalue()


@pytest.mark.slow
@given(sets=SETS, separator=st.sampled_from([",", ";", " | ", " "]), space=st.sampled_from(["", " "]))
@example(sets=[[], ["a", "a", "b"]], separator=",", space=" ")
def test_sets_of_labels(
    sets: list[list[str]], separator: str, space: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("sets")
    expected = [tuple(dict.fromkeys(labels)) for labels in sets]
    lines = "".join(json.dumps({"text": "a", "label": labels}) + "\n" for labels in sets)
    assert read(folder / "a.jsonl", lines, **MULTI) == expected
    rows = table([("text", "label"), *(("a", f"{space}{separator}".join(labels)) for labels in sets)])
    assert read(folder / "a.csv", rows, label_separator=separator, **MULTI) == expected


@pytest.mark.slow
@given(sets=st.lists(st.sets(st.sampled_from("xyz")), min_size=1, max_size=6))
def test_a_column_for_each_label(sets: list[set[str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("columns")
    expected = [tuple(sorted(labels)) for labels in sets]
    settings: dict[str, Any] = {**MULTI, "label_fields": ("x", "y", "z")}
    rows = table([("y", "text", "x", "z"), *((int("y" in s), "a", int("x" in s), int("z" in s)) for s in sets)])
    assert read(folder / "a.csv", rows, **settings) == expected
    lines = "".join(json.dumps({"text": "a", **{name: name in labels for name in "xyz"}}) + "\n" for labels in sets)
    assert read(folder / "a.jsonl", lines, **settings) == expected


@given(numbers=st.lists(NUMBER, min_size=1, max_size=9))
@example(numbers=[-0.0, 1e-320, 10**15, 0.1 + 0.2])
def test_numbers_are_read_bit_for_bit(numbers: list[float], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("numbers")
    for name, data in {
        "a.jsonl": "".join(json.dumps({"text": "a", "label": number}) + "\n" for number in numbers),
        "a.tsv": "text\tlabel\n" + "".join(f"a\t {number!r}\n" for number in numbers),
    }.items():
        assert [float(labels[0]) for labels in read(folder / name, data, problem_type="regression")] == numbers


@given(text=st.text(st.sampled_from("0123456789+-.eE_naif x１²"), max_size=9))
def test_accepted_numbers_are_those_of_json_and_c(text: str) -> None:
    """An accepted number equals Python's float, and Python's own spellings of numbers are rejected."""
    with suppress(UserError):
        label = parse_number(text, "a.csv line 2", "label")
        assert float(label) == float(text)
        assert text.strip().isascii()
        assert not set(text) & set("_nf")


@given(text=st.text(st.sampled_from("ab, ;"), max_size=12))
def test_labels_between_separators_join_again(text: str) -> None:
    parts = [part.strip() for part in text.split(",")]
    if text.strip() and not all(parts):
        with pytest.raises(UserError, match="an empty label next to ','"):
            split_labels(text, ",", "a.csv line 2", "label")
    else:
        assert split_labels(text, ",", "a.csv line 2", "label") == tuple(dict.fromkeys(filter(None, parts)))


def test_a_set_may_be_one(tmp_path: Path) -> None:
    rows = [{"text": "a", "label": label} for label in ("x", 3, True, [], ["x", 3, "x", False])]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    assert read(tmp_path / "a.jsonl", lines, **MULTI) == [("x",), ("3",), ("true",), (), ("x", "3", "false")]
    assert read(tmp_path / "a.jsonl", '{"text": "a", "label": "x, y"}', **MULTI) == [("x, y",)], "JSON has lists"


def jsonl(label: str) -> str:
    return f'{{"text": "a", "label": 1}}\n{{"text": "b", "label": {label}}}'


@pytest.mark.parametrize(
    ("settings", "name", "data", "words"),
    [
        ({}, "a.jsonl", jsonl('["x"]'), "several labels set data.problem_type: multi_label_classification"),
        ({}, "a.jsonl", jsonl("1.5"), "are numbers set data.problem_type: regression"),
        (MULTI, "a.jsonl", jsonl("null"), r"has nothing as its 'label'; write \[\] for a text without a label"),
        (MULTI, "a.jsonl", jsonl('["x", null]'), "has nothing as its 'label'"),
        (MULTI, "a.jsonl", jsonl('[["x"]]'), r"has \[\"x\"\] as its 'label'"),
        (MULTI, "a.jsonl", jsonl("1.5"), "has 1.5 as its 'label'"),
        (MULTI, "a.jsonl", jsonl(json.dumps([*range(10_001)])), "has 10,001 labels in 'label', the maximum is 10,000"),
        (MULTI, "a.csv", 'text,label\na,x\nb,"x,,y"', "an empty label next to ','"),
        ({**MULTI, "label_fields": ("x", "y")}, "a.csv", "text,x,y\na,0,1\nb,2,0", "2\" as its 'x'; .* must be 0 or 1"),
        ({**MULTI, "label_fields": ("x", "z")}, "a.csv", "text,x,y\na,0,1", "no column 'z'.*set data.label_fields"),
        ({**MULTI, "label_fields": ("x", "z")}, "a.jsonl", '{"text": "a", "x": 1}', "no field 'z'.*data.label_fields"),
        *(
            (
                {"problem_type": "regression"},
                "a.jsonl",
                jsonl(label),
                "line 2 has .* a label must be a finite number: write",
            )
            for label in ("NaN", "Infinity", "-Infinity", '"3"', "null", "true", "[1]", "1e999")
        ),
        *(
            ({"problem_type": "regression"}, "a.csv", f"text,label\na,1\nb,{label}", "line 3 has .* a finite number")
            for label in ("nan", "inf", "x", "", "1_000", "1x", "１", "1e999")
        ),
        (
            {"problem_type": "regression"},
            "a.jsonl",
            jsonl("1e16"),
            "larger than 1,000,000,000,000,000; use a larger unit for all",
        ),
        ({"problem_type": "regression"}, "a.jsonl", jsonl("1" + "0" * 400), "larger than"),
    ],
)
def test_errors_name_their_line(settings: dict[str, Any], name: str, data: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=words) as error:
        read(tmp_path / name, data, **settings)
    assert str(tmp_path / name) in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 500


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"over": "tokens", **MULTI}, "applies to texts, and a token has one label; set over to texts"),
        ({"over": "tokens", "problem_type": "regression"}, "problem_type=regression applies to texts"),
        ({"problem_type": "regresion"}, "'regression'"),
        ({"label_fields": ["x"]}, "label_fields contain several labels; set problem_type to multi_label"),
        ({"label_fields": ["x", "x"], **MULTI}, "'x' appears twice in text_field, pair_field and label_fields"),
        ({"label_fields": ["text"], **MULTI}, "'text' appears twice"),
        ({"label_separator": ""}, "label_separator"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(LabelsSpec, {"source": "a.csv", **settings})


def test_a_whole_number_is_a_number() -> None:
    assert read_number(3, "", "") == "3.0"
    assert read_number(-(10**15), "", "") == "-1000000000000000.0"
