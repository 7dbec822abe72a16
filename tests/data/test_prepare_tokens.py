"""Shards of tokens contain the whole text, have the same bytes for any workers, and report each error in one line."""

import gzip
import itertools
import json
import os
import random
import re
import signal
from collections.abc import Iterator
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sampled_cases import sampled
from tercet.checkpoint import verify
from tercet.config import UserError
from tercet.data import Documents, HeldOut, TextSpec, prepare, prepare_tokens
from tercet.data.corpora.prepared import open_folder
from tercet.data.shards.token_folder import Contents
from tercet.tokens import BPE, Characters, PlainIds, Tokenizer, WordPiece

TEXT = "the red cat sleeps and a small blue mouse eats all of it again while nobody sees"


@pytest.fixture(autouse=True)
def quick(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))


def sentence(draw: random.Random, n: int) -> str:
    return " ".join(draw.choices(TEXT.split(), k=n))


@pytest.fixture
def texts(tmp_path: Path) -> Path:
    """Return a folder with files of all kinds, one of them empty."""
    folder, draw = tmp_path / "texts", random.Random(5)
    (folder / "deep").mkdir(parents=True)
    for number in range(6):
        (folder / f"{number}.txt").write_text("\n".join(sentence(draw, 12) for _ in range(9 * number)))
    lines = [json.dumps({"text": sentence(draw, draw.randint(1, 40))}) for _ in range(60)]
    (folder / "deep" / "lines.jsonl").write_text("\n".join(lines))
    with gzip.open(folder / "deep" / "packed.txt.gz", "wt") as file:
        file.write("\n".join(sentence(draw, 10) for _ in range(50)))
    return folder


def prepare_all(spec: TextSpec, out: Path, **changes: Any) -> Contents:
    contents = prepare_tokens(spec, out, **{"shard_tokens": 512, "workers": 1, **changes}).contents
    assert contents is not None
    return contents


