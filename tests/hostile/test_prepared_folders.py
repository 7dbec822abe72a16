"""Damaged and third-party token folders are rejected in one line that names a file, or read correctly."""

import io
import json
import os
import random
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from two_folders import prepare_two_folders

sys.path.append(str(Path(__file__).parent))

from attack import attack_function
from damage import SINGLE_FILE_DAMAGES, damage
from hurt_folders import change_json
from refusal import check_error
from report import count_inputs

from tercet.config import UserError
from tercet.data import PackedRows, TextSpec, prepare
from tercet.data.rows.sharded_rows import ShardedRows
from tercet.data.shards import remote_tokens
from tercet.data.specs import MixtureSource
from tercet.storage import FileHash
from tercet.storage.sealed_json import read_sealed_json, write_sealed_json

SCALE = int(os.environ.get("TERCET_HOSTILE", "1"))
MANIFESTS = 50 * SCALE
DAMAGES = 24 * SCALE  # per place
SECONDS = 60.0


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two prepared folders of one tokenizer."""
    return prepare_two_folders(tmp_path_factory.mktemp("prepared"), documents=90)


def read_prepared(spec: TextSpec) -> bytes:
    """Return all data that training or evaluation reads."""
    corpus, parts = prepare(spec), list[Any]()
    for folder in corpus.folders:
        rows = ShardedRows(
            folder,
            lambda ids, starts: PackedRows(ids, starts, length=8, document_mask=True),
            length=8,
            has_documents=True,
            packed=True,
        )
        batch = rows.batch(np.arange(len(rows)))
        parts += [batch.tokens, batch.documents, folder.token_counts()]
    parts += [corpus.train, corpus.train_documents, corpus.validation, corpus.validation_documents]
    return corpus.tokenizer.to_json().encode() + b"".join(np.asarray(part).tobytes() for part in parts)


def make_spec(place: str, top: Path) -> TextSpec:
    match place:
        case "mixture" | "mixture cache":
            return TextSpec(source=str(top / "two"), mixture=(MixtureSource(source=str(top / "one"), weight=0.5),))
        case "url" | "cache":
            return TextSpec(source=f"file://{top / 'one'}", shard_group=2)
        case _:
            return TextSpec(source=str(top / "one"))


def files_below(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.name.startswith("."))


@pytest.mark.slow
@pytest.mark.parametrize("place", ["folder", "mixture", "url", "cache", "mixture cache"])
def test_a_damaged_folder_is_rejected_or_read_correctly(
    whole: Path, place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Apply kinds of damage to files. After each the file is restored, and everything is read as before."""
    monkeypatch.setattr(remote_tokens, "FIRST_WAIT", 0.0)
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    shutil.copytree(whole, tmp_path / "top")
    spec = make_spec(place, tmp_path / "top")
    expected = read_prepared(spec)
    is_cache, cache = place.endswith("cache"), tmp_path / "cache"
    hurt = cache if is_cache else tmp_path / "top" / "one"

    chance = random.Random(f"{place} {os.environ.get('TERCET_HOSTILE_SEED', '0')}")
    damages = [(path, kind) for path in files_below(hurt) for kind in SINGLE_FILE_DAMAGES]
    damages = chance.sample(damages, min(len(damages), DAMAGES))

    def work() -> int:
        for path, kind in damages:
            data = path.read_bytes()
            if not is_cache:
                shutil.rmtree(cache, ignore_errors=True)  # the cache of a mixture and a URL
            if not damage(path, kind, random.Random(path.name), {}):
                continue
            try:
                result = "harmless" if read_prepared(spec) == expected else "WRONG"
            except UserError as error:
                check_error(error)
                is_named = any(name in str(error) for name in (path.name, f"{path.parent} "))
                result = "noticed" if is_named else f"UNNAMED: {error}"
            if not is_cache:
                path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)
                path.write_bytes(data)
            result += "" if read_prepared(spec) == expected else ", WRONG after the repair"
            print(f"{path.name}: {kind} -> {result}", flush=True)
        return 0

    outcome = attack_function(work, seconds=SECONDS)
    assert outcome.code == 0, outcome.stdout[-500:] + outcome.stderr[-3000:]
    lines = outcome.stdout.splitlines()
    results = Counter(line.rpartition(" -> ")[2] for line in lines)
    count_inputs(taken=results["harmless"], refused=results["noticed"])
    usual, rare = ("harmless", "noticed") if is_cache else ("noticed", "harmless")
    assert not [line for line in lines if not line.endswith((f"-> {usual}", f"-> {rare}"))]
    assert len([line for line in lines if line.endswith(f"-> {rare}")]) <= 1  # a manifest without its last line break
    assert len(lines) > len(damages) // 2


