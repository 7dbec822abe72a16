"""The shards of a prepared folder are verified by hash, each once, when they are first opened."""

import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
from two_folders import prepare_two_folders

from tercet.config import UserError
from tercet.data import PackedRows, TextSpec, prepare
from tercet.data.corpora.prepared import open_folder
from tercet.data.rows.sharded_rows import ShardedRows
from tercet.data.rows.token_rows import PaddedRows
from tercet.data.shards import token_folder
from tercet.data.shards.open_shards import OpenShards
from tercet.data.shards.token_folder import TokenFolder
from tercet.data.specs import MixtureSource
from tercet.storage import FileHash

LENGTH = 8


@pytest.fixture(scope="module")
def two_folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the prepared folders `one` and `two` of one tokenizer, with shards of about 400 ids."""
    return prepare_two_folders(tmp_path_factory.mktemp("prepared"), documents=150)


@pytest.fixture
def folders(two_folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    shutil.copytree(two_folders, tmp_path / "top")
    return tmp_path / "top"


@pytest.fixture
def hash_calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record the name of each hashed file of ids, and the thread that hashed it."""
    calls, from_file = list[tuple[str, str]](), FileHash.from_file

    def note(file, *arguments, **settings):
        calls.append((Path(file.name).name, threading.current_thread().name))
        return from_file(file, *arguments, **settings)

    monkeypatch.setattr(FileHash, "from_file", note)
    monkeypatch.setattr(token_folder, "RECENT", 0)
    monkeypatch.setattr(token_folder, "_verified", set())
    return calls


def make_rows(folder: TokenFolder) -> ShardedRows:
    def make(ids: np.ndarray, starts: np.ndarray) -> PackedRows:
        return PackedRows(ids, starts, length=LENGTH)

    return ShardedRows(folder, make, length=LENGTH, has_documents=False, packed=True)


def names(hash_calls: list[tuple[str, str]]) -> list[str]:
    return sorted(name for name, _ in hash_calls)


def test_a_shard_is_hashed_once_when_its_first_row_is_read(folders: Path, hash_calls: list[tuple[str, str]]) -> None:
    corpus = prepare(TextSpec(source=str(folders / "one")))
    assert names(hash_calls) == ["validation.bin"]  # a start reads no shard
    rows = make_rows(corpus.folders[0])
    rows.batch(np.array([0]))
    assert names(hash_calls) == ["train-00000.bin", "validation.bin"]
    for _ in range(2):
        reopened = make_rows(prepare(TextSpec(source=str(folders / "one"))).folders[0])
        reopened.batch(np.arange(len(reopened)))
    shards = [part.ids_file for part in corpus.folders[0].contents.shards]
    assert len(shards) > 3
    assert names(hash_calls) == sorted([*shards, "validation.bin"])
    path = folders / "one" / "train-00000.bin"
    os.utime(path, ns=(1, 1))  # the file may have been written to
    make_rows(open_folder(str(folders / "one"))).batch(np.array([0]))
    assert names(hash_calls).count(path.name) == 2


def test_padded_rows_are_counted_without_opening_a_shard(folders: Path, hash_calls: list[tuple[str, str]]) -> None:
    rows = ShardedRows(
        open_folder(str(folders / "one")),
        lambda ids, starts: PaddedRows(ids, starts, length=LENGTH, side="right"),
        length=LENGTH,
        has_documents=True,
        packed=False,
    )
    counts = rows.count_real(LENGTH + 1)
    assert not hash_calls
    assert rows.batch(np.arange(len(rows))).mask.sum(1).tolist() == counts.tolist()


