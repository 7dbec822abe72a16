"""Files are read by their format, whatever their name is, or rejected by name; folders report skipped files."""

import gzip
import json
import os
import re
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tercet.cli.main import main
from tercet.config import UserError
from tercet.data import ConversationFile, LabelFile, PairFiles, prepare
from tercet.data.datasets.text_datasets import find_text
from tercet.data.sources import files
from tercet.data.sources.documents import SUFFIXES, DocumentFiles
from tercet.data.sources.formats import DOCUMENT_SUFFIXES, TRANSLATION_SUFFIXES, UNREADABLE, describe_left_out
from tercet.data.sources.id_files import IdFile
from tercet.data.specs import TextSpec

VALUES = st.dictionaries(
    st.text(max_size=4), st.one_of(st.text(max_size=9), st.integers(), st.lists(st.none())), max_size=3
)


def texts(path: Path) -> list[str]:
    return [piece.text for piece in DocumentFiles(root=path).pieces()]


@pytest.mark.parametrize("name", ["a.jsonl", "a.JSONL", "a.json", "a.ndjson", "a.Json.GZ"])
@pytest.mark.parametrize("is_array", [True, False])
def test_objects_in_an_array_or_a_line_each(tmp_path: Path, name: str, is_array: bool) -> None:
    rows = [{"text": "The cat sat."}, {"text": "The dog [sat],\n  {too}."}]
    data = (json.dumps(rows, indent=1) if is_array else "\n".join(map(json.dumps, rows))).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(data) if name.endswith("GZ") else data)
    assert texts(path) == [row["text"] for row in rows]
    assert find_text(TextSpec(source=str(path))) == DocumentFiles(root=path)


@pytest.mark.slow
@given(rows=st.lists(VALUES, max_size=6), indent=st.sampled_from([None, 0, 3]), block=st.integers(1, 40))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_array_is_read_in_blocks_of_any_size(
    rows: list[dict[str, object]], indent: int | None, block: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("array") / "a.json"
    path.write_text(" \n" + json.dumps(rows, indent=indent) + "\n ")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "BLOCK", max(3, block))
        assert [row for _, row in files.read_objects(path, "utf-8", "strict", [])] == rows


