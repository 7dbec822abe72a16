"""Letters and records of FASTA and FASTQ: case, ambiguity codes, and malformed records that are counted or left out."""

import gzip
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import Documents, TextSpec, prepare, prepare_tokens
from tercet.data.datasets.text_datasets import find_text
from tercet.data.sources import fasta
from tercet.data.sources.sequence_files import SequenceFile, SequenceSettings
from tercet.data.sources.sequence_letters import guess_kind, has_ambiguous_letters, letter_changes
from tercet.tokens import Characters

DAMAGED_FASTA = ">r1 one\nACGT\n>r2\nAC9T\nACGT\n>r3\n>r4\nGG\nTT\n"
DAMAGED_FASTQ = "@r1\nACGT\n+\n!!!!\n@r2\nAC\n+\n@@@\n@r3\nGG\n!!\n@r4\nTT\n+r4\n@!\n@r5\nA"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


def read(path: Path, **settings: Any) -> list[str]:
    """Return the sequences of a file, each with its pieces joined."""
    records = dict[int, str]()
    for piece in SequenceFile(path=path, settings=SequenceSettings(**settings)).pieces():
        records[piece.line] = records.get(piece.line, "") + piece.text
    return list(records.values())


@pytest.mark.parametrize(
    ("settings", "dna", "protein"),
    [
        ({}, "acgtNRyACGT", "mkVBxZLEFQ"),
        ({"case": "upper"}, "ACGTNRYACGT", "MKVBXZLEFQ"),
        ({"case": "mask"}, "NNNNNRNACGT", "XXVBXZLEFQ"),
        ({"ambiguous": "unknown"}, "acgtNNnACGT", "mkVXxXLEFQ"),
        ({"case": "upper", "ambiguous": "unknown"}, "ACGTNNNACGT", "MKVXXXLEFQ"),
        ({"case": "mask", "ambiguous": "unknown"}, "NNNNNNNACGT", "XXVXXXLEFQ"),
    ],
)
def test_case_and_ambiguity_codes(settings: dict[str, str], dna: str, protein: str, tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(">s\nacgtNRyACGT\n")
    (tmp_path / "b.fa").write_text(">s\nmkVBxZLEFQ\n")
    assert read(tmp_path / "a.fa", **settings) == [dna]
    assert read(tmp_path / "b.fa", **settings) == [protein]


def test_records_with_ambiguous_letters_are_dropped_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fasta, "PIECE", 12)
    path = tmp_path / "a.fa.gz"
    long = "ACGT" * 10
    path.write_bytes(gzip.compress(f">a\n{long}\n{long}\nACR\n>b\n{long}\n>c\nacn\n>d\nacg\n".encode()))
    assert read(path, ambiguous="drop") == [long, "acg"]
    assert read(path, ambiguous="drop", case="mask") == [long]  # the case is changed first
    file = SequenceFile(path=path, settings=SequenceSettings(ambiguous="drop"))
    assert file.describe_left_out() == f"{path}: left out: 2 records have ambiguous letters"


@given(st.text("ACGTUNRYacgtuwsmk-*", max_size=30), st.sampled_from(["keep", "upper", "mask"]))
def test_changes_keep_length_and_leave_no_code(text: str, case: Any) -> None:
    changed = text.translate(letter_changes("DNA", case, "unknown"))
    assert len(changed) == len(text)
    assert not has_ambiguous_letters(changed.upper().replace("N", ""), "DNA")
    assert case == "keep" or changed == changed.upper()
    for before, after in zip(text, changed, strict=True):
        assert before not in "ACGTU-*" or after == before


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("ACGTTGCANN", "DNA"),
        ("acgunnn", "RNA"),
        ("", "DNA"),
        ("NNNN", "DNA"),
        ("MKVLAAGIVGLLLAQWERTY", "protein"),
        ("ACGTACGTACGTRYSW", "protein"),  # too few of A, C, G, T, U and N
        ("A-C*G.T", "DNA"),
    ],
)
def test_kind_is_guessed_from_letters(text: str, kind: str) -> None:
    assert guess_kind({letter: text.count(letter) for letter in set(text)}) == kind


def test_suffix_faa_is_protein(tmp_path: Path) -> None:
    for name, expected in (("a.faa", "XXCA"), ("a.fna", "NNCA")):
        (tmp_path / name).write_text(">s\nacCA\n")
        assert read(tmp_path / name, case="mask") == [expected]


