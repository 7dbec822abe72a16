"""A manifest covers each byte of its folder, reads see one state, and only files of dead writers are removed."""

import os
from pathlib import Path

import pytest

from tercet.config import UserError
from tercet.storage import DamagedFile, Manifest, atomic, read_manifest, read_whole, write_folder
from tercet.storage import manifest as storage_manifest


def write(folder: Path, text: str) -> None:
    with write_folder(folder) as new:
        (new / "one").write_text(text)


def test_each_byte_of_each_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(storage_manifest, "BLOCK", 2)
    files = {"one": b"12345", "sub/two": b"6", "sub/deeper/three": b"78"}
    with write_folder(tmp_path / "a") as new:
        for name, data in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            (new / name).write_bytes(data)
        (new / ".hidden").write_bytes(b"9")
    manifest = read_manifest(tmp_path / "a")
    assert manifest is not None
    assert sorted(manifest.files) == sorted(files)
    for name, data in files.items():
        for place in range(len(data)):
            (tmp_path / "a" / name).write_bytes(data[:place] + b"x" + data[place + 1 :])
            with pytest.raises(DamagedFile, match=name):
                manifest.check(tmp_path / "a")
        (tmp_path / "a" / name).write_bytes(data)
    manifest.check(tmp_path / "a")


def test_folder_replaced_during_a_read_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    write(folder, "old")
    texts: list[str] = []

    def read(manifest: Manifest | None) -> str:
        texts.append((folder / "one").read_text())
        if len(texts) == 1:
            write(folder, "newer")
        if len(texts) == 2:
            write(folder, "newest")
            raise UserError("a file is gone")
        return texts[-1]

    assert read_whole(folder, read) == "newest"
    assert texts == ["old", "newer", "newest"]


def test_only_files_of_dead_local_writers_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = atomic._host()
    left = [f".a.{host}-1-0.new", f".a.{host}-999-0.new", ".a.other_machine-999-0.new", f".b.{host}-999-0.new"]
    for name in left:
        (tmp_path / name).write_text("half")
    monkeypatch.setattr(atomic, "is_alive", lambda pid: pid == 1)
    atomic.write_atomically(tmp_path / "a", b"whole")
    assert sorted(os.listdir(tmp_path)) == sorted(["a", left[0], *left[2:]])