def test_one_kind_of_reader_for_all_data(tmp_path: Path) -> None:
    pairs, labels, talks = tmp_path / "p.JSON", tmp_path / "l.json", tmp_path / "c.json"
    pairs.write_text(json.dumps([{"source": "a", "target": "A"}]))
    labels.write_text(json.dumps([{"text": "a", "label": "x"}]))
    talks.write_text(json.dumps([{"prompt": "a", "response": "b"}]))
    assert list(PairFiles(source=pairs).examples()) == [("a", "A")]
    assert [example.labels for example in LabelFile(path=labels).examples()] == [("x",)]
    [talk] = ConversationFile(path=talks).examples()
    assert talk.messages[1]["content"] == "b"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("A.CSV", "text,label\nhello there,good\nbye now,bad\n", "labeled texts     2"),
        ("b.json", '[{"text": "The cat sat."}, {"text": "The dog sat."}]\n', "documents         2"),
        ("c.ndjson", '{"text": "The cat sat."}\n', "documents         1"),
        ("D.FASTA", ">s1\nACGT\n", "FASTA"),
        ("E.TSV", "a\tA\nb\tB\n", "pairs              2"),
    ],
)
def test_data_look_reports_the_format(
    name: str, content: str, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_text(content)
    assert main(["data", "look", str(tmp_path / name)]) == 0
    assert words in capsys.readouterr().out


@pytest.mark.parametrize("suffix", sorted(UNREADABLE))
def test_other_formats_are_rejected_by_name(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix.upper()}"
    path.write_text("looks like text")
    remedy = ", which is not supported; convert its text to .txt"
    if suffix in (*DOCUMENT_SUFFIXES, *TRANSLATION_SUFFIXES):
        remedy = "; extract its text: tercet data extract .* --out "
    with pytest.raises(UserError, match=rf"is {UNREADABLE[suffix]}{remedy}"):
        texts(path)
    assert not set(UNREADABLE) & set(SUFFIXES)


@pytest.mark.parametrize(
    ("name", "data", "words"),
    [
        ("a.txt", b"%PDF-1.7 ...", "is PDF"),
        ("a.txt", b"PK\x03\x04rest", "is an archive"),
        ("a", gzip.compress(b"text", mtime=0), "is compressed by gzip"),
        (
            "a.txt",
            "UTF-16 text has zeros".encode("utf-16-le"),
            r"is UTF-16 without a mark \(set .* or binary",
        ),
        ("a.dat", bytes(range(256)) + bytes(99), "is binary"),
        ("a.txt", b"latin\xff", r"is not utf-8 text: .* \(--encoding\)"),
        ("a.tar.gz", gzip.compress(b"text", mtime=0), "is an archive"),
    ],
    ids=["PDF", "zip", "gzip", "UTF-16 without a mark", "binary", "Latin-1", "tar"],
)
def test_binary_file_is_rejected_by_its_first_bytes(name: str, data: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UserError, match=words):
        texts(tmp_path / name)


def test_wide_text_is_read_with_its_encoding(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes("UTF-16 text has zeros".encode("utf-16-le"))
    [piece] = DocumentFiles(root=tmp_path, encoding="UTF_16-LE").pieces()
    assert piece.text == "UTF-16 text has zeros"


def test_a_folder_reads_all_text_and_counts_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    folder, linked_folder = tmp_path / "dir", tmp_path / "other"
    (folder / "sub").mkdir(parents=True)
    linked_folder.mkdir()
    (linked_folder / "in.txt").write_text("linked")
    (folder / "link").symlink_to("../other")
    (folder / "sub" / "back").symlink_to("..")  # a link to a parent folder
    read = ["D.TXT", "a.txt", "b.log", "c.rst", "d.json.txt", "e", "sub/f.Py"]
    for name in read:
        (folder / name).write_text(f"text of {name}")
    for name in ("x.html", "y.HTML", "z.png", ".hidden.txt"):
        (folder / name).write_text("left out")
    (folder / "settings.json").write_text('{"a": 1}')
    (folder / "sub" / "array.JSON").write_text('\n[{"text": "in an array"}]')
    (folder / "program").write_bytes(b"\x7fELF" + bytes(60))
    (folder / "song").write_bytes(b"ID3\xff\xfb\x90\x64")
    files = DocumentFiles(root=folder)
    assert texts(folder) == [*(f"text of {name}" for name in read[:-1]), "linked", "in an array", "text of sub/f.Py"]
    assert files.count_unread_files() == Counter({".html": 2, "": 2, ".json": 1, ".png": 1})
    assert main(["data", "look", str(folder)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"^left out +6 files: 2 without an ending, 2 .html, 1 .json, 1 .png$", out, re.MULTILINE)
    prepare(TextSpec(source=str(folder)))
    note = capsys.readouterr().err
    assert "has files that are not read: 2 without an ending, 2 .html, 1 .json, 1 .png; to read documents, run" in note
    assert f"tercet data extract {folder} --out texts.jsonl" in note


@pytest.mark.parametrize(("name", "flags"), [("a.pdf", ""), ("a.po", "--pairs ")])
def test_folder_of_documents_is_rejected_with_the_command_that_reads_them(
    name: str, flags: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(b"%PDF")
    assert main(["data", "look", str(tmp_path)]) == 2
    assert (
        f"has only documents; extract their text: tercet data extract {tmp_path} {flags}--" in capsys.readouterr().err
    )
    assert describe_left_out(Counter({f".{n}": 9 - n for n in range(7)})) == "9 .0, 8 .1, 7 .2, 6 .3, 12 others"


def test_file_of_ids_is_still_recognized(tmp_path: Path) -> None:
    path = tmp_path / "IDS.NPY"
    import numpy as np

    with path.open("wb") as file:
        np.save(file, np.arange(5, dtype=np.uint16))
    ids = find_text(TextSpec(source=str(path)))
    assert isinstance(ids, IdFile)
    assert [id for block in ids.blocks() for id in block.ids.tolist()] == [0, 1, 2, 3, 4]
    assert ids.size() == os.path.getsize(path)


def test_gzip_file_without_another_suffix_is_read_by_its_content(tmp_path: Path) -> None:
    for name, data in {"notes.gz": b"some text", "b.GZ": "é".encode(), "c.gz": bytes(99), "d.gz": b"%PDF-1"}.items():
        (tmp_path / name).write_bytes(gzip.compress(data))
    (tmp_path / "e.gz").write_bytes(b"not gzip")
    source = DocumentFiles(root=tmp_path, may_be_empty=True)
    assert [path.name for path in source.files()] == ["b.GZ", "e.gz", "notes.gz"]
    assert texts(tmp_path / "notes.gz") == ["some text"]
    assert source.count_unread_files() == {".gz": 2}
    with pytest.raises(UserError, match=r"d\.gz is PDF"):
        texts(tmp_path / "d.gz")
    with pytest.raises(UserError, match=r"e\.gz is a damaged gzip file"):
        texts(tmp_path / "e.gz")
