"""A file that a command will write is checked before the work, so that an error does not cost its result."""

import os
from pathlib import Path
from unittest import mock

import pytest

from tercet.config import UserError
from tercet.storage import check_output_file


def check(path: Path | str, inputs: tuple[Path | str | None, ...] = ()) -> None:
    check_output_file(Path(path), "--output", example="x.npz", inputs=inputs)


def test_new_and_old_files_are_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("old").write_text("")
    Path("input").write_text("")
    for name in ("new", "old", "dé # ?", tmp_path / "new"):
        check(name, ("input", None, "nothing", "-"))
    (tmp_path / "dangling").symlink_to("nothing")
    check("dangling")
    assert sorted(os.listdir()) == ["dangling", "input", "old"]


def test_unsuitable_files_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    Path("file").write_text("")
    Path("link").symlink_to("file")
    for path, message in (
        ("folder", "--output folder is a folder; pass a file name, such as folder/x.npz"),
        ("none/x", "--output none/x: no such folder: none; create it first"),
        ("file/x", "--output file/x: no such folder: file; create it first"),
    ):
        with pytest.raises(UserError) as error:
            check(path)
        assert str(error.value) == message
    for path, other in (("file", "file"), ("file", tmp_path / "file"), ("link", "file"), ("file", "link")):
        with pytest.raises(UserError, match=f"^--output {path} is also an input of this command; choose another file"):
            check(path, ("none", None, other))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no named pipes")
def test_a_pipe_is_not_replaced_by_a_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UserError, match="pipe is not a regular file; pass the name of a new file"):
        check(tmp_path / "pipe")


def test_folder_that_is_not_writable_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", mock.Mock(return_value=False))  # permissions do not apply to root
    with pytest.raises(UserError, match=r"the folder .* is not writable; choose another folder"):
        check(tmp_path / "x.npz")