def read_all_bytes(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("tokenizer", [BPE(vocab_size=300), WordPiece(vocab_size=120), Characters(eos=False)])
def test_the_shards_joined_are_the_text_as_it_is_prepared_at_once(texts: Path, tmp_path: Path, tokenizer: Any) -> None:
    spec = TextSpec(source=str(texts), tokenizer=tokenizer)
    contents = prepare_all(spec, tmp_path / "tokens")
    assert len(contents.shards) > 4
    folder = open_folder(str(tmp_path / "tokens"))
    folder.check()
    unsharded = prepare(spec, tokenizer=folder.tokenizer())
    sharded = prepare(TextSpec(source=str(tmp_path / "tokens")))
    assert np.asarray(sharded.train).tolist() == unsharded.train[:].tolist()
    assert sharded.validation.tolist() == unsharded.validation.tolist()
    assert sharded.validation_documents.tolist() == unsharded.validation_documents.tolist()
    assert set(np.asarray(unsharded.train_documents)) <= set(np.asarray(sharded.train_documents))
    assert sum(part.documents for part in contents.shards) == len(unsharded.train_documents)
    assert sharded.train_bytes + sharded.validation_bytes == unsharded.train_bytes + unsharded.validation_bytes
    counts = np.bincount(unsharded.train, minlength=folder.tokenizer().vocab_size)
    assert folder.token_counts().tolist() == counts.tolist()
    assert not verify(tmp_path / "tokens").damaged


def documents(ids: np.ndarray, starts: np.ndarray) -> list[list[int]]:
    return [part.tolist() for part in np.split(ids, starts[1:])]


def test_drawn_documents_are_complete_and_in_one_part(texts: Path, tmp_path: Path) -> None:
    spec = TextSpec(source=str(texts), tokenizer=BPE(vocab_size=300), validation=Documents(fraction=0.3))
    contents = prepare_all(spec, tmp_path / "tokens", shard_tokens=2048)
    corpus = prepare(TextSpec(source=str(tmp_path / "tokens")))
    unsharded = prepare(TextSpec(source=str(texts)), tokenizer=corpus.tokenizer)
    all_ids = np.concatenate([unsharded.train[:], unsharded.validation])
    starts = np.append(unsharded.train_documents, unsharded.validation_documents[1:] + len(unsharded.train))
    train = documents(np.asarray(corpus.train), np.asarray(corpus.train_documents))
    held_out = documents(corpus.validation, corpus.validation_documents)
    assert sorted(train + held_out) == sorted(documents(all_ids, starts))
    assert 0.1 < len(held_out) / (len(train) + len(held_out)) < 0.5
    assert contents.validation.documents == len(held_out)


def test_another_source_for_validation(texts: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text(sentence(random.Random(1), 90))
    spec = TextSpec(source=str(texts), tokenizer=Characters(), validation=HeldOut(source=str(tmp_path / "other.txt")))
    prepare_all(spec, tmp_path / "tokens")
    corpus = prepare(TextSpec(source=str(tmp_path / "tokens")))
    assert corpus.tokenizer.decode(corpus.validation.tolist()) == (tmp_path / "other.txt").read_text()


def test_existing_ids_are_prepared(tmp_path: Path) -> None:
    ids = np.random.default_rng(2).integers(0, 50, 5000, dtype=np.uint16)
    ids[::100] = 50
    ids.tofile(tmp_path / "a.bin")
    spec = TextSpec(source=str(tmp_path / "a.bin"), tokenizer=PlainIds(eos_id=50))
    prepare_all(spec, tmp_path / "tokens")
    corpus = prepare(TextSpec(source=str(tmp_path / "tokens")))
    assert [*np.asarray(corpus.train), *corpus.validation] == [*ids.tolist(), 50]


@pytest.mark.slow
@given(
    texts=st.lists(st.text(alphabet="ab \n", min_size=1, max_size=400).filter(str.strip), min_size=2, max_size=30),
    shard_tokens=st.integers(1, 500),
    masked=st.booleans(),
)
@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_texts_in_shards_of_any_size(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], shard_tokens: int, masked: bool
) -> None:
    folder = tmp_path_factory.mktemp("any")
    (folder / "texts.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    spec = TextSpec(source=str(folder / "texts.jsonl"), tokenizer=Characters(mask=masked, bos=masked))
    prepare_all(spec, folder / "tokens", shard_tokens=shard_tokens)
    sharded = prepare(TextSpec(source=str(folder / "tokens")))
    unsharded = prepare(spec, tokenizer=sharded.tokenizer)
    assert np.asarray(sharded.train).tolist() == unsharded.train[:].tolist()
    assert sharded.validation.tolist() == unsharded.validation.tolist()


@pytest.fixture
def reference(texts: Path, tmp_path: Path) -> dict[str, bytes]:
    prepare_all(make_spec(texts), tmp_path / "reference")
    return read_all_bytes(tmp_path / "reference")


def make_spec(texts: Path) -> TextSpec:
    return TextSpec(source=str(texts), tokenizer=BPE(vocab_size=300), validation=Documents(fraction=0.2))


@pytest.mark.slow
def test_by_several_workers(texts: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    prepare_all(make_spec(texts), tmp_path / "tokens", workers=3)
    assert read_all_bytes(tmp_path / "tokens") == reference
    assert reference.keys() >= {"manifest.json", "tokenizer.json", "validation.bin", "train-00002.bin"}


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="there is no /proc here")
def test_ctrl_c_does_not_reach_workers_that_are_starting(
    texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise each prints a traceback, since it receives the signal of the terminal too."""
    start, blocks = BaseProcess.start, list[bool]()

    def start_and_read_mask(process: BaseProcess) -> None:
        start(process)
        [mask] = re.findall(r"^SigBlk:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text(), re.MULTILINE)
        blocks.append(bool(int(mask, 16) >> (signal.SIGINT - 1) & 1))

    monkeypatch.setattr(BaseProcess, "start", start_and_read_mask)
    prepare_all(make_spec(texts), tmp_path / "tokens", workers=2)
    assert blocks == [True, True]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_in_parts_in_any_order(texts: Path, tmp_path: Path, reference: dict[str, bytes]) -> None:
    out, settings = tmp_path / "tokens", {"shard_tokens": 512, "workers": 1}
    assert prepare_tokens(make_spec(texts), out, part=(3, 3), **settings).missing == (1, 2)
    assert prepare_tokens(make_spec(texts), out, part=(1, 3), **settings).missing == (2,)
    with pytest.raises(UserError, match="was started in 3 parts, but this is one of 2; pass --part N/3"):
        prepare_tokens(make_spec(texts), out, part=(1, 2), **settings)
    assert prepare_tokens(make_spec(texts), out, part=(2, 3), **settings).contents is not None
    assert read_all_bytes(out) == reference
    assert prepare_tokens(make_spec(texts), out, part=(3, 3), **settings).contents is not None  # no part is left


def prepare_until_killed(spec: TextSpec, out: Path, n: int, *, after: bool) -> int:
    """Prepare in a process that kills itself at its n-th rename."""
    pid = os.fork()
    if pid == 0:
        rename, count = os.replace, 0

        def replace(source: Any, target: Any) -> None:
            nonlocal count
            count += 1
            if count == n and not after:
                os.kill(os.getpid(), signal.SIGKILL)
            rename(source, target)
            if count == n:
                os.kill(os.getpid(), signal.SIGKILL)

        os.replace = replace
        try:
            prepare_tokens(spec, out, shard_tokens=512, workers=1)
        finally:
            os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def moments() -> Iterator[tuple[int, bool]]:
    chance = random.Random(2)
    while True:
        yield chance.randint(1, 30), chance.random() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("validation", sampled(["documents", "tail"]))
def test_repeated_kills_give_the_same_shards(texts: Path, tmp_path: Path, validation: str) -> None:
    spec = make_spec(texts) if validation == "documents" else TextSpec(source=str(texts), tokenizer=BPE(vocab_size=300))
    prepare_all(spec, tmp_path / "reference")
    out, deaths = tmp_path / "tokens", 0
    for n, after in moments():
        code = prepare_until_killed(spec, out, n, after=after)
        assert code in (0, -signal.SIGKILL)
        deaths += code != 0
        if code == 0:
            break
    assert deaths >= 4
    assert read_all_bytes(out) == read_all_bytes(tmp_path / "reference")


@pytest.mark.slow
def test_existing_shard_is_not_written_again(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "tokens"
    assert prepare_until_killed(make_spec(texts), out, 25, after=True) == -signal.SIGKILL
    modified_times = {path: path.stat().st_mtime_ns for path in (out / ".parts").glob("*.bin")}
    records = {path.name.partition(".")[0] for path in (out / ".parts").glob("0*.json")}
    assert len(records) >= 2
    inodes = {path.stat().st_ino for path in modified_times if path.name.partition(".")[0] in records}
    prepare_all(make_spec(texts), out)
    assert {path.stat().st_ino for path in out.iterdir()} & inodes  # renamed, not written again


@pytest.mark.parametrize(
    ("kind", "is_missing"),
    sampled(
        [*itertools.product(("validation.bin", "validation.documents.npy", "counts.npy"), (False, True))],
        keep=(0, 3, 4),
    ),
)
def test_damage_between_two_parts_is_named_and_written_again(
    texts: Path, tmp_path: Path, reference: dict[str, bytes], kind: str, is_missing: bool
) -> None:
    out, settings = tmp_path / "tokens", {"shard_tokens": 512, "workers": 1}
    prepare_tokens(make_spec(texts), out, part=(1, 2), **settings)
    path = max((out / ".parts").glob(f"*.{kind}"), key=lambda path: path.stat().st_size)
    data = path.read_bytes()
    path.write_bytes(data[:-2] + bytes([data[-2] ^ 1]) + data[-1:])
    if is_missing:
        path.unlink()
    with pytest.raises(UserError, match=rf"{path.name} is damaged; run the same command again"):
        prepare_tokens(make_spec(texts), out, part=(2, 2), **settings)
    assert prepare_tokens(make_spec(texts), out, part=(1, 2), **settings).contents is not None
    assert read_all_bytes(out) == reference


def test_patterns_and_several_sources(texts: Path, tmp_path: Path) -> None:
    spec = TextSpec(source="of no use", tokenizer=Characters())
    prepare_all(spec, tmp_path / "tokens", sources=[f"{texts}/[1-3].txt", f"{texts}/deep/*.jsonl"])
    corpus = prepare(TextSpec(source=str(tmp_path / "tokens")))
    text = corpus.tokenizer.decode([*np.asarray(corpus.train), *corpus.validation])
    parts = [(texts / f"{number}.txt").read_text() for number in (1, 2, 3)]
    assert text.startswith("".join(parts))
    with pytest.raises(UserError, match=r"no file matches .*\*.nothing; correct the pattern"):
        prepare_all(spec, tmp_path / "others", sources=[f"{texts}/*.nothing"])


def test_changed_inputs_or_settings_are_rejected(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    prepare_all(make_spec(texts), out)
    with pytest.raises(UserError, match="contains tokens of other inputs or settings; pass another --out"):
        prepare_all(make_spec(texts), out, shard_tokens=1024)
    (texts / "0.txt").write_text("more")
    with pytest.raises(UserError, match="contains tokens of other inputs or settings"):
        prepare_all(make_spec(texts), out)
    with pytest.raises(UserError, match="was not written by `tercet data prepare`; pass another --out"):
        prepare_all(make_spec(texts), texts)


def test_start_with_other_settings_is_rejected(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    prepare_tokens(make_spec(texts), out, shard_tokens=512, workers=1, part=(1, 2))
    with pytest.raises(UserError, match="was started with other inputs or settings; use those"):
        prepare_tokens(make_spec(texts), out, shard_tokens=600, workers=1, part=(2, 2))


@pytest.mark.slow
def test_an_input_that_cannot_be_read_names_its_file(texts: Path, tmp_path: Path) -> None:
    (texts / "9.txt").write_bytes(b"\xff\xfb\xff" * 50)
    tokenizer = Tokenizer.train(BPE(vocab_size=300), ["some text"])
    for workers in (1, 2):
        with pytest.raises(UserError, match=r"9\.txt is not utf-8 text: byte 0 cannot be read"):
            prepare_all(make_spec(texts), tmp_path / f"tokens-{workers}", tokenizer=tokenizer, workers=workers)
    (texts / "9.txt").unlink()


def test_empty_part_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "one.txt").write_text("one document")
    spec = TextSpec(source=str(tmp_path / "one.txt"), tokenizer=Characters(), validation=Documents(fraction=1e-9))
    with pytest.raises(
        UserError, match=r"none of the 13 tokens is for validation; increase data\.validation\.fraction"
    ):
        prepare_all(spec, tmp_path / "tokens")


def test_a_full_disk_is_one_line(texts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import errno

    from tercet.data.shards import shard_writer

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(shard_writer._IdSink, "flush", full)
    with pytest.raises(UserError, match=r"disk full while writing .*\.bin; free some space, or choose another folder"):
        prepare_all(make_spec(texts), tmp_path / "tokens")


def test_damage_is_named(texts: Path, tmp_path: Path) -> None:
    out = tmp_path / "tokens"
    prepare_all(make_spec(texts), out)
    spec = TextSpec(source=str(out))
    path = out / "train-00001.bin"
    data = path.read_bytes()
    path.write_bytes(data[:40] + bytes([data[40] ^ 1]) + data[41:])
    assert [line for line in verify(out).damaged if "train-00001.bin is damaged" in line]
    path.write_bytes(data[:-2])
    with pytest.raises(UserError, match=r"train-00001.bin has [\d,]+ bytes, but manifest.json specifies [\d,]+; copy"):
        prepare(spec)
    path.unlink()
    with pytest.raises(UserError, match=r"train-00001.bin is missing; copy the folder again"):
        prepare(spec)
    path.write_bytes(data)
    with pytest.raises(UserError, match="were made with another tokenizer than the model's; prepare the text with"):
        prepare(spec, tokenizer=Tokenizer.train(Characters(), ["ab"]))
    manifest = out / "manifest.json"
    manifest.write_text(manifest.read_text().replace("train-00001", "train-00009", 1))
    with pytest.raises(UserError, match=r"manifest.json is damaged"):
        prepare(spec)
