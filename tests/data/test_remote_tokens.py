"""A prepared folder at a URL: its rows equal those of the local folder, and few shards are cached at a time."""

import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from sampled_cases import sampled
from tercet.config import UserError
from tercet.data import Documents, PackedRows, TextSpec, prepare, prepare_tokens
from tercet.data.corpora.prepared import check_prepared, open_folder
from tercet.data.rows.sharded_rows import MixedRows, ShardedRows
from tercet.data.shards import remote_tokens
from tercet.data.shards.remote_tokens import RemoteTokenFolder
from tercet.data.shards.token_folder import TokenFolder
from tercet.tokens import Characters

LENGTH, URL = 8, "memory://bucket/tokens"
EVERY_MOMENT = -1  # every moment


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder of many shards, which is also served at `URL`."""
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remote_tokens, "FIRST_WAIT", 0.001)
    lines = [json.dumps({"text": f"{n} times {m} is {n * m}. " * (n % 5 + 1)}) for n in range(20) for m in range(20)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines))
    out = tmp_path / "tokens"
    spec = TextSpec(source=str(tmp_path / "texts.jsonl"), tokenizer=Characters(), validation=Documents(fraction=0.05))
    prepare_tokens(spec, out, shard_tokens=1024, workers=1)
    files = fsspec.filesystem("memory")
    files.store.clear()
    for path in out.iterdir():
        files.pipe(f"/bucket/tokens/{path.name}", path.read_bytes())
    yield out
    files.store.clear()


def make_rows(folder: TokenFolder) -> ShardedRows:
    return ShardedRows(
        folder,
        lambda ids, starts: PackedRows(ids, starts, length=LENGTH, document_mask=True),
        length=LENGTH,
        has_documents=True,
        packed=True,
    )


def cached_files(folder: RemoteTokenFolder) -> list[Path]:
    return sorted(folder._folder.glob("train-*.bin"))


def find_mapped_shards(folder: RemoteTokenFolder) -> set[str]:
    """Return the shards that take space on the disk because they are mapped, with or without a name."""
    maps = Path("/proc/self/maps").read_text().splitlines()
    return {line.split()[4] for line in maps if f"{folder._folder}/" in line and "train-" in line}


def test_rows_are_those_of_the_folder(tokens: Path) -> None:
    near, far = make_rows(open_folder(str(tokens), group=2)), make_rows(open_folder(URL, group=2))
    assert len(near) == len(far) > 100
    assert near.layout == far.layout
    assert near.layout is not None
    numbers, epochs = near.layout.rows(np.arange(len(near) + 20), 5)
    for start in range(0, len(numbers), 16):
        at = slice(start, start + 16)
        near_batch, far_batch = near.batch(numbers[at], 3 * epochs[at]), far.batch(numbers[at], 3 * epochs[at])
        assert near_batch.tokens.tolist() == far_batch.tokens.tolist()
        assert near_batch.documents is not None
        assert far_batch.documents is not None
        assert near_batch.documents.tolist() == far_batch.documents.tolist()
    assert len(np.unique(epochs)) == 2


def test_almost_every_token_occurs_once_per_epoch(tokens: Path) -> None:
    folder = open_folder(str(tokens))
    rows, ids = make_rows(folder), np.asarray(folder.all_ids())
    batch = rows.batch(np.arange(len(rows)))
    ends = np.cumsum([part.tokens for part in folder.contents.shards])
    expected = [part[: len(part) // LENGTH * LENGTH - LENGTH].reshape(-1, LENGTH) for part in np.split(ids, ends[:-1])]
    assert batch.tokens[:, :-1].tolist() == np.concatenate(expected).tolist()


@pytest.mark.slow
def test_at_most_two_groups_are_cached(tokens: Path) -> None:
    folder = open_folder(URL, group=2)
    assert isinstance(folder, RemoteTokenFolder)
    rows = make_rows(folder)
    assert rows.layout is not None
    assert len(folder.contents.shards) > 6
    kept_shards, mapped_shards = set[int](), set[int]()
    for position in range(0, len(rows), 20):
        rows.fetch_ahead(position, 1)
        numbers, _ = rows.layout.rows(np.arange(position, min(position + 20, len(rows))), 1)
        rows.batch(numbers)
        folder.wait()
        kept_shards.add(len(cached_files(folder)))
        mapped_shards.add(len(find_mapped_shards(folder)))
    assert max(kept_shards) == max(mapped_shards) == 4


def test_next_group_is_prefetched(tokens: Path) -> None:
    folder = open_folder(URL, group=2)
    assert isinstance(folder, RemoteTokenFolder)
    rows = make_rows(folder)
    assert rows.layout is not None
    rows.batch(rows.layout.rows(np.arange(4), 1)[0])
    rows.fetch_ahead(3, 1)
    folder.wait()
    names = {path.name for path in cached_files(folder)}
    fsspec.filesystem("memory").store.clear()  # from here on, no shard can be fetched
    following = rows.layout.following(3, 1)
    assert {f"train-{shard:05d}.bin" for shard in following} <= names
    assert len(folder.ids(folder.contents.shards[following[0]]))


# Several readers of one cache


def run_in_child(work: Callable[[], None]) -> None:
    """Call `work` in a forked process, whose exit code is 0 if it returns."""
    if (pid := os.fork()) == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def remove_shards(cache: Path) -> None:
    """Remove these shards, as another reader does that does not need them."""
    for path in [*cache.rglob("train-*"), *cache.rglob(".train-*.lock")]:
        path.unlink(missing_ok=True)


@pytest.mark.slow
@pytest.mark.parametrize("is_cached", sampled([False, True]))
def test_names_removed_at_any_moment_change_nothing(tokens: Path, tmp_path: Path, is_cached: bool) -> None:
    """The names are removed before each open, rename, removal and map of a reader in turn, and before all of them."""
    cache, positions = tmp_path / "cache", range(0, 280, 40)
    expected = make_rows(open_folder(str(tokens), group=1))
    count, moment = 0, -1

    def meet(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count, moment
        if event == "mmap.__new__" or (event in ("open", "os.rename", "os.remove") and "train-" in str(arguments[0])):
            count += 1
            if moment in (count, EVERY_MOMENT):
                saved_moment, moment = moment, 0  # the hook must not act on the removals
                remove_shards(cache)
                moment = saved_moment

    def read_with_removals(at: int) -> None:
        nonlocal count, moment
        if not is_cached:
            remove_shards(cache)
        folder = open_folder(URL, group=1)
        rows = make_rows(folder)
        assert rows.layout is not None
        count, moment = 0, at
        for position in positions:
            numbers, _ = rows.layout.rows(np.arange(position, position + 40), 1)
            rows.fetch_ahead(position, 1)
            folder.wait()
            assert rows.batch(numbers).tokens.tolist() == expected.batch(numbers).tokens.tolist()

    def work() -> None:
        sys.addaudithook(meet)  # an audit hook is permanent, so it is added in a child
        read_with_removals(0)
        n_moments = count
        assert n_moments > 20
        for at in (EVERY_MOMENT, *range(1, n_moments + 1)):
            read_with_removals(at)

    run_in_child(work)


@pytest.mark.slow
def test_reader_in_another_process_removes_no_needed_shard(tokens: Path) -> None:
    folder = open_folder(URL, group=1)
    parts = folder.contents.shards
    data = [(tokens / part.ids_file).read_bytes() for part in parts]
    held_ids = [folder.ids(part) for part in parts[:2]]

    def read_others() -> None:
        second_folder = open_folder(URL, group=1)
        assert [second_folder.ids(part).tobytes() for part in parts] == data

    run_in_child(read_others)
    assert not (folder._folder / parts[0].ids_file).exists()
    assert [ids.tobytes() for ids in held_ids] == data[:2]
    assert [folder.ids(part).tobytes() for part in parts] == data


@pytest.mark.slow
def test_two_reader_threads_read_the_rows_of_the_folder(tokens: Path) -> None:
    near = make_rows(open_folder(str(tokens), group=1))
    assert near.layout is not None
    batches = dict[int, list[Any]]()

    def read(seed: int) -> None:
        rows = make_rows(open_folder(URL, group=1))
        for position in range(0, len(rows) - 20, 20):
            rows.fetch_ahead(position, seed)
            numbers, _ = rows.layout.rows(np.arange(position, position + 20), seed)
            batches.setdefault(seed, []).append((numbers, rows.batch(numbers).tokens))

    threads = [threading.Thread(target=read, args=(seed,)) for seed in (1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in (1, 2, 3):
        assert len(batches[seed]) == (len(near) - 1) // 20
        for numbers, batch in batches[seed]:
            assert batch.tolist() == near.batch(numbers).tokens.tolist()


def test_two_readers_that_need_one_shard_fetch_it_once(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = [open_folder(URL, group=1) for _ in range(2)]
    for folder in folders:
        folder.tokenizer()
    plain, opened_paths, release = MemoryFileSystem.open, list[str](), threading.Event()

    def slow(self: Any, path: str, *arguments: Any, **settings: Any) -> Any:
        opened_paths.append(path)
        if len(opened_paths) == 1:
            release.wait(10)
        return plain(self, path, *arguments, **settings)

    monkeypatch.setattr(MemoryFileSystem, "open", slow)
    threads = [threading.Thread(target=folder.ids, args=(folder.contents.shards[0],)) for folder in folders]
    for thread in threads:
        thread.start()
    while not opened_paths:
        time.sleep(0.001)
    time.sleep(0.05)  # during which the other reader would also have opened it
    release.set()
    for thread in threads:
        thread.join()
    assert len(opened_paths) == 1


class Failing:
    """Opens that fail, or give other bytes, according to the list `faults`."""

    def __init__(self, faults: list[Any]) -> None:
        self.faults = faults
        self._open = MemoryFileSystem.open

    def __call__(self, files: Any, path: str, mode: str = "rb", **settings: Any) -> Any:
        if path.endswith(".bin") and self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            data = self._open(files, path).read()
            import io

            return io.BytesIO(bytes([data[0] ^ 1]) + data[1:])
        return self._open(files, path, mode, **settings)


def test_failed_downloads_are_retried(
    tokens: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_folder(URL)
    failing = Failing([TimeoutError("too slow"), "another byte", ConnectionResetError("gone")])
    monkeypatch.setattr(MemoryFileSystem, "open", lambda self, *args, **settings: failing(self, *args, **settings))
    assert folder.ids(folder.contents.shards[0]).tobytes() == (tokens / "train-00000.bin").read_bytes()
    assert not failing.faults
    err = capsys.readouterr().err
    assert err.count("trying again") == 3
    assert "it does not match manifest.json; trying again" in err


def test_permanent_download_failure_is_one_line(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(URL)
    failing = Failing([TimeoutError("too slow")] * 9)
    monkeypatch.setattr(MemoryFileSystem, "open", lambda self, *args, **settings: failing(self, *args, **settings))
    with pytest.raises(
        UserError, match=r"cannot fetch memory://bucket/tokens/train-00000.bin: too slow; check that it"
    ):
        folder.ids(folder.contents.shards[0])
    assert len(failing.faults) == 4


def test_changed_file_in_the_cache_is_downloaded_again(tokens: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = open_folder(URL)
    data = folder.ids(folder.contents.shards[0]).tobytes()
    path = folder._folder / "train-00000.bin"
    path.write_bytes(bytes([data[0] ^ 1]) + data[1:])
    reopened = open_folder(URL)
    assert reopened.ids(reopened.contents.shards[0]).tobytes() == path.read_bytes() == data
    assert "train-00000.bin is damaged; fetching it again" in capsys.readouterr().err


def test_missing_or_short_shard_is_reported_before_training(tokens: Path) -> None:
    spec = TextSpec(source=URL)
    check_prepared(spec)
    files = fsspec.filesystem("memory")
    with files.open("/bucket/tokens/train-00002.bin", "wb") as file:
        file.write(b"ab")
    with pytest.raises(UserError, match=r"tokens/train-00002.bin has 2 bytes, not [\d,]+; copy the folder again"):
        check_prepared(spec)
    files.rm("/bucket/tokens/train-00002.bin")
    with pytest.raises(UserError, match=r"tokens/train-00002.bin is missing; copy the folder again"):
        prepare(spec)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nothing/here", "cannot fetch memory://nothing/here/manifest.json"),
        ("nonsense://bucket", "cannot open nonsense://bucket: Protocol not known: nonsense"),
        ("simplecache::memory://bucket", "is a chain of file systems; use the plain URL of a folder"),
    ],
)
def test_invalid_urls_are_rejected(tokens: Path, url: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_folder(url)


def test_a_package_that_is_missing_is_named(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UserError, match="s3://bucket/tokens: Install s3fs to access S3; install that package together"):
        open_folder("s3://bucket/tokens")


def test_offline_mode_makes_no_request(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TERCET_OFFLINE", raising=False)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match="is not on this machine, and HF_HUB_OFFLINE is set"):
        open_folder("hf://datasets/user/tokens")
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    open_folder(URL)
    with pytest.raises(UserError, match="is not on this machine, and TERCET_OFFLINE is set"):
        open_folder("s3://bucket/tokens")


def test_rows_of_two_folders_have_their_shares(tokens: Path) -> None:
    near, far = make_rows(open_folder(str(tokens))), make_rows(open_folder(URL, group=2))
    rows = MixedRows([near, far], [0.25, 0.75])
    numbers, _ = rows.layout.rows(np.arange(200), 4)
    assert (numbers < len(near)).sum() == 50
    batch = rows.batch(numbers[:40])
    for number, row in zip(numbers[:40].tolist(), batch.tokens, strict=True):
        source = near if number < len(near) else far
        assert row.tolist() == source.batch(np.array([number % len(near)])).tokens[0].tolist()
    rows.fetch_ahead(40, 4)
