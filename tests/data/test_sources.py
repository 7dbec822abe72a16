"""Reading files loses no text, cuts do not affect any tokenizer, and errors are reported in one line."""

import gzip
import json
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from tercet.config import UserError
from tercet.data.sources import documents as documents_module
from tercet.data.sources import files as files_module
from tercet.data.sources.documents import DocumentFiles, cut_pieces
from tercet.tokens import BPE, Tokenizer, Words


def documents(path: Path, **settings: str) -> list[str]:
    texts, parts = list[str](), list[str]()
    for piece in DocumentFiles(root=path, **settings).pieces():
        parts.append(piece.text)
        if piece.last:
            texts.append("".join(parts))
            parts = []
    assert not parts, "the last document has no end"
    return texts


def write_file(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a", "a.py", "a.txt.gz"])
def test_a_text_file_is_one_document(tmp_path: Path, name: str) -> None:
    text = "one\r\ntwo\rthree\0\n\n🙂 "
    assert documents(write_file(tmp_path / name, text.encode())) == [text]


@given(text=st.text(st.characters(codec="utf-8"), min_size=1).filter(lambda text: text.count("\0") < 8))
def test_any_text_is_read_exactly(text: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = write_file(tmp_path_factory.mktemp("any") / "a.txt", text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files_module, "BLOCK", 3)  # blocks end within characters
        read = [piece.text for piece in DocumentFiles(root=path).pieces()] if text != "\ufeff" else [text]
    assert "".join(read) == (text if text == "\ufeff" else text.removeprefix("\ufeff"))


def test_a_byte_order_mark_is_not_text(tmp_path: Path) -> None:
    assert documents(write_file(tmp_path / "a.txt", b"\xef\xbb\xbfhello")) == ["hello"]
    assert documents(write_file(tmp_path / "b.txt", "hello".encode("utf-16")), encoding="utf-16") == ["hello"]
    assert documents(write_file(tmp_path / "c.txt", "naïve".encode("latin-1")), encoding="latin-1") == ["naïve"]


def test_a_folder_is_read_in_order_without_hidden_files(tmp_path: Path) -> None:
    write_file(tmp_path / "b.md", b"second")
    write_file(tmp_path / "a" / "z.txt", b"first")
    write_file(tmp_path / "c.jsonl.gz", b'{"text": "third"}\n{"text": ""}\n\n{"text": "fourth"}')
    parquet.write_table(pyarrow.table({"text": ["fifth", None, "sixth"]}), tmp_path / "d.parquet")
    write_file(tmp_path / "e.parquet.gz", (tmp_path / "d.parquet").read_bytes())
    for name in (".hidden.txt", ".git/a.txt", "image.png", "empty.txt"):
        write_file(tmp_path / name, b"" if name == "empty.txt" else b"no")
    assert documents(tmp_path) == ["first", "second", "third", "fourth", "fifth", "sixth", "fifth", "sixth"]


def test_fields_by_another_name(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.jsonl", json.dumps({"body": "naïve\n🙂", "id": 1}).encode())
    assert documents(path, text_field="body") == ["naïve\n🙂"]


SPLIT_TEXT = "It's 3 o'clock.\nThe line, (next)\n\nHe said:\r\n  \"the\tend\"\n\n\nüber\n\u0301x the\n the\n'll"
TOKENIZERS = [Tokenizer.train(BPE(vocab_size=320), [SPLIT_TEXT] * 9), Tokenizer.train(Words(), [SPLIT_TEXT])]


@pytest.mark.parametrize("tokenizer", TOKENIZERS, ids=lambda tokenizer: tokenizer.kind)
@given(text=st.text(st.sampled_from("ab'sl 1.\n\n\n\r\t\x1c\u0301\u3000é"), min_size=1, max_size=60))
def test_tokenizers_are_independent_of_cuts(tokenizer: Tokenizer, text: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents_module, "PIECE", 4)
        patch.setattr(documents_module, "MAX_PIECE", 10**6)
        pieces = list(cut_pieces([text[:7], text[7:]]))
        patch.setattr(
            documents_module, "MAX_PIECE", 4
        )  # and in a text without single newlines, before the last of a run
        patch.setattr(documents_module, "_SINGLE_NEWLINE", documents_module.re.compile("(?!)"))
        place = documents_module._LAST_OF_RUN.search(text, 4)
    assert "".join(piece.text for piece in pieces) == text
    assert [piece.last for piece in pieces] == [False] * (len(pieces) - 1) + [True]
    assert [token for piece in pieces for token in tokenizer.encode(piece.text)] == tokenizer.encode(text)
    if place:
        halves = tokenizer.encode(text[: place.start()]) + tokenizer.encode(text[place.start() :])
        assert halves == tokenizer.encode(text)


def test_pieces_are_of_one_size(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", b"a line of thirty characters...\n" * 120_000)
    sizes = [len(piece.text) for piece in DocumentFiles(root=path).pieces()]
    assert len(sizes) == -(-31 * 120_000 // (documents_module.PIECE + 30))
    assert all(documents_module.PIECE <= size < documents_module.PIECE + 31 for size in sizes[:-1])


@pytest.mark.slow
def test_five_megabytes_without_a_newline(tmp_path: Path) -> None:
    pieces = list(DocumentFiles(root=write_file(tmp_path / "a.txt", "é".encode() * 5_000_000)).pieces())
    assert [len(piece.text) for piece in pieces] == [documents_module.MAX_PIECE, 5_000_000 - documents_module.MAX_PIECE]


@pytest.mark.slow
def test_windows_newlines_are_cut_in_time() -> None:
    pieces = list(cut_pieces(["a line of text\r\n" * 400_000]))
    assert len(pieces) > 1
    assert all(piece.text.startswith("\n") for piece in pieces[1:])


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    path = write_file(tmp_path / "a.txt", b"a line of thirty characters...\n" * 1_000_000)
    tracemalloc.start()
    try:
        total = sum(len(piece.text) for piece in DocumentFiles(root=path).pieces())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert total == 31_000_000
    assert peak < 12 << 20


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


BROKEN: dict[str, tuple[Callable[[Path], Path], str]] = {
    "missing": (lambda at: (write_file(at / "input.txt", b"x"), at / "inptu.txt")[1], "did you mean 'input.txt'"),
    "no parent": (lambda at: at / "none" / "a.txt", "its folder does not exist either"),
    "empty file": (lambda at: write_file(at / "a.txt", b""), "is empty"),
    "empty gzip": (lambda at: write_file(at / "a.txt.gz", b""), "is empty"),
    "empty folder": (lambda at: make_folder(at / "a"), "has no readable file"),
    "nothing readable": (lambda at: write_file(at / "a" / "b.png", b"x").parent, "has no readable file"),
    "not utf-8": (lambda at: write_file(at / "a.txt", b"a" * 11 + b"\xff"), r"byte 11 .*data\.encoding \(--enc"),
    "half a character": (lambda at: write_file(at / "a.txt", b"ab\xe2\x82"), "byte 2 cannot be read"),
    "not gzip": (lambda at: (write_file(at / "b", b"x"), (at / "b").rename(at / "a.gz"))[1], "damaged gzip"),
    "truncated gzip": (
        lambda at: (at / "b.gz").write_bytes(gzip.compress(b"hello" * 99)[:-9]) and at / "b.gz",
        "damaged gzip file",
    ),
    "damaged gzip": (
        lambda at: (at / "b.gz").write_bytes(gzip.compress(b"hello")[:10] + b"\xff" * 20) and at / "b.gz",
        "damaged gzip file",
    ),
    "not json": (lambda at: write_file(at / "a.jsonl", b'{"text": "a"}\n\n{"text": '), r"a\.jsonl line 3 is not JSON"),
    "deep json": (lambda at: write_file(at / "a.jsonl", b'{"text":' + b"[" * 100_000), "line 1 is not JSON"),
    "deep array": (
        lambda at: write_file(at / "a.json", b"[" * 100_000),
        r"a.json item 1 is not JSON \(nested too deeply\)",
    ),
    "not an object": (lambda at: write_file(at / "a.jsonl", b"1"), "line 1 is not a JSON object"),
    "no item": (
        lambda at: write_file(at / "a.jsonl", b'[{"text": "a"},\n1]'),
        "item 2 is not a JSON object; .*for each item",
    ),
    "half an array": (lambda at: write_file(at / "a.json", b'[{"text": "a"}, {"te'), "item 2 is not JSON"),
    "more than an array": (
        lambda at: write_file(at / "a.json", b'[{"text": "a"}]\n{}'),
        "has text after the end of its array",
    ),
    "no field": (
        lambda at: write_file(at / "a.jsonl", b'{"txt": "a"}'),
        "line 1 has no field 'text'; did you mean 'txt'",
    ),
    "not text": (lambda at: write_file(at / "a.jsonl", b'{"text": 5}'), "line 1: the field 'text' is not text"),
    "surrogate": (
        lambda at: write_file(at / "a.jsonl", b'{"text": "a\\ud800"}'),
        "line 1: the text has half a surrogate",
    ),
    "only blank": (lambda at: write_file(at / "a.jsonl", b"\n\n"), "is empty"),
    "not parquet": (lambda at: write_file(at / "a.parquet", b"PAR1 no"), "not a complete Parquet file"),
}


@pytest.mark.parametrize(("make", "words"), BROKEN.values(), ids=BROKEN)
def test_errors_are_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], words: str
) -> None:
    monkeypatch.setattr(files_module, "BLOCK", 7)
    with pytest.raises(UserError, match=words) as error_info:
        documents(make(tmp_path))
    assert "\n" not in str(error_info.value)


def test_parquet_without_the_column(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"txt": ["a"], "n": [1]}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match="no column 'text'; did you mean 'txt'"):
        documents(tmp_path / "a.parquet")
    with pytest.raises(UserError, match="the column 'n' is not text"):
        documents(tmp_path / "a.parquet", text_field="n")


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"pip install 'tercet\[parquet\]'"):
        documents(write_file(tmp_path / "a.parquet", b"PAR1"))


def test_the_hash_sees_names_and_bytes(tmp_path: Path) -> None:
    write_file(tmp_path / "x" / "a.txt", b"one")
    hashes = {DocumentFiles(root=tmp_path / "x").hash()}
    write_file(tmp_path / "x" / "a.txt", b"two")
    hashes.add(DocumentFiles(root=tmp_path / "x").hash())
    (tmp_path / "x" / "a.txt").rename(tmp_path / "x" / "b.txt")
    hashes.add(DocumentFiles(root=tmp_path / "x").hash())
    assert len(hashes) == 3
    (tmp_path / "x").rename(tmp_path / "y")
    assert DocumentFiles(root=tmp_path / "y").hash() in hashes