@pytest.mark.parametrize(
    ("name", "text", "kept", "words"),
    [
        ("a.fa", DAMAGED_FASTA, ["ACGT", "GGTT"],
         "2 of 4 records cannot be read: record 'r2', line 4: '9' in a sequence at column 3, "
         "record 'r3', line 6: the record has no sequence; correct them"),
        ("a.fq", DAMAGED_FASTQ, ["ACGT", "TT"],
         "3 of 5 records cannot be read: record 'r2', line 8: 3 qualities (characters from ! to ~) for 2 letters, "
         "record 'r3', line 11: the third line of a FASTQ record starts with +, "
         "record 'r5', line 16: the last record has fewer than four lines; correct them"),
        ("b.fa", ">r1\nAC\n>r2\nA C\n", ["AC"], "1 of 2 records cannot be read: record 'r2', line 4: ' ' in a sequence "
         "at column 2; only letters, '*', '.' and '-' are valid"),
    ],
)  # fmt: skip
def test_malformed_records_are_counted_in_one_line(
    name: str, text: str, kept: list[str], words: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as error_info:
        read(path)
    remedy = ", or set data.sequence_errors: skip to leave out such records"
    assert str(error_info.value) == f"{path}: {words}{remedy}"
    assert read(path, errors="skip") == kept
    with pytest.raises(UserError, match="cannot be read"):
        read(path, ambiguous="drop")


@given(st.lists(st.sampled_from([">a\nAC\n", ">b\nA9\nGT\n", ">c\n", ">d\nG\nT\n", ">e\nNA\n"]), max_size=8))
def test_skipped_and_read_records_add_up(parts: list[str]) -> None:
    lines = "".join(parts).splitlines()
    faults = list[fasta.RecordFault]()
    pieces = list(fasta.read_fasta(lines, "a.fa", faults.append))
    assert len(parts) == len(faults) + len(pieces)
    assert [piece.text for piece in pieces] == [
        {"a": "AC", "d": "GT", "e": "NA"}[part[1]] for part in parts if part[1] in "ade"
    ]


@given(st.text(st.sampled_from("@+AC!1 \n"), max_size=60))
def test_reports_end_and_never_repeat_a_record(text: str) -> None:
    faults = list[fasta.RecordFault]()
    pieces = list(fasta.read_fastq(f"@r\n{text}".split("\n"), "a.fq", faults.append))
    read_lines, faulty_lines = {piece.line for piece in pieces}, [fault.header_line for fault in faults]
    assert len(set(faulty_lines)) == len(faulty_lines)
    assert read_lines.isdisjoint(faulty_lines)


def test_file_without_header_is_rejected_even_if_records_are_skipped(tmp_path: Path) -> None:
    for name, words in (("a.fa", "a FASTA file starts with"), ("a.fq", "a FASTQ record starts with @")):
        (tmp_path / name).write_text("ACGT\n>r\nAC\n")
        with pytest.raises(UserError, match=rf"{name} line 1: {words}"):
            read(tmp_path / name, errors="skip")


def test_preparation_reports_left_out_records(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.fa"
    path.write_text(DAMAGED_FASTA + "".join(f">s{n}\nAC{'GT' * n}\n" for n in range(1, 9)) + ">n\nACN\n")
    settings: dict[str, Any] = {"sequence_errors": "skip", "sequence_ambiguous": "drop"}
    spec = TextSpec(source=str(path), tokenizer=Characters(), validation=Documents(fraction=0.2), **settings)
    corpus = prepare(spec)
    assert len(corpus.train_documents) + len(corpus.validation_documents) == 10
    message = capsys.readouterr().err
    assert message.count("\n") == 1
    assert "a.fa: left out: 2 of 13 records cannot be read: record 'r2', line 4" in message
    assert "1 record has ambiguous letters" in message
    prepare_tokens(spec, tmp_path / "tokens", workers=1)
    assert "a.fa: left out: 2 of 13 records cannot be read" in capsys.readouterr().err
    prepared = prepare(TextSpec(source=str(tmp_path / "tokens")))
    assert prepared.train_tokens + len(prepared.validation) == corpus.train_tokens + len(corpus.validation)


def test_source_without_remaining_records_says_why(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(">a\nNNN\n")
    source = find_text(TextSpec(source=str(tmp_path / "a.fa"), sequence_ambiguous="drop"))
    with pytest.raises(UserError, match=r"1 record has ambiguous letters; no text remains"):
        list(source.pieces())  # type: ignore[union-attr]
