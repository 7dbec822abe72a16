"""The summary of data is correct: counts, lengths, scripts, duplicates and errors."""

import gzip
import json
import tracemalloc
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import ConversationsSpec, Documents, LabelsSpec, PairsSpec, TextSpec, measure_tokens, summarize_data
from tercet.data.datasets.recognize import recognize
from tercet.data.sources import documents as documents_module
from tercet.data.sources import files as files_module
from tercet.data.summary.scripts import find_script
from tercet.data.summary.statistics import Lengths
from tercet.tokens import Characters, Tokenizer


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


@given(st.lists(st.integers(0, 50), min_size=1))
def test_lengths_are_those_of_all(lengths: list[int]) -> None:
    summary = Lengths.of(Counter(lengths))
    ordered = sorted(lengths)
    assert (summary.total, summary.min, summary.max) == (sum(lengths), ordered[0], ordered[-1])
    assert summary.median == np.percentile(lengths, 50, method="inverted_cdf")
    assert summary.p95 == np.percentile(lengths, 95, method="inverted_cdf")


@pytest.mark.slow
@settings(max_examples=50)
@given(texts=st.lists(st.text("aб \n.é", max_size=12), min_size=1, max_size=8))
def test_summary_of_texts(texts: list[str], tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("look") / "a.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    full = [text for text in texts if text.strip()]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents_module, "PIECE", 3)  # texts come in several pieces
        if not full:
            with pytest.raises(UserError, match="is empty"):
                summarize_data(path)
            return
        summary = summarize_data(path)
    assert (summary.count, summary.empty) == (len(full), len(texts) - len(full))
    assert summary.duplicates == len(full) - len(set(full))
    text = summary.texts["text"]
    assert text.characters == Lengths.of(Counter(map(len, full)))
    assert text.words == Lengths.of(Counter(len(content.split()) for content in full))
    letters = Counter(character for content in full for character in content if character.isalpha())
    cyrillic = letters["б"] / letters.total() if letters else 0
    assert text.scripts.get("Cyrillic", 0) == pytest.approx(cyrillic)
    assert sum(text.scripts.values()) == pytest.approx(1 if letters else 0)


@pytest.mark.parametrize(
    ("character", "script"),
    [("a", "Latin"), ("Ж", "Cyrillic"), ("字", "Cjk"), ("ﾊ", "Katakana"), ("ａ", "Latin"), ("1", None), (" ", None)],
)
def test_scripts(character: str, script: str | None) -> None:
    assert find_script(character) == script


def test_sequence_is_one_word_despite_cuts(tmp_path: Path) -> None:
    (tmp_path / "a.fa").write_text(">a\n" + "ACGT" * 40_000)
    summary = summarize_data(tmp_path / "a.fa")
    assert (summary.format, summary.texts["text"].words.max, summary.count) == ("FASTA", 1, 1)


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
def test_invalid_utf8_is_reported_with_positions(block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tercet.data.summary.invalid_bytes.BLOCK", block)
    monkeypatch.setattr(files_module, "BLOCK", block)
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress("naïve\nbad ".encode() + b"\xe9\xe8 x\n\nx\xff" + "é\n".encode() + b"\xe2\x82"))
    report = summarize_data(path)
    assert report.invalid == 5
    assert [(place.line, place.byte) for place in report.invalid_places] == [
        (2, 11),
        (2, 12),
        (4, 18),
        (5, 22),
        (5, 23),
    ]
    assert (report.count, report.format) == (1, "text, gzip")
    latin = tmp_path / "b.txt"
    latin.write_bytes(b"na\xefve")
    assert summarize_data(TextSpec(source=str(latin), encoding="latin-1")).invalid == 0


def test_pairs_and_labels(tmp_path: Path) -> None:
    (tmp_path / "pairs.csv").write_text("source,target\na b,c\na b,c\n,d\n")
    summary = summarize_data(tmp_path / "pairs.csv")
    assert (summary.unit, summary.count, summary.empty, summary.duplicates) == ("pairs", 2, 1, 1)
    assert summary.texts["source"].words.max == 2
    (tmp_path / "labels.csv").write_text("text,label\nno,x\nyes,y\nyes,x\n,x\n")
    summary = summarize_data(tmp_path / "labels.csv")
    assert (summary.unit, summary.count, summary.empty, summary.duplicates) == ("labeled texts", 3, 1, 1)
    assert summary.labels == {"x": 2, "y": 1}


def conversation_line(*contents: str) -> str:
    roles = ("user", "assistant")
    messages = [{"role": roles[n % 2], "content": content} for n, content in enumerate(contents)]
    return json.dumps({"messages": messages}) + "\n"


def test_conversations(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(
        conversation_line("hi", "да да")
        + conversation_line("so", "b", "c")
        + conversation_line("hi", "да да")
        + conversation_line("d")
        + conversation_line("e", " ")
    )
    summary = summarize_data(path)
    assert (summary.unit, summary.count, summary.empty, summary.duplicates) == ("conversations", 3, 2, 1)
    assert (summary.turns, summary.roles) == (Lengths.of(Counter([2, 3, 2])), {"user": 4, "assistant": 3})
    assert summary.texts["assistant"].words == Lengths.of(Counter([2, 1, 2]))
    assert summary.texts["assistant"].scripts == pytest.approx({"Cyrillic": 8 / 9, "Latin": 1 / 9})
    assert "system" not in summary.texts
    (tmp_path / "b.tsv").write_text("question\tanswer\na\tb\n")
    table = summarize_data(recognize(str(tmp_path / "b.tsv"), prompt_field="question", response_field="answer"))
    assert (table.count, table.format) == (1, "TSV, columns 'question' and 'answer'")
    path.write_text(conversation_line("a"))
    with pytest.raises(UserError, match="no conversation with an answer"):
        summarize_data(path)


def test_tokens_of_conversations_are_those_that_training_reads(tmp_path: Path) -> None:
    template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}"
    rows = [conversation_line("ab" * n, "c" * n) for n in range(1, 9)]
    (tmp_path / "a.jsonl").write_text("".join(rows) + conversation_line("unanswered"))
    lengths = [3 * n + 2 for n in range(1, 9)]
    spec, tokenizer = recognize(str(tmp_path / "a.jsonl")), Tokenizer.train(Characters(eos=True), ["abc"])
    for max_len in (None, 7, 16, 99):
        measured = measure_tokens(spec, tokenizer=tokenizer, chat_template=template, max_len=max_len)
        assert measured.tokens == Lengths.of(Counter(lengths))
        inputs = [length - 1 for length in lengths]  # the last token is only predicted
        assert measured.longer == sum(n_inputs > max_len for n_inputs in inputs if max_len)
        assert measured.beyond == sum(n_inputs - max_len for n_inputs in inputs if max_len and n_inputs > max_len)
        assert measured.unanswered == sum(2 * n + 1 > max_len for n in range(1, 9) if max_len)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.tsv", b"a\tb\nc\xff\td\xfe\n"),
        ("b.csv", b"text,label\nc\xff,\xfe\n"),
        ("c.csv", b"prompt,response\nc\xff,\xfe\n"),
        ("d.jsonl", b'{"text": "a", "label": 1}\n{"text": "\xff", "label": "\xfe"}\n'),
    ],
)
def test_invalid_utf8_is_reported_and_skipped(name: str, content: bytes, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(content)
    summary, places = summarize_data(tmp_path / name), [content.index(b"\xff"), content.index(b"\xfe")]
    assert summary.invalid == 2
    assert [(place.path, place.line, place.byte) for place in summary.invalid_places] == [
        (str(tmp_path / name), 2, byte) for byte in places
    ]
    assert summary.count == content.count(b"\n") - name.endswith(".csv")


def test_invalid_utf8_is_reported_for_both_files(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(b"\xff\n")
    summary = summarize_data(recognize(str(tmp_path / "a"), str(tmp_path / "b")))
    assert [place.path for place in summary.invalid_places] == [str(tmp_path / "a"), str(tmp_path / "b")]
    with pytest.raises(UserError, match="no such file or folder"):
        summarize_data(recognize(str(tmp_path / "a"), str(tmp_path / "none")))


def test_ids(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[1, 2]\n[]\n[1, 2]\n[7]\n")
    summary = summarize_data(tmp_path / "a.jsonl")
    assert (summary.unit, summary.count, summary.empty, summary.duplicates) == ("lists of ids", 3, 1, 1)
    assert summary.ids == Lengths(total=5, min=1, median=2, p95=2, max=2)
    assert (summary.largest_id, summary.texts) == (7, {})


EXPECTED_SPECS = {
    "a.txt": ("hello\tyou\n", TextSpec),
    "b.tsv": ("hello\tyou\n", PairsSpec),
    "c.tsv": ("id\ttext\n1\tyou\n", TextSpec),
    "d.csv": ("text,label\na,b\n", LabelsSpec),
    "e.csv": ("id,source,target\n1,a,b\n", PairsSpec),
    "f.csv": ("text,n\na,b\n", TextSpec),
    "g.jsonl": ('\n{"source": "a", "target": "b"}\n', PairsSpec),
    "h.jsonl": ('{"text": "a", "label": 1}\n', LabelsSpec),
    "i.jsonl": ('{"tokens": ["a"], "labels": ["b"]}\n', LabelsSpec),
    "j.jsonl": ('{"text": "a"}\n', TextSpec),
    "k.jsonl": ("[[[", TextSpec),
    "l.jsonl": ('{"messages": []}\n', ConversationsSpec),
    "m.jsonl": ('{"conversations": [], "id": 1}\n', ConversationsSpec),
    "n.jsonl": ('{"messages": [], "text": "a"}\n', TextSpec),
    "o.tsv": ("prompt\tresponse\na\tb\n", ConversationsSpec),
    "p.csv": ("messages\na\n", TextSpec),
}


@pytest.mark.parametrize(("name", "content", "expected"), [(n, c, e) for n, (c, e) in EXPECTED_SPECS.items()])
def test_kind_of_file_is_detected(name: str, content: str, expected: type, tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    assert isinstance(recognize(str(tmp_path / name)), expected)


def test_named_things() -> None:
    assert isinstance(recognize("numbers"), PairsSpec)
    assert isinstance(recognize("animals"), TextSpec)
    assert summarize_data("animals").format == "a named dataset"
    with pytest.raises(UserError, match="no such file or folder"):
        summarize_data("nowhere.txt")


def test_tokens_are_those_of_training(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("".join("x" * n + "\n" for n in range(1, 31)))
    lines = TextSpec(source=str(path), documents="line", tokenizer=Characters())
    for spec in (lines, TextSpec(source=str(path), documents="line", tokenizer=Characters(), validation=Documents())):
        measured = measure_tokens(spec, max_len=20)
        assert measured.tokens == Lengths(total=30 * 31 // 2 + 30, min=2, median=16, p95=30, max=31)  # with eos
        assert (measured.longer, measured.beyond, measured.fate) == (11, 66, "split")
    assert measure_tokens(TextSpec(source=str(path), tokenizer=Characters())).tokens.min == 30 * 31 // 2 + 30 + 1
    tokenizer = Tokenizer.train(Characters(pad=True, bos=True), ["abcdefghij"])
    pairs = tmp_path / "pairs.tsv"
    pairs.write_text("".join(f"{'a' * n}\tb{'j' * (n % 3)}\n" for n in range(1, 21)))
    measured = measure_tokens(PairsSpec(source=str(pairs)), tokenizer=tokenizer, max_len=15)
    assert (measured.tokens.max, measured.longer, measured.fate) == (21, 6, "left out")
    labels = tmp_path / "labels.csv"
    labels.write_text("text,label\n" + "".join(f"{'a' * n},{'gh'[n % 2]}\n" for n in range(1, 41)))
    measured = measure_tokens(LabelsSpec(source=str(labels)), tokenizer=tokenizer, max_len=32)
    assert (measured.tokens.max, measured.longer, measured.beyond, measured.fate) == (42, 10, 55, "cut")


@pytest.mark.slow
def test_large_file_needs_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("some words of a line that is not the same as the others\n" * 50_000)
    summarize_data("animals")  # fill caches and import modules
    tracemalloc.start()
    try:
        summary = summarize_data(TextSpec(source=str(path)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert summary.texts["text"].words.total == 13 * 50_000
    assert peak < 32 << 20  # 9 of these are the counts of code points


def test_invalid_header_is_rejected_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"text\rlabel\n1\n")
    with pytest.raises(UserError, match="line 1"):
        summarize_data(tmp_path / "a.csv")