@pytest.mark.parametrize("group", [None, 1])
def test_the_next_shards_are_hashed_by_a_thread(
    folders: Path, hash_calls: list[tuple[str, str]], group: int | None
) -> None:
    folder = open_folder(str(folders / "one"), group=group)
    rows = make_rows(folder)
    rows.fetch_ahead(0, 1)
    folder.wait()
    shards = range(len(folder.contents.shards))
    expected = shards if group is None else [*rows.layout.current(0, 1), *rows.layout.following(0, 1)]
    assert names(hash_calls) == sorted(f"train-{shard:05d}.bin" for shard in expected)
    n_calls = len(hash_calls)
    rows.batch(np.arange(len(rows)) if group is None else rows.layout.rows(np.arange(4), 1)[0])
    assert len(hash_calls) == n_calls
    assert threading.current_thread().name not in {thread for _, thread in hash_calls}


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="no /proc/self/maps on this system")
def test_no_more_shards_are_open_than_allowed(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = open_folder(str(folders / "one")).contents.shards
    monkeypatch.setitem(TokenFolder.__init__.__kwdefaults__, "max_open", 2)
    folder = open_folder(str(folders / "one"))
    all_ids = np.asarray(folder.all_ids())
    assert Path("/proc/self/maps").read_text().count(f"{folders}/one/train-") == 2
    files = [folders / "one" / part.ids_file for part in shards]
    assert all_ids.tobytes() == b"".join(path.read_bytes() for path in files)


def test_shards_that_are_needed_next_are_closed_last() -> None:
    closed_names = list[str]()
    shards = OpenShards(lambda name: np.zeros(1, np.uint16), closed_names.append, max_open=2)
    shards.keep(["a", "b"])
    shards.wait()
    shards.ids("c")
    assert closed_names == ["c"]
    shards.keep(["b", "d"])
    shards.wait()
    assert closed_names == ["c", "a"]


def test_a_damaged_shard_is_named_by_the_step_that_reads_it(folders: Path) -> None:
    path = folders / "one" / "train-00001.bin"
    ids = np.fromfile(path, np.uint16)
    ids[::3] = 5
    ids.tofile(path)
    folder = prepare(TextSpec(source=str(folders / "one"))).folders[0]
    rows = make_rows(folder)
    rows.fetch_ahead(0, 1)
    folder.wait()  # the thread has found the damage, which is reported to the reader
    rows.batch(np.array([0]))
    with pytest.raises(UserError, match=r"train-00001\.bin is damaged: its hash does not match manifest\.json; copy"):
        rows.batch(np.arange(len(rows)))


def test_a_damaged_validation_part_is_rejected_and_forgotten_once_it_is_repaired(folders: Path) -> None:
    mixture = (MixtureSource(source=str(folders / "two"), weight=0.5),)
    specs = [TextSpec(source=str(folders / "two")), TextSpec(source=str(folders / "one"), mixture=mixture)]
    path = folders / "two" / "validation.bin"
    data = path.read_bytes()
    ids = np.frombuffer(data, np.uint16).copy()
    ids[::3] = 5
    path.write_bytes(ids.tobytes())
    for spec in specs:
        with pytest.raises(UserError, match=r"two/validation\.bin is damaged"):
            prepare(spec)
    path.write_bytes(data)
    single, mixture_part = (prepare(spec).validation.tobytes() for spec in specs)
    assert single == data
    assert mixture_part == (folders / "one" / "validation.bin").read_bytes() + data


def test_folders_of_narrow_and_wide_ids_have_one_validation_part(folders: Path) -> None:
    """Other programs may write 32 bits per id even if 16 bits are enough."""
    from dataclasses import replace

    from tercet.storage import Manifest, write_sealed_json

    folder = folders / "two"
    contents, files = open_folder(str(folder)).contents, {}
    for path in folder.glob("*.bin"):
        np.fromfile(path, np.uint16).astype(np.uint32).tofile(path)
    for path in sorted(folder.iterdir()):
        if path.name != "manifest.json":
            files[path.name] = FileHash.from_path(path)
    wide = replace(contents, dtype=np.dtype("<u4"), files=Manifest(files))
    write_sealed_json(folder / "manifest.json", wide.to_plain())
    parts = [prepare(TextSpec(source=str(folders / name))).validation.tolist() for name in ("one", "two")]
    mixture = (MixtureSource(source=str(folder), weight=0.5),)
    assert prepare(TextSpec(source=str(folders / "one"), mixture=mixture)).validation.tolist() == parts[0] + parts[1]
