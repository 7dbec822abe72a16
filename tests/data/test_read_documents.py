"""`read_documents`: documents of files and folders with ids, in the order of their paths."""

from pathlib import Path

import pytest

from tercet import limits
from tercet.config import UserError
from tercet.data import read_documents
from tercet.data.extraction.read_documents import DocumentFolder


def test_documents_have_the_paths_of_their_files(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "one.txt").write_text("a\n\nb")
    (tmp_path / "a.fa").write_text(">x\nACG\nT\n>y\nAC\n")
    (tmp_path / "c.csv").write_text("text,n\nrow,1\n")
    (tmp_path / ".hidden.txt").write_text("no")
    (tmp_path / "d.zip").write_bytes(b"PK")
    expected = [("a.fa#x", "ACGT"), ("a.fa#y", "AC"), ("b/one.txt", "a\n\nb"), ("c.csv", "row")]
    assert list(read_documents(tmp_path)) == expected
    blocks = list(read_documents(tmp_path / "b", documents="blank_line"))
    assert blocks == [("one.txt#0", "a"), ("one.txt#1", "b")]
    assert list(read_documents(tmp_path / "b" / "one.txt")) == [("one.txt", "a\n\nb")]
    folder = DocumentFolder(root=tmp_path)
    folder.files()
    assert folder.left_out == {".zip": 1}


def test_long_documents_are_whole_or_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "word " * 30_000  # read in several pieces
    (tmp_path / "long.txt").write_text(text)
    assert list(read_documents(tmp_path)) == [("long.txt", text)]
    monkeypatch.setattr(limits, "DOCUMENT_BYTES", 1000)
    with pytest.raises(UserError, match="a document of more than 1,000 characters; split it"):
        list(read_documents(tmp_path))


def test_missing_and_empty_folders_are_rejected_at_once(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file or folder"):
        read_documents(tmp_path / "none")
    (tmp_path / "a.png").write_bytes(b"")
    with pytest.raises(UserError, match="has no readable file"):
        read_documents(tmp_path)
