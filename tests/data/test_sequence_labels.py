"""Labels and groups from the headers of FASTA and FASTQ, and groups of any labeled texts that are not divided."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError, parse
from tercet.data import LabelsSpec, RandomSplit, prepare_labels, read_examples
from tercet.data.corpora.label_corpus import read_label_examples
from tercet.data.datasets.label_datasets import find_labels
from tercet.data.sources.sequence_headers import parse_header

CHARACTERS = {"kind": "characters", "bos": True, "pad": True, "mask": True}
FASTA = ">s1 family=kinase patient=p1\nACGT\nAC\n>s2 family=ligase patient=p2\nGGTT\n>s3 family=kinase patient=p1\nAA\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


def examples(path: Path, **settings: Any) -> list[tuple[str, tuple[str, ...]]]:
    spec = parse(LabelsSpec, {"source": str(path), **settings})
    return [(example.text, example.labels) for example in read_examples(find_labels(spec))]


@pytest.mark.parametrize(
    ("header", "fields"),
    [
        ("s1 family=kinase", {"family": "kinase"}),
        ("s1|family=kinase;organism=E.coli", {"family": "kinase", "organism": "E.coli"}),
        ("lcl|x [gene=dnaA] [protein=initiation factor]", {"gene": "dnaA", "protein": "initiation factor"}),
        ('s1 note="two words" a=b=c', {"note": "two words", "a": "b=c"}),
        ("s1 a=1 a=2", {"a": "1"}),
        ("s1 empty= x", {"empty": ""}),
        ("no fields", {}),
    ],
)
def test_header_fields(header: str, fields: dict[str, str]) -> None:
    assert parse_header(header) == fields


@given(st.dictionaries(st.text("abcXYZ_", min_size=1, max_size=5), st.text("abc123,.+-", max_size=6), max_size=4))
def test_header_round_trip(fields: dict[str, str]) -> None:
    assert parse_header(" ".join(["id", *(f"{key}={value}" for key, value in fields.items())])) == fields
    assert parse_header(" ".join(["id", *(f"[{key}={value}]" for key, value in fields.items())])) == fields


@pytest.mark.parametrize("settings", [{"label_field": "family"}, {"label_pattern": r"family=(\w+)"}])
def test_labels_are_read_from_headers(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(FASTA)
    expected = [("ACGTAC", ("kinase",)), ("GGTT", ("ligase",)), ("AA", ("kinase",))]
    assert examples(tmp_path / "a.fa", **settings) == expected
    (tmp_path / "a.fq").write_text("@r family=kinase\nAcN\n+\n!!!\n")
    assert examples(tmp_path / "a.fq", sequence_case="upper", **settings) == [("ACN", ("kinase",))]


def test_numbers_and_several_labels_in_headers(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(">a label=1.5 x=1 y=0\nAC\n>b label=-2 x=1 y=1\nGT\n")
    assert examples(tmp_path / "a.fa", problem_type="regression") == [("AC", ("1.5",)), ("GT", ("-2.0",))]
    several = {"problem_type": "multi_label_classification"}
    assert examples(tmp_path / "a.fa", label_fields=["x", "y"], **several) == [("AC", ("x",)), ("GT", ("x", "y"))]
    (tmp_path / "b.fa").write_text(">a label=membrane,nucleus\nAC\n>b label=\nGT\n")
    assert examples(tmp_path / "b.fa", **several) == [("AC", ("membrane", "nucleus")), ("GT", ())]


def test_records_without_label_are_counted_or_skipped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.fa"
    path.write_text(FASTA + ">s4 patient=p3\nAC\n>s5 family=kinase\nA9\n>s6 family=\nAC\n")
    with pytest.raises(UserError) as error_info:
        examples(path, label_field="family")
    assert str(error_info.value) == (
        f"{path}: 3 of 6 records cannot be read: record 's4', line 8: no 'family' in its header (fields: patient), "
        "record 's5', line 11: '9' in a sequence at column 2, record 's6', line 12: its header has nothing as its "
        "'family'; correct them, or set data.sequence_errors: skip to leave out such records"
    )
    assert len(examples(path, label_field="family", sequence_errors="skip")) == 3
    settings: dict[str, Any] = {"label_field": "family", "sequence_errors": "skip", "validation": {"kind": "drawn"}}
    settings["tokenizer"] = {**CHARACTERS, "alphabet": "ACGT"}
    corpus = prepare_labels(parse(LabelsSpec, {"source": str(path), **settings}))
    assert len(corpus.train) + len(corpus.validation) == 3
    assert "left out: 3 of 6 records cannot be read" in capsys.readouterr().err
    path.write_text(">s1\nAC\n")
    with pytest.raises(UserError, match=r"no label in its header.*; set data\.label_field or"):
        examples(path, label_pattern="family=(.)")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"label_pattern": "family="}, "0 groups"),
        ({"label_pattern": "(a)(b)"}, "2 groups"),
        ({"group_pattern": "("}, "not a regular expression"),
        ({"group_pattern": "(a)", "group_field": "a"}, "exclude each other"),
        ({"group_field": "a", "validation": {"kind": "held_out", "source": "b.fa"}}, "divide the texts of one source"),
        ({"reverse_complement": True, "over": "tokens"}, "single texts"),
    ],
)
def test_settings_that_do_not_fit(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UserError, match=words):
        parse(LabelsSpec, {"source": "a.fa", **settings})


def test_patterns_require_headers(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("text,label\na,b\n")
    with pytest.raises(UserError, match="has no headers"):
        examples(tmp_path / "a.csv", label_pattern="(a)")
    with pytest.raises(UserError, match="has no groups and headers"):
        examples(Path("python-docstrings"), group_field="a")
    (tmp_path / "a.fa").write_text(FASTA)
    with pytest.raises(UserError, match="labels as a whole"):
        examples(tmp_path / "a.fa", over="tokens")


@pytest.mark.parametrize("kind", ["fa", "csv", "jsonl", "pattern"])
def test_a_group_is_in_one_part(kind: str, tmp_path: Path) -> None:
    rows = [(f"{'ACGT' * (n % 7 + 1)}{'GT' * n}", f"p{n % 20}", "xy"[n // 20 % 2]) for n in range(200)]
    path = tmp_path / f"a.{'fa' if kind == 'pattern' else kind}"
    if kind == "csv":
        path.write_text("text,patient,label\n" + "".join(f"{text},{group},{label}\n" for text, group, label in rows))
    elif kind == "jsonl":
        objects = [{"text": text, "patient": group, "label": label} for text, group, label in rows]
        path.write_text("".join(json.dumps(item) + "\n" for item in objects))
    else:
        lines = [f">s patient={group} label={label}\n{text}\n" for text, group, label in rows]
        path.write_text("".join(lines))
    groups = {"group_pattern": r"patient=(\w+)"} if kind == "pattern" else {"group_field": "patient"}
    spec = parse(LabelsSpec, {"source": str(path), "tokenizer": CHARACTERS, **groups})
    by_text = {text: group for text, group, _ in rows}
    train, validation = (
        {by_text[example.text] for example in read_label_examples(spec, side)} for side in ("train", "validation")
    )
    assert train.isdisjoint(validation)
    assert len(train | validation) == 20
    assert validation
    n_validation = len(read_label_examples(spec, "validation"))
    assert n_validation == 10 * len(validation) <= 20  # at most a tenth
    plain = parse(LabelsSpec, {"source": str(path), "tokenizer": CHARACTERS})
    assert {by_text[example.text] for example in read_label_examples(plain, "validation")} & {
        by_text[example.text] for example in read_label_examples(plain, "train")
    }


def test_one_group_cannot_be_divided_and_duplicates_are_found_by_text(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("text,patient,label\n" + "".join(f"text {n},p,{n % 2}\n" for n in range(20)))
    spec = LabelsSpec(source=str(path), group_field="patient", validation=RandomSplit(count=5))
    with pytest.raises(UserError, match=r"has only one group, which cannot be divided; .* or add groups"):
        read_label_examples(spec, "train")
    path.write_text("text,patient,label\n" + "".join(f"Same {n % 4}.,p{n},{n % 2}\n" for n in range(40)))
    settings = {"source": str(path), "group_field": "patient", "tokenizer": CHARACTERS}
    corpus = prepare_labels(parse(LabelsSpec, settings))
    assert corpus.near_duplicates == len(corpus.validation) == 4


def test_other_groups_or_labels_are_other_data(tmp_path: Path) -> None:
    path = tmp_path / "a.fa"
    path.write_text("".join(f">s{n} g=g{n % 5} h=h{n % 3} label={'xy'[n % 2]}\nAC{'GT' * n}\n" for n in range(30)))
    base = {"source": str(path), "tokenizer": CHARACTERS}
    changes: list[dict[str, Any]] = [
        {}, {"group_field": "g"}, {"group_field": "h"}, {"label_field": "h"}, {"label_pattern": "h=(..)"},
        {"sequence_ambiguous": "drop"},
    ]  # fmt: skip
    hashes = [prepare_labels(parse(LabelsSpec, {**base, **change})).hash for change in changes]
    assert len(set(hashes)) == len(changes)


def test_record_with_an_unknown_letter_is_named(tmp_path: Path) -> None:
    records = [f">s{n} family={'xy'[n % 2]}\n{'ACGT' * (n + 1)}\n" for n in range(20)]
    (tmp_path / "a.fa").write_text("".join(records) + ">odd one family=x\nACZT\n")
    spec = parse(
        LabelsSpec,
        {
            "source": str(tmp_path / "a.fa"), "label_field": "family",
            "tokenizer": {**CHARACTERS, "alphabet": "ACGT"}, "validation": {"kind": "drawn", "count": 3},
        },
    )  # fmt: skip
    with pytest.raises(UserError, match=r"a\.fa, record 'odd': .*'Z'"):
        prepare_labels(spec)
