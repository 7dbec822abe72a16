"""A text file is one document, one per line, or one per paragraph: as set, never guessed."""

import gzip
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.data import TextSpec, prepare
from tercet.data.datasets.text_datasets import find_documents
from tercet.data.sources.line_documents import documents_of_lines, has_document_per_line
from tercet.tokens import Characters

REVIEWS = [
    f"Number {n} was {word} than the {n + 1} before it{', so I went again' * (n % 4)}."
    for n, word in enumerate(random.Random(1).choices(["better", "worse", "longer", "shorter"], k=60))
]


def read(path: Path, **settings: str) -> list[str]:
    texts, text = list[str](), ""
    for piece in find_documents(str(path), **settings).pieces():
        text += piece.text
        if piece.last:
            texts.append(text)
            text = ""
    assert not text
    return texts


@given(st.lists(st.text("ab \t\u2028\x1cé"), max_size=9), st.sampled_from(["\n", "\r\n"]))
def test_each_line_with_text_is_a_document(lines: list[str], end: str) -> None:
    documents = ["".join(chunks) for chunks in documents_of_lines(end.join(lines).split("\n"), "line")]
    assert documents == [line for line in lines if line.strip()]


@given(
    st.lists(st.lists(st.text("ab ", min_size=1).filter(str.strip), min_size=1, max_size=4), min_size=1, max_size=5),
    st.sampled_from(["\n", "\r\n"]),
    st.sampled_from(["", " ", "\t"]),
)
def test_empty_lines_part_documents(documents: list[list[str]], end: str, empty: str) -> None:
    texts = [end.join(lines) for lines in documents]
    separator = end + empty + end
    text = separator + separator.join(texts) + separator
    assert ["".join(chunks) for chunks in documents_of_lines(text.split("\n"), "blank_line")] == texts


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.log"])
def test_the_setting_is_that_of_text_files(name: str, tmp_path: Path) -> None:
    content = b"one\ntwo\n\nthree\n"
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    assert read(path) == [content.decode()]
    assert read(path, documents="line") == ["one", "two", "three"]
    assert read(path, documents="blank_line") == ["one\ntwo", "three"]
    rows = tmp_path / "b.jsonl"
    rows.write_text('{"text": "one\\n\\ntwo"}\n')
    assert read(rows, documents="blank_line") == ["one\n\ntwo"]


def test_named_datasets_are_divided_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.data.datasets.text_datasets.FACTS", ("one.\n\ntwo.", "three."))
    assert ["".join(p.text for p in find_documents("animals").pieces())] == ["one.\n\ntwo. three."]
    assert [piece.text for piece in find_documents("animals", documents="line").pieces()] == ["one.", "two. three."]


def test_lines_that_are_documents_each_end_with_eos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "a.txt"
    path.write_text("".join(line + "\n" for line in REVIEWS))
    whole = prepare(TextSpec(source=str(path), tokenizer=Characters()))
    lines = prepare(TextSpec(source=str(path), tokenizer=Characters(), documents="line"))
    assert len(whole.train_documents) == 1
    eos = lines.tokenizer.eos_id
    assert (lines.train == eos).sum() + (lines.validation == eos).sum() == len(REVIEWS)
    starts = lines.train_documents.tolist()
    assert lines.tokenizer.decode(lines.train[starts[4] : starts[5]]) == REVIEWS[4]


WRAPPED = (
    "The sun went down behind the hills and\nnobody had seen where the others went\n"
    "since the morning. It was cold, and\n"
)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\n".join(REVIEWS) + "\n", True),
        ("\n".join(f"{n}: " + "word " * 40 for n in range(30)) + "\n", True),  # long, without sentences
        ("\n".join(REVIEWS[:15]) + "\n", False),  # too few
        ("\n\n".join(REVIEWS) + "\n", False),
        (WRAPPED * 20, False),
        ("def f(x):\n    return g(x) + h(x) + 1\n" * 30, False),
        ("KING:\nWhat say you to that, my noble lord?\nNothing.\n" * 30, False),
        ("", False),
        ("word " * 100_000, False),
    ],
    ids=["reviews", "long lines", "few", "paragraphs", "wrapped", "code", "play", "nothing", "one line"],
)
def test_text_with_one_document_per_line_is_detected(text: str, expected: bool) -> None:
    assert has_document_per_line(text) is expected


def test_the_hint_is_one_line_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "reviews.txt"
    path.write_text("".join(line + "\n" for line in REVIEWS))
    corpus = prepare(TextSpec(source=str(path), tokenizer=Characters()))
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "data.documents: line (--documents line)" in err
    assert len(corpus.train_documents) == 1
    prepare(TextSpec(source=str(path), tokenizer=Characters()))  # read from the cache, which prints no second hint
    prepare(TextSpec(source=str(path), tokenizer=Characters(), documents="line"))
    assert capsys.readouterr() == ("", "")
