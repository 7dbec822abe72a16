"""A folder is replaced atomically, its files are verified by hash, and one process owns it."""

import errno
import json
import os
import signal
import stat
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
    with replace_folder(tmp_path / "deep" / "a", keep=lambda entry: entry.name == "two") as new:
        (new / "one").write_text("new")
        assert contents(tmp_path / "deep" / "a") == {"one": "1", "two": "2"}  # until all files are written
    assert contents(tmp_path / "deep" / "a") == {"one": "new", "two": "2"}
    assert os.listdir(tmp_path / "deep") == ["a"]


def is_users(entry: Path) -> bool:
    return entry.name in ("notes.txt", "logs")


def lay_out_with_others(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Create a user's files, a file that will be replaced and one that will be removed; return `read_other_files`."""
    write(folder, one="1", old="2")
    (folder / "logs").mkdir()
    (folder / "logs" / "a.log").write_text("first\n")
    (folder / "notes.txt").write_text("mine")
    (folder / "one").chmod(0o640)
    folder.chmod(0o710)
    return read_other_files(folder)


def read_other_files(folder: Path) -> dict[str, tuple[int, bytes]]:
    paths = [folder / "logs", folder / "logs" / "a.log", folder / "notes.txt"]
    return {path.name: (path.stat().st_ino, b"" if path.is_dir() else path.read_bytes()) for path in paths}


def write_new(folder: Path) -> None:
    with write_folder(folder, keep=is_users) as new:
        (new / "one").write_text("new")
        (new / "three").write_text("new")


def is_new(folder: Path) -> bool:
    names = {path.name for path in folder.iterdir()}
    return names == {"one", "three", "manifest.json", "logs", "notes.txt"} and (folder / "one").read_text() == "new"


def test_other_files_in_the_folder_are_kept(tmp_path: Path) -> None:
    """An open log loses no line, and folder and files keep their owner and mode."""
    folder = tmp_path / "a"
    before, inode = lay_out_with_others(folder), folder.stat().st_ino
    if os.geteuid() == 0:
        for path in (folder, folder / "one"):
            os.chown(path, 1234, 4321)
    with (folder / "logs" / "a.log").open("a") as log:
        write_new(folder)
        log.write("second\n")
    assert is_new(folder)
    manifest_of(folder).check(folder)
    assert (folder / "logs" / "a.log").read_text() == "first\nsecond\n"
    assert {name: inode for name, (inode, _) in read_other_files(folder).items()} == {
        name: inode for name, (inode, _) in before.items()
    }
    assert folder.stat().st_ino == inode
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "one")] == [0o710, 0o640]
    if os.geteuid() == 0:
        assert {(path.stat().st_uid, path.stat().st_gid) for path in (folder, folder / "one")} == {(1234, 4321)}


