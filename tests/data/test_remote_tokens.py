"""A prepared folder behind a URL: what comes is what was prepared, and no more of it is kept than is read."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tercet.config import UserError
from tercet.data import Documents, PackedRows, TextSpec, prepare, prepare_tokens, remote_tokens
from tercet.data.prepared import check_prepared, open_folder
from tercet.data.remote_tokens import RemoteTokenFolder
from tercet.data.sharded_rows import MixedRows, ShardedRows
from tercet.data.token_folder import TokenFolder
from tercet.tokens import Characters

LENGTH, URL = 8, "memory://bucket/tokens"


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of many shards, which lies at `URL` too."""
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


def rows_of(folder: TokenFolder) -> ShardedRows:
    return ShardedRows(
        folder,
        lambda ids, starts: PackedRows(ids, starts, length=LENGTH, document_mask=True),
        length=LENGTH,
        has_documents=True,
        packed=True,
    )


def kept(folder: RemoteTokenFolder) -> list[Path]:
    return sorted(folder.path("validation.bin").parent.glob("train-*.bin"))


def test_rows_are_those_of_the_folder(tokens: Path) -> None:
    near, far = rows_of(open_folder(str(tokens), group=2)), rows_of(open_folder(URL, group=2))
    assert len(near) == len(far) > 100
    assert near.layout == far.layout
    assert near.layout is not None
    numbers, epochs = near.layout.rows(np.arange(len(near) + 20), 5)
    for start in range(0, len(numbers), 16):
        at = slice(start, start + 16)
        one, other = near.batch(numbers[at], 3 * epochs[at]), far.batch(numbers[at], 3 * epochs[at])
        assert one.tokens.tolist() == other.tokens.tolist()
        assert one.documents is not None
        assert other.documents is not None
        assert one.documents.tolist() == other.documents.tolist()
    assert len(np.unique(epochs)) == 2


def test_every_token_but_few_comes_once_an_epoch(tokens: Path) -> None:
    folder = open_folder(str(tokens))
    rows, ids = rows_of(folder), np.asarray(folder.all_ids())
    batch = rows.batch(np.arange(len(rows)))
    ends = np.cumsum([part.tokens for part in folder.contents.shards])
    expected = [part[: len(part) // LENGTH * LENGTH - LENGTH].reshape(-1, LENGTH) for part in np.split(ids, ends[:-1])]
    assert batch.tokens[:, :-1].tolist() == np.concatenate(expected).tolist()


def test_no_more_than_two_groups_are_kept(tokens: Path) -> None:
    folder = open_folder(URL, group=2)
    assert isinstance(folder, RemoteTokenFolder)
    rows = rows_of(folder)
    assert rows.layout is not None
    assert len(folder.contents.shards) > 6
    for position in range(0, len(rows), 4):
        rows.fetch_ahead(position, 1)
        numbers, _ = rows.layout.rows(np.arange(position, min(position + 4, len(rows))), 1)
        rows.batch(numbers)
        folder._ahead.join() if folder._ahead.ident else None
        assert len(kept(folder)) <= 4
    assert len(kept(folder)) == 4


def test_the_next_group_comes_meanwhile(tokens: Path) -> None:
    folder = open_folder(URL, group=2)
    assert isinstance(folder, RemoteTokenFolder)
    rows = rows_of(folder)
    assert rows.layout is not None
    rows.batch(rows.layout.rows(np.arange(4), 1)[0])
    rows.fetch_ahead(3, 1)
    folder._ahead.join()
    names = {path.name for path in kept(folder)}
    fsspec.filesystem("memory").store.clear()  # from here on nothing can be fetched
    following = rows.layout.following(3, 1)
    assert {f"train-{shard:05d}.bin" for shard in following} <= names
    assert folder.path(f"train-{following[0]:05d}.bin").exists()


class Failing:
    """Opens that fail, or give other bytes, as often as `faults` says."""

    def __init__(self, faults: list[Any]) -> None:
        self.faults, self.opened = faults, list[str]()
        self._open = MemoryFileSystem.open

    def __call__(self, files: Any, path: str, mode: str = "rb", **settings: Any) -> Any:
        self.opened.append(path)
        if path.endswith(".bin") and self.faults:
            fault = self.faults.pop(0)
            if isinstance(fault, Exception):
                raise fault
            data = self._open(files, path).read()
            import io

            return io.BytesIO(bytes([data[0] ^ 1]) + data[1:])
        return self._open(files, path, mode, **settings)


def test_what_fails_is_tried_again(
    tokens: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = open_folder(URL)
    failing = Failing([TimeoutError("too slow"), "another byte", ConnectionResetError("gone")])
    monkeypatch.setattr(MemoryFileSystem, "open", lambda self, *args, **settings: failing(self, *args, **settings))
    assert folder.path("train-00000.bin").read_bytes() == (tokens / "train-00000.bin").read_bytes()
    assert not failing.faults
    err = capsys.readouterr().err
    assert err.count("trying again") == 3
    assert "it is not what manifest.json says; trying again" in err


def test_what_never_comes_is_one_line(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = open_folder(URL)
    failing = Failing([TimeoutError("too slow")] * 9)
    monkeypatch.setattr(MemoryFileSystem, "open", lambda self, *args, **settings: failing(self, *args, **settings))
    with pytest.raises(UserError, match=r"cannot fetch memory://bucket/tokens/train-00000.bin: too slow; see that it"):
        folder.path("train-00000.bin")
    assert len(failing.faults) == 4


def test_a_file_in_the_cache_that_was_changed_comes_again(tokens: Path) -> None:
    path = open_folder(URL).path("train-00000.bin")
    data = path.read_bytes()
    path.write_bytes(data[:7] + b"\0" + data[8:])
    assert open_folder(URL).path("train-00000.bin").read_bytes() == data


def test_a_missing_or_short_shard_is_said_before_training(tokens: Path) -> None:
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
        ("simplecache::memory://bucket", "is a chain of file systems; give the URL of a folder alone"),
    ],
)
def test_urls_that_lead_nowhere(tokens: Path, url: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        open_folder(url)


def test_a_package_that_is_missing_is_named(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(url: str) -> None:
        raise ImportError("Install s3fs to access S3")

    monkeypatch.setattr(fsspec.core, "url_to_fs", missing)
    with pytest.raises(UserError, match="s3://bucket/tokens: Install s3fs to access S3; install that package beside"):
        open_folder("s3://bucket/tokens")


def test_offline_means_offline(tokens: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_OFFLINE", "1")
    open_folder(URL)
    with pytest.raises(UserError, match="is not on this machine, and TERCET_OFFLINE is set"):
        open_folder("s3://bucket/tokens")


def test_rows_of_two_folders_in_their_shares(tokens: Path) -> None:
    near, far = rows_of(open_folder(str(tokens))), rows_of(open_folder(URL, group=2))
    mixed = MixedRows([near, far], [0.25, 0.75])
    numbers, _ = mixed.layout.rows(np.arange(200), 4)
    assert (numbers < len(near)).sum() == 50
    batch = mixed.batch(numbers[:40])
    for number, row in zip(numbers[:40].tolist(), batch.tokens, strict=True):
        alone = near if number < len(near) else far
        assert row.tolist() == alone.batch(np.array([number % len(near)])).tokens[0].tolist()
    mixed.fetch_ahead(40, 4)
