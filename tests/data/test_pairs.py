"""Line n of one file translates line n of the other, with any characters; errors name the file and line."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.data import PairFiles, read_examples
from tercet.data.sources import files as files_module

SENTENCES = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=20)
ODD = [
    "a\xa0b",
    "a\u2028b",
    "a\u2029b",
    "a\x85b",
    "a\x0bb\x0cb\x1cb",
    "a\rb",
    "👩‍👩‍👧",
    "naïve  twice",
    "<eos>",
    "a\ufeffb",
]


def write_file(path: Path, content: str | bytes) -> Path:
    data = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def two(folder: Path, source: str | bytes, target: str | bytes, end: str = "") -> PairFiles:
    return PairFiles(source=write_file(folder / f"a.de{end}", source), target=write_file(folder / f"a.en{end}", target))


@pytest.mark.parametrize("end", ["", ".gz"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_no_odd_character_splits_or_drops_a_line(tmp_path: Path, end: str, newline: str) -> None:
    targets = [f"line {number}" for number in range(len(ODD))]
    files = two(tmp_path, newline.join(ODD) + newline, newline.join(targets), end)
    assert list(read_examples(files)) == list(zip(ODD, targets, strict=True))


@given(pairs=st.lists(st.tuples(SENTENCES, SENTENCES), max_size=8), last=st.sampled_from(["", "\n"]))
def test_two_files_round_trip(
    pairs: list[tuple[str, str]], last: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sides = [
        [pair[side].removeprefix("\ufeff" * (number == 0)) for number, pair in enumerate(pairs)] for side in (0, 1)
    ]
    whole = [(source.strip(), target.strip()) for source, target in zip(*sides, strict=True)]
    # A last line without text needs its "\n" to count as a line.
    end = last if pairs and all(pairs[-1]) else "\n"
    texts = ["".join(line + "\n" for line in side).removesuffix("\n" if end == "" else "") for side in sides]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "BLOCK", 5)
        files = two(tmp_path_factory.mktemp("two"), *texts)
        assert list(files.examples()) == whole
        complete_pairs = [pair for pair in whole if all(pair)]
        if complete_pairs:
            assert list(read_examples(files)) == complete_pairs
        else:
            with pytest.raises(UserError, match=r"a\.de has no pair with text on both sides"):
                list(read_examples(files))


@pytest.mark.slow
@given(pairs=st.lists(st.tuples(SENTENCES, SENTENCES), min_size=1, max_size=8))
def test_one_file_of_pairs_round_trip(pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("one")
    rows = [json.dumps({"de": source, "en": target, "n": 1}, ensure_ascii=False) for source, target in pairs]
    write_file(folder / "a.jsonl.gz", "\n\n".join(rows))
    files = PairFiles(source=folder / "a.jsonl.gz", source_field="de", target_field="en")
    whole = [(source.strip(), target.strip()) for source, target in pairs]
    assert list(files.examples()) == whole
    without_tabs = [(source.replace("\t", "_"), target.replace("\t", "_")) for source, target in pairs]
    write_file(folder / "a.tsv", "\ufeff" + "".join(f"{source}\t{target}\n" for source, target in without_tabs))
    stripped = [(source.strip(), target.strip()) for source, target in without_tabs]
    assert list(PairFiles(source=folder / "a.tsv").examples()) == stripped


def test_a_byte_order_mark_and_another_encoding(tmp_path: Path) -> None:
    assert list(two(tmp_path, b"\xef\xbb\xbfeins\n", "one\n").examples()) == [("eins", "one")]
    path = write_file(tmp_path / "b.tsv", "süß\tsweet\nö\to\n".encode("utf-16"))
    assert list(PairFiles(source=path, encoding="utf-16").examples()) == [("süß", "sweet"), ("ö", "o")]


def test_pairs_with_an_empty_side_are_left_out(tmp_path: Path) -> None:
    files = two(tmp_path, "a\n\n \nb\n\nc\n", "A\nX\n\n\xa0\n\nC\n")
    assert list(files.examples()) == [("a", "A"), ("", "X"), ("", ""), ("b", ""), ("", ""), ("c", "C")]
    assert list(read_examples(files)) == [("a", "A"), ("c", "C")]
    assert list(PairFiles(source=write_file(tmp_path / "a.tsv", "a\tA\n\nb\t\n")).examples()) == [
        ("a", "A"),
        ("", ""),
        ("b", ""),
    ]


BROKEN: dict[str, tuple[Callable[[Path], PairFiles], str]] = {
    "one line more": (lambda at: two(at, "a\nb\nc\n", "A\nB\n"), r"a\.de has 3 lines and .*a\.en 2; each line of one"),
    "one line less": (lambda at: two(at, "a", "A\nB\n\n\n", ".gz"), r"a\.de\.gz has 1 lines and .*a\.en\.gz 4;"),
    "an empty file": (lambda at: two(at, "", "A\n"), r"a\.de has 0 lines and .* 1;"),
    "both empty": (lambda at: two(at, "", ""), "has no pair with text on both sides"),
    "no target file": (
        lambda at: PairFiles(source=two(at, "a", "b").source, target=at / "a.em"),
        r"a\.em; did you mean 'a\.en'",
    ),
    "a folder": (lambda at: PairFiles(source=two(at, "a", "b").source, target=at), "is a folder|no readable file"),
    "one text file": (
        lambda at: PairFiles(source=two(at, "a", "b").source),
        r"not one of \.tsv, \.csv, \.jsonl; set data\.target",
    ),
    "not utf-8": (lambda at: two(at, b"abc\nd\xff\n", "A\nB\n"), r"a\.de is not utf-8 text: byte 5 .*data\.encoding"),
    "three columns": (
        lambda at: PairFiles(source=write_file(at / "a.tsv", "a\tA\nb\tB\tx\n")),
        r"a\.tsv line 2 has 3 columns between tabs; write a sentence, a tab",
    ),
    "one column": (lambda at: PairFiles(source=write_file(at / "a.tsv.gz", "a A\n")), r"line 1 has 1 column between"),
    "not json": (lambda at: PairFiles(source=write_file(at / "a.jsonl", "\n{")), r"a\.jsonl line 2 is not JSON"),
    "not an object": (
        lambda at: PairFiles(source=write_file(at / "a.jsonl", '"a A"')),
        r'line 1 is not a JSON object; write {"source": ..., "target": ...}',
    ),
    "no key": (
        lambda at: PairFiles(source=write_file(at / "a.jsonl", '{"source": "a", "targt": "A"}')),
        r"line 1 has no field 'target'; did you mean 'targt'\? \(rename it, or set data\.target_language\)",
    ),
    "not text": (
        lambda at: PairFiles(source=write_file(at / "a.jsonl", '{"source": 1, "target": "A"}')),
        r"line 1: the field 'source' is not text; set data\.source_language",
    ),
    "surrogate": (
        lambda at: PairFiles(source=write_file(at / "a.jsonl", '{"source": "\\ud800", "target": "A"}')),
        "half a surrogate",
    ),
}


@pytest.mark.parametrize(("make", "words"), BROKEN.values(), ids=BROKEN)
def test_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], PairFiles], words: str
) -> None:
    monkeypatch.setattr(files_module, "BLOCK", 3)
    with pytest.raises(UserError, match=words) as error_info:
        list(read_examples(make(tmp_path)))
    assert "\n" not in str(error_info.value)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files_module, "BLOCK", 1 << 14)
    files = two(tmp_path, b"a line of thirty characters...\n" * 40_000, b"eine Zeile\n" * 40_000)
    tracemalloc.start()
    try:
        total = sum(1 for _ in read_examples(files))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 40_000
    assert peak < 1 << 20


def test_the_hash_sees_both_files_and_which_is_which(tmp_path: Path) -> None:
    files = two(tmp_path, "a\n", "A\n")
    swapped = PairFiles(source=files.target or files.source, target=files.source)
    hashes = {files.hash(), swapped.hash()}
    write_file(tmp_path / "a.en", "B\n")
    hashes.add(files.hash())
    assert len(hashes) == 3
