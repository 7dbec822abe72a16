"""A folder is the old one or the new one, each file is known by its hash, and one process owns it."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tercet.config import UserError
from tercet.storage import (
    DamagedFile,
    FileHash,
    FolderInUse,
    Manifest,
    atomic,
    lock_folder,
    read_manifest,
    read_sealed_json,
    read_whole,
    replace_folder,
    write_folder,
    write_sealed_json,
)


def write(folder: Path, **texts: str) -> None:
    with write_folder(folder) as new:
        for name, text in texts.items():
            (new / name).write_text(text)


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir() if path.name != "manifest.json"}


def manifest_of(folder: Path) -> Manifest:
    manifest = read_manifest(folder)
    assert manifest is not None
    return manifest


def replace_half(folder: Path, error: BaseException) -> None:
    with replace_folder(folder) as new:
        (new / "one").write_text("half")
        raise error


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_folder_takes_the_place_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_exchange: bool
) -> None:
    if not can_exchange:
        monkeypatch.setattr(atomic, "_exchange", lambda *_: False)
    write(tmp_path / "deep" / "a", one="1", two="2")
    with replace_folder(tmp_path / "deep" / "a", keep=lambda name: name == "two") as new:
        (new / "one").write_text("new")
        assert contents(tmp_path / "deep" / "a") == {"one": "1", "two": "2"}  # until all is written
    assert contents(tmp_path / "deep" / "a") == {"one": "new", "two": "2"}
    assert os.listdir(tmp_path / "deep") == ["a"]


def test_a_failure_leaves_all_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "a", one="1")
    for folder in (tmp_path / "a", tmp_path / "b" / "c"):
        with pytest.raises(KeyboardInterrupt):
            replace_half(folder, KeyboardInterrupt())
    assert contents(tmp_path / "a") == {"one": "1"}
    assert os.listdir(tmp_path) == ["a"]


KILLED = """
import os, signal, sys
from pathlib import Path
from tercet.storage import atomic, replace_folder
moment = sys.argv[2]
rename = os.replace
def dies(old, new):
    rename(old, new)
    if moment == "without exchange":
        os.kill(os.getpid(), signal.SIGKILL)
if moment == "without exchange":
    atomic._exchange = lambda *_: False
os.replace = dies
with replace_folder(Path(sys.argv[1])) as new:
    (new / "one").write_text("new")
    if moment == "writing":
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("moment", ["writing", "without exchange"])
def test_what_a_killed_process_left_goes_or_comes_back(tmp_path: Path, moment: str) -> None:
    folder = tmp_path / "a"
    write(folder, one="1")
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), moment], check=False)
    assert ended.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    with pytest.raises(RuntimeError):
        replace_half(folder, RuntimeError())
    assert contents(folder) == {"one": "1"}
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
@given(st.data())
def test_any_changed_bit_is_noticed(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("folder") / "a"
    with write_folder(folder) as new:
        (new / "one").write_bytes(data.draw(st.binary(min_size=1, max_size=100)))
        (new / "sub").mkdir()
        (new / "sub" / "two").write_bytes(data.draw(st.binary(min_size=1)))
    manifest_of(folder).check(folder)
    path = folder / data.draw(st.sampled_from(["one", "sub/two", "manifest.json"]))
    damaged = bytearray(path.read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if path.name == "manifest.json" and _parsed(damaged) == _parsed(path.read_bytes()):
        return  # white space
    path.write_bytes(damaged)
    with pytest.raises(DamagedFile, match=path.name):
        manifest_of(folder).check(folder)


def _parsed(data: bytes | bytearray) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", one="1", two="2")
    (tmp_path / "a" / "one").unlink()
    manifest = manifest_of(tmp_path / "a")
    with pytest.raises(DamagedFile, match=r"a/one is missing; put back"):
        manifest.check(tmp_path / "a")
    manifest.check(tmp_path / "a", ["two"])


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
@pytest.mark.parametrize("name", ["one", "manifest.json"])
def test_what_is_no_file_is_not_read(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    write(tmp_path / "a", one="1")
    (tmp_path / "a" / name).unlink()
    make(tmp_path / "a" / name)
    with pytest.raises(DamagedFile, match=name):
        manifest_of(tmp_path / "a").check(tmp_path / "a")


def test_a_file_that_may_grow(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\n")
    manifest = Manifest({"log": FileHash.of(tmp_path / "log")})
    (tmp_path / "log").write_text("one\ntwo\n")
    manifest.check(tmp_path, grown=True)
    with pytest.raises(DamagedFile):
        manifest.check(tmp_path)
    (tmp_path / "log").write_text("two\none\n")
    with pytest.raises(DamagedFile):
        manifest.check(tmp_path, grown=True)


def test_a_seal(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_sealed_json(path, {"é": 1, "new": 2})
    assert read_sealed_json(path) == {"é": 1, "new": 2}
    for damaged in ("", "[]", "{", "[" * 100_000, '{"b": 2, "checksum": "1"}', '{"b": 2}'):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"a\.json is damaged"):
            read_sealed_json(path)
    assert read_sealed_json(path, since="new") == {"b": 2}  # written before there were seals
    path.write_text('{"b": 2, "new": 2}')
    with pytest.raises(UserError, match=r"a\.json is damaged"):
        read_sealed_json(path, since="new")


def test_a_reader_sees_one_state(tmp_path: Path) -> None:
    """While another exchanges the folder again and again, what is read belongs together."""
    folder, stop, seen = tmp_path / "a", threading.Event(), set[str]()
    write(folder, one="0", two="0")

    def exchange() -> None:
        number = 0
        while not stop.is_set():
            number += 1
            write(folder, one=str(number), two=str(number))

    def read(manifest: Manifest | None) -> tuple[str, str]:
        assert manifest is not None
        manifest.check(folder)
        try:
            return (folder / "one").read_text(), (folder / "two").read_text()
        except FileNotFoundError:
            raise UserError("gone") from None

    writer = threading.Thread(target=exchange)
    writer.start()
    try:
        for _ in range(200):
            one, two = read_whole(folder, read)
            assert one == two
            seen.add(one)
    finally:
        stop.set()
        writer.join()
    assert len(seen) > 1


OWNS = """
import sys, time
from pathlib import Path
from tercet.storage import lock_folder
with lock_folder(Path(sys.argv[1])):
    print("owns", flush=True)
    time.sleep(60)
"""


def test_one_owner(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", OWNS, str(tmp_path)], stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"owns\n"
        words = rf"is in use by process {owner.pid} on .*, since \d{{4}}-\d\d-\d\d .*; stop it first"
        with pytest.raises(FolderInUse, match=words), lock_folder(tmp_path):
            pass
        (tmp_path / ".owner.json").write_text("[")
        with pytest.raises(FolderInUse, match=r"is in use by another process"), lock_folder(tmp_path):
            pass
        owner.kill()  # a dead owner's lock is taken over
    with lock_folder(tmp_path), pytest.raises(FolderInUse, match=f"process {os.getpid()} "), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        assert (tmp_path / ".owner.json").exists()
    assert not (tmp_path / ".owner.json").exists()