def reseal(folder: Path, file: str, data: bytes) -> None:
    """Replace a file together with its hash in the manifest, as the author of a folder could."""
    (folder / file).write_bytes(data)
    manifest = read_sealed_json(folder / "manifest.json")
    file_hash = FileHash.from_bytes(data)
    manifest["files"][file] = [file_hash.size, file_hash.xxh3]
    write_sealed_json(folder / "manifest.json", manifest)


def array_file(change: Callable[[np.ndarray], np.ndarray]) -> Callable[[bytes], bytes]:
    def change_array(data: bytes) -> bytes:
        file = io.BytesIO()
        np.save(file, change(np.load(io.BytesIO(data))), allow_pickle=False)
        return file.getvalue()

    return change_array


FOREIGN: dict[str, tuple[str, Callable[[bytes], bytes], str]] = {
    "an id": ("train-00001.bin", lambda data: data[:-2] + b"\x15\0", r"has the id 21, but its tokenizer has 21 ids"),
    "an id to score": ("validation.bin", lambda data: b"\xff\xff" + data[2:], r"has the id 65535, but its tokenizer"),
    "falling starts": ("train-00000.documents.npy", array_file(lambda starts: starts[::-1]), "has invalid starts"),
    "starts far away": ("validation.documents.npy", array_file(lambda starts: starts * 1000), "has invalid starts"),
    "starts below 0": ("train-00000.documents.npy", array_file(lambda starts: -starts), "has invalid starts"),
    "starts of another kind": (
        "validation.documents.npy",
        array_file(lambda starts: starts.view(np.float64)),
        "does not contain",
    ),
    "a huge shape": (
        "validation.documents.npy",
        lambda data: re.sub(rb"\(\d\d,\)", b"(9**", data, count=1),
        "does not contain",
    ),
    "no array": ("train-00001.documents.npy", lambda data: bytes(len(data)), "does not contain"),
    "counts below 0": ("token_counts.npy", array_file(lambda counts: counts - 10**6), "does not match the shards"),
    "other counts": ("token_counts.npy", array_file(lambda counts: counts + 1), "does not match the shards"),
    "too few counts": ("token_counts.npy", array_file(lambda counts: counts[1:]), "does not contain 21 numbers"),
    "no tokenizer": ("tokenizer.json", lambda data: b"{}", "tokenizer.json is not a tokenizer"),
    "no text": ("tokenizer.json", lambda data: b"\xff" * 9, "tokenizer.json is not a tokenizer"),
    "another tokenizer": (
        "tokenizer.json",
        lambda data: data.replace(b'"7"', b'"X"', 1),
        "is not the one that produced its",
    ),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_a_foreign_folder_with_right_hashes_is_rejected(whole: Path, name: str, tmp_path: Path) -> None:
    shutil.copytree(whole / "one", tmp_path / "one")
    file, change, words = FOREIGN[name]
    before = (tmp_path / "one" / file).read_bytes()
    after = change(before)
    assert after != before
    reseal(tmp_path / "one", file, after)
    with pytest.raises(UserError, match=words) as error:
        read_prepared(make_spec("folder", tmp_path))
    check_error(error.value)


@pytest.mark.slow
def test_a_foreign_manifest_is_read_or_rejected(whole: Path, tmp_path: Path) -> None:
    shutil.copytree(whole / "one", tmp_path / "one")
    path = tmp_path / "one" / "manifest.json"
    manifest = read_sealed_json(path)

    def work() -> int:
        for seed in range(MANIFESTS):
            changed_manifest = json.loads(json.dumps(manifest))
            print(
                seed, change_json(changed_manifest, random.Random(seed)).encode("ascii", "backslashreplace"), flush=True
            )
            try:
                write_sealed_json(path, changed_manifest)
                read_prepared(make_spec("folder", tmp_path))
            except UserError as error:
                check_error(error)
                count_inputs(refused=1)
            except UnicodeEncodeError:
                continue
            else:
                count_inputs(taken=1)
        return 0

    outcome = attack_function(work, seconds=SECONDS)
    assert outcome.code == 0, outcome.stdout[-500:] + outcome.stderr[-3000:]
