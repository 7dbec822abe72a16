"""FASTA and FASTQ: sequences are read exactly, cuts do not affect k-mers, and invalid records are reported by line."""

import gzip
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import TextSpec, prepare
from tercet.data.datasets.text_datasets import find_documents
from tercet.data.sources import fasta
from tercet.data.sources.fasta import SequencePiece, read_fasta, read_fastq
from tercet.data.sources.sequence_files import SequenceSettings
from tercet.tokens import Characters, KMers, WordPiece

Read = Callable[[Iterable[str], str], Iterator[SequencePiece]]
SEQUENCES = st.lists(st.text("ACGTNacgt*-", min_size=1, max_size=60), min_size=1, max_size=5)


def records(read: Read, text: str) -> list[str]:
    sequences, record = list[str](), ""
    for piece in read(text.split("\n"), "a.fa"):
        assert piece.text
        record += piece.text
        if piece.last:
            sequences, record = [*sequences, record], ""
    assert not record
    return sequences


@given(SEQUENCES, st.integers(1, 70), st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\n", "  \n"]))
def test_fasta_round_trip(sequences: list[str], width: int, end: str, blank: str) -> None:
    lines = list[str]()
    for number, sequence in enumerate(sequences):
        lines += [f">record {number} > {sequence}", *(sequence[i : i + width] for i in range(0, len(sequence), width))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fasta, "PIECE", 12)
        assert records(read_fasta, blank + end.join(lines) + end + blank) == sequences


@given(st.lists(st.text("ACGTN", max_size=60), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"]))
def test_fastq_round_trip(sequences: list[str], end: str) -> None:
    text = "".join(end.join([f"@r{n}", s, "+", "@" * len(s)]) + end for n, s in enumerate(sequences))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fasta, "PIECE", 12)
        assert records(read_fastq, text) == [sequence for sequence in sequences if sequence]


@pytest.mark.parametrize("read", [read_fasta, read_fastq])
@given(text=st.text(st.sampled_from(">@+AC1! \n\r\t"), max_size=40))
def test_any_lines_are_read_or_rejected(read: Read, text: str) -> None:
    try:
        sequences = records(read, text)
    except UserError as error:
        sequences, message = ["A"], str(error)
        assert "line " in message
    else:
        message = ""
    assert "\n" not in message
    assert all(set(record) <= {"A", "C"} for record in sequences)


@pytest.mark.parametrize(
    ("read", "text", "words"),
    [
        (read_fasta, "ACGT\n", "line 1: a FASTA file starts with a line >"),
        (read_fasta, ">a\n\n>b\nAC\n", "line 1: the record has no sequence"),
        (read_fasta, ">a\nAC\n>b", "line 3: the record has no sequence"),
        (read_fasta, ">a\nACGT\nAC9T\n", "line 3: '9' in a sequence at column 3"),
        (read_fasta, ">a\nAC GT\n", "line 2: ' ' in a sequence"),
        (read_fastq, "@a\nACGT\n+\n!!!\n", "line 4: 3 qualities .* for 4 letters"),
        (read_fastq, "@a\nACGT\n+\n!! !\n", "line 4: 4 qualities"),
        (read_fastq, "@a\nAC\nGT\n+\n!!!!\n", "line 3: the third line of a FASTQ record"),
        (read_fastq, "@a\nAC\n+\n!!\n\n>b\nAC\n", "line 6: a FASTQ record starts with @"),
        (read_fastq, "@a\nAC\n+\n!!\n@b\nAC", "line 5: the last record has fewer than"),
        (read_fastq, "@a\nA?\n+\n!!\n", r"line 2: '\?' in a sequence at column 2"),
    ],
)
def test_invalid_record_is_reported_with_its_line(read: Read, text: str, words: str) -> None:
    with pytest.raises(UserError, match=words) as error_info:
        records(read, text)
    assert "\n" not in str(error_info.value)


@pytest.mark.parametrize("name", ["a.fa", "a.fasta", "a.fna.gz", "a.faa", "a.fq", "a.fastq.gz"])
def test_every_ending(name: str, tmp_path: Path) -> None:
    content = b"@r\nacgN\n+\n!!!!\n" if ".f" in name and "q" in name else b">r\nac\ngN\n"
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    for source in (str(tmp_path / name), str(tmp_path)):
        assert [piece.text for piece in find_documents(source).pieces()] == ["acgN"]
        assert [piece.text for piece in find_documents(source, sequences=SequenceSettings(case="upper")).pieces()] == [
            "ACGN"
        ]
        assert find_documents(source).size() is None


def test_a_letter_that_the_tokenizer_lacks_names_its_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.fa"
    for sequence, words in {
        "acgt": "'a' (U+0061), 'c' (U+0063), 'g' (U+0067), 't' (U+0074); write it in capitals (for sequences, "
        "set data.sequence_case: upper), or set byte_fallback: true",
        "ACNT": "'N' (U+004E); set byte_fallback: true",
    }.items():
        path.write_text(f">chr1 first\nACGT\n>chr2 second\n{sequence}\n>chr3\nACGT\n")
        with pytest.raises(UserError, match=re.escape(f"a.fa, record 'chr2': the vocabulary has no {words}")):
            prepare(TextSpec(source=str(path), tokenizer=Characters(alphabet="ACGT")))
    path.write_text(">chr1\nacgt\n")
    prepare(TextSpec(source=str(path), tokenizer=Characters(alphabet="ACGT"), sequence_case="upper"))


def test_tokenizer_that_maps_sequences_to_unknown_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sequence is one word, and WordPiece has one token for all words of more than 100 characters."""
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.fa"
    path.write_text("".join(f">r{n}\n{'ACGT' * (30 + n)}\n" for n in range(20)))
    with pytest.raises(
        UserError, match=r"\(wordpiece\) turns 20 of 20 texts into one unknown.*set data\.tokenizer\.kind to kmers"
    ):
        prepare(TextSpec(source=str(path), tokenizer=WordPiece(vocab_size=100)))


def test_no_record_is_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text("\n\n")
    with pytest.raises(UserError, match="is empty"):
        list(find_documents(str(tmp_path / "a.fa")).pieces())


@pytest.mark.slow
def test_kmers_are_independent_of_cuts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    sequence = "ACGTTGCA" * 25_000
    (tmp_path / "a.fa").write_text(f">long\n{sequence}\n>short\nACG\n")
    for spec in (KMers(k=7), Characters()):
        corpus = prepare(TextSpec(source=str(tmp_path / "a.fa"), tokenizer=spec))
        eos = [corpus.tokenizer.eos_id]
        expected = [*corpus.tokenizer.encode(sequence), *eos, *corpus.tokenizer.encode("ACG"), *eos]
        assert [*corpus.train, *corpus.validation] == expected
    assert len(sequence) > 3 * fasta.PIECE
    assert not any(fasta.PIECE % k for k in range(1, 9))  # all values of k that `KMers` accepts