def test_a_folder_that_changes_places_keeps_its_owner_and_mode(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    write(folder, one="1")
    (folder / "one").chmod(0o600)
    folder.chmod(0o710)
    if os.geteuid() == 0:
        os.chown(folder, 1234, 4321)
    inode = folder.stat().st_ino
    write(folder, one="2")
    assert folder.stat().st_ino != inode
    assert [stat.S_IMODE(path.stat().st_mode) for path in (folder, folder / "one")] == [0o710, 0o600]
    if os.geteuid() == 0:
        assert (folder.stat().st_uid, folder.stat().st_gid) == (1234, 4321)


def test_a_folder_of_the_name_of_a_new_file_is_not_replaced(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    before = lay_out_with_others(folder)
    with pytest.raises(IsADirectoryError), write_folder(folder, keep=is_users) as new:
        (new / "logs").write_text("mine")
    assert read_other_files(folder) == before
    assert (folder / "one").read_text() == "1"


def end_at_move(n: int, folder: Path, end: Callable[[], None], monkeypatch: pytest.MonkeyPatch) -> None:
    """Call `end` instead of the n-th move out of or into a folder."""
    rename, moves = os.replace, 0

    def replace(source: Path, target: Path) -> None:
        nonlocal moves
        moves += folder in (Path(source).parent, Path(target).parent)
        if moves == n:
            moves += 1
            end()
        rename(source, target)

    monkeypatch.setattr(os, "replace", replace)


MOVES = 6  # the manifest out and in, two files out, two files in


@pytest.mark.parametrize("n", range(1, MOVES + 1))
def test_an_error_between_two_files_leaves_all_as_it_was(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "a"
    before = lay_out_with_others(folder)

    def fail() -> None:
        raise OSError(errno.EIO, "broken")

    end_at_move(n, folder, fail, monkeypatch)
    with pytest.raises(OSError, match="broken"):
        write_new(folder)
    assert read_other_files(folder) == before
    assert [(folder / name).read_text() for name in ("one", "old")] == ["1", "2"]
    assert not (folder / "three").exists()
    manifest_of(folder).check(folder)
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
@pytest.mark.parametrize("n", range(1, MOVES + 2))
def test_kill_between_two_files_keeps_other_files_and_is_detected(
    n: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old files are complete, or readers detect that some are missing, until all new files exist."""
    folder = tmp_path / "a"
    before = lay_out_with_others(folder)
    if not (pid := os.fork()):
        end_at_move(n, folder, lambda: os.kill(os.getpid(), signal.SIGKILL), monkeypatch)
        write_new(folder)
        os._exit(0)
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert exit_code == (-signal.SIGKILL if n <= MOVES else 0)
    if n <= 2:
        assert [(folder / name).read_text() for name in ("one", "old")] == ["1", "2"]
    elif n <= MOVES:
        with pytest.raises(DamagedFile, match=r"is missing|is damaged"):
            manifest_of(folder).check(folder)
    assert read_other_files(folder) == before
    write_new(folder)
    assert is_new(folder)
    assert read_other_files(folder) == before
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
def test_a_reader_waits_for_a_writer_of_single_files(tmp_path: Path) -> None:
    folder = tmp_path / "a"
    lay_out_with_others(folder)
    (folder / "one").rename(tmp_path / "one")  # as in the middle of a write
    with pytest.raises(DamagedFile, match="one is missing"):
        read_whole(folder, lambda manifest: manifest_of(folder).check(folder))
    (tmp_path / f".a.{atomic._host()}-{os.getpid()}-7.new").mkdir()
    tries: list[int] = []

    def read(manifest: Manifest | None) -> None:
        tries.append(1)
        if len(tries) == 3:
            (tmp_path / "one").rename(folder / "one")
        manifest_of(folder).check(folder)

    read_whole(folder, read)
    assert len(tries) == 3


def test_a_failure_leaves_all_as_it_was(tmp_path: Path) -> None:
    write(tmp_path / "a", one="1")
    for folder in (tmp_path / "a", tmp_path / "b" / "c"):
        with pytest.raises(KeyboardInterrupt):
            replace_half(folder, KeyboardInterrupt())
    assert contents(tmp_path / "a") == {"one": "1"}
    assert os.listdir(tmp_path) == ["a"]


KILLED_PROGRAM = """
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
def test_leftovers_of_a_killed_process_are_removed_or_restored(tmp_path: Path, moment: str) -> None:
    folder = tmp_path / "a"
    write(folder, one="1")
    result = subprocess.run([sys.executable, "-c", KILLED_PROGRAM, str(folder), moment], check=False)
    assert result.returncode == -signal.SIGKILL
    assert len(os.listdir(tmp_path)) == 2
    with pytest.raises(RuntimeError):
        replace_half(folder, RuntimeError())
    assert contents(folder) == {"one": "1"}
    assert os.listdir(tmp_path) == ["a"]


@pytest.mark.slow
@given(st.data())
def test_any_changed_bit_is_detected(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    folder = tmp_path_factory.mktemp("folder") / "a"
    with write_folder(folder) as new:
        (new / "one").write_bytes(data.draw(st.binary(min_size=1, max_size=100)))
        (new / "sub").mkdir()
        (new / "sub" / "two").write_bytes(data.draw(st.binary(min_size=1)))
    manifest_of(folder).check(folder)
    path = folder / data.draw(st.sampled_from(["one", "sub/two", "manifest.json"]))
    damaged = bytearray(path.read_bytes())
    damaged[data.draw(st.integers(0, len(damaged) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    if path.name == "manifest.json" and _parse_json(damaged) == _parse_json(path.read_bytes()):
        return  # a change of white space only
    path.write_bytes(damaged)
    with pytest.raises(DamagedFile, match=path.name):
        manifest_of(folder).check(folder)


def _parse_json(data: bytes | bytearray) -> object:
    try:
        return json.loads(data)
    except ValueError:
        return None


def test_missing_file_is_named(tmp_path: Path) -> None:
    write(tmp_path / "a", one="1", two="2")
    (tmp_path / "a" / "one").unlink()
    manifest = manifest_of(tmp_path / "a")
    with pytest.raises(DamagedFile, match=r"a/one is missing; restore the original file"):
        manifest.check(tmp_path / "a")
    manifest.check(tmp_path / "a", ["two"])


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo, lambda path: os.symlink("/dev/zero", path)])
@pytest.mark.parametrize("name", ["one", "manifest.json"])
def test_non_regular_files_are_not_read(tmp_path: Path, make: Callable[[Path], None], name: str) -> None:
    write(tmp_path / "a", one="1")
    (tmp_path / "a" / name).unlink()
    make(tmp_path / "a" / name)
    with pytest.raises(DamagedFile, match=name):
        manifest_of(tmp_path / "a").check(tmp_path / "a")


def test_a_file_that_may_grow(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("one\n")
    manifest = Manifest({"log": FileHash.from_path(tmp_path / "log")})
    (tmp_path / "log").write_text("one\ntwo\n")
    manifest.check(tmp_path, allow_growth=True)
    with pytest.raises(DamagedFile):
        manifest.check(tmp_path)
    (tmp_path / "log").write_text("two\none\n")
    with pytest.raises(DamagedFile):
        manifest.check(tmp_path, allow_growth=True)


def test_a_seal(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_sealed_json(path, {"é": 1, "new": 2})
    assert read_sealed_json(path) == {"é": 1, "new": 2}
    for damaged in ("", "[]", "{", "[" * 100_000, '{"b": 2, "checksum": "1"}', '{"b": 2}'):
        path.write_text(damaged)
        with pytest.raises(UserError, match=r"a\.json is damaged"):
            read_sealed_json(path)
    assert read_sealed_json(path, since="new") == {"b": 2}  # written before seals existed
    path.write_text('{"b": 2, "new": 2}')
    with pytest.raises(UserError, match=r"a\.json is damaged"):
        read_sealed_json(path, since="new")


def test_a_reader_sees_one_state(tmp_path: Path) -> None:
    """While another thread replaces the folder repeatedly, the contents of a read are consistent."""
    folder, stop, states = tmp_path / "a", threading.Event(), set[str]()
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
            states.add(one)
    finally:
        stop.set()
        writer.join()
    assert len(states) > 1


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
        owner.kill()  # the lock of a dead owner is taken over
    with lock_folder(tmp_path), pytest.raises(FolderInUse, match=f"process {os.getpid()} "), lock_folder(tmp_path):
        pass
    with lock_folder(tmp_path):
        assert (tmp_path / ".owner.json").exists()
    assert not (tmp_path / ".owner.json").exists()
