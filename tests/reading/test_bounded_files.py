"""Untrusted files are read within their limits: each limit is tested at its value and one beyond it."""

import errno
import io
import os
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from tercet import limits
from tercet.config import UserError
from tercet.reading import bounded_json, files, npy, text_files
from tercet.reading.bounded_json import check_header, parse_json, read_json_file
from tercet.reading.files import check_links, read_regular_file, read_text_file


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1, "a": 1}', "duplicate key 'a'"),
        ('{"b": [{"a": 1, "c": 2, "a": 1}]}', "duplicate key 'a'"),
        ("[NaN]", "NaN is not a number"),
        ("[-Infinity]", "-Infinity is not a number"),
        ("[1e400]", "too large"),
        ("[" * 33 + "]" * 33, "nested more than"),
        ("9" * 101, "a number has 101 digits"),
        ("1 2", "Extra data"),
    ],
)
def test_json_beyond_a_limit_is_rejected(
    text: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounded_json, "MAX_JSON_DEPTH", 32)
    monkeypatch.setattr(bounded_json, "MAX_DIGITS", 100)
    with pytest.raises(ValueError, match=words):
        parse_json(text)
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=r"is not valid JSON .*restore the saved file"):
        read_json_file(tmp_path / "a.json")


def test_json_at_its_bounds_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_json, "MAX_JSON_DEPTH", 32)
    monkeypatch.setattr(bounded_json, "MAX_DIGITS", 100)
    deep = parse_json("[" * 32 + "1" + "]" * 32)
    for _ in range(32):
        (deep,) = deep
    assert deep == 1
    assert parse_json(b'{"x": [' + b"9" * 100 + b', 1e300, "\xc3\xa9"]}') == {"x": [int("9" * 100), 1e300, "é"]}


def test_safetensors_header_has_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_json, "MAX_HEADER_BYTES", 16)
    path = tmp_path / "a.safetensors"
    path.write_bytes((16).to_bytes(8, "little") + b"{}".ljust(16) + b"no JSON")
    check_header(path)
    path.write_bytes((17).to_bytes(8, "little") + b"{}".ljust(17))
    with pytest.raises(ValueError, match="has 17 bytes"):
        check_header(path)


def test_file_of_maximum_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"12345\r\n")
    assert read_regular_file(path, 7) == b"12345\r\n"
    assert read_text_file(path, 7) == "12345\r\n"  # line ends are unchanged
    with pytest.raises(UserError, match="it has 7 bytes, more than the allowed 6"):
        read_regular_file(path, 6)


def test_links_stay_in_the_folder_or_in_the_cache_of_its_snapshot(tmp_path: Path) -> None:
    places = ("snapshots/1", "snapshots/12", "blobs", "blobs.secret", "plain/1", "secret")
    for place in places:
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "file").write_text("1")
    snapshot, plain = tmp_path / "snapshots" / "1", tmp_path / "plain" / "1"
    os.symlink("file", snapshot / "inside")
    os.symlink("../../blobs/file", snapshot / "blob")
    check_links(snapshot)
    for folder, target in [
        (snapshot, "../12/file"),
        (snapshot, "../../blobs.secret/file"),
        (snapshot, "../../secret/file"),
        (plain, "../../blobs/file"),  # not a snapshot of a cache
    ]:
        os.symlink(target, folder / "out")
        with pytest.raises(UserError, match="is a link out of its folder"):
            check_links(folder)
        (folder / "out").unlink()


def test_text_file_ends_where_it_ended_when_it_was_opened(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\n")
    with text_files.open_regular_file(path) as file, path.open("ab") as growing:
        growing.write(b"two\n")
        growing.flush()
        assert file.read(100) == b"one\n"
        assert file.read(100) == b""
    with text_files.open_regular_file(path) as file:
        os.truncate(path, 3)
        with pytest.raises(UserError, match="became shorter"):
            file.read(100)


def test_file_that_unpacks_to_too_much_is_rejected() -> None:
    ratio, minimum = limits.UNPACKED_RATIO, limits.UNPACKED_BYTES
    text_files.check_unpacked(Path("a"), 1, minimum)  # small files may unpack to any size
    packed = minimum  # so that the ratio decides
    text_files.check_unpacked(Path("a"), packed, ratio * packed)
    with pytest.raises(UserError, match="unpack to more than"):
        text_files.check_unpacked(Path("a"), packed, ratio * packed + 1)


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_array_header_round_trip(version: tuple[int, int]) -> None:
    array = np.arange(6, dtype="<i2").reshape(2, 3)
    for order in ("C", "F"):
        file = io.BytesIO()
        np.lib.format.write_array(file, np.asarray(array, order=order), version=version)
        file.seek(0)
        header = npy.read_array_header(file)
        assert header == (np.dtype("<i2"), (2, 3), order == "F")
        assert len(file.read()) == 12
    with pytest.raises(ValueError, match="not a NumPy array"):
        npy.read_array_header(io.BytesIO(b"\x93NUMPY\x01\x00\x02\x00{}"))


def test_missing_file_is_reported_with_its_path(tmp_path: Path) -> None:
    for read in (lambda path: files.check_regular_file(path), lambda path: read_regular_file(path, 9)):
        with pytest.raises(UserError, match=r"cannot read .*missing: No such file"):
            read(tmp_path / "missing")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (FileNotFoundError(errno.ENOENT, "No such file"), "No such file; check the path or copy the file there"),
        (PermissionError(errno.EACCES, "Permission denied"), "Permission denied; check its permissions"),
        (
            OSError(errno.EMFILE, "Too many files"),
            "Too many files; raise the limit of open files (ulimit -n)",
        ),
        (OSError(errno.EIO, "Input/output error"), "Input/output error; copy it again"),
        (ValueError("embedded null byte"), "embedded null byte; check the path"),
    ],
    ids=lambda value: "" if isinstance(value, str) else type(value).__name__,
)
def test_remedy_fits_the_read_error(
    error: Exception, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a"
    path.write_text("a")
    monkeypatch.setattr(files, "open_without_waiting", mock.Mock(side_effect=error))
    with pytest.raises(UserError) as rejection:
        read_text_file(path, 9)
    assert str(rejection.value) == f"cannot read {path}: {message}"
