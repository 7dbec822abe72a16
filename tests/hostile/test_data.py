"""Text files and numbers that could take endless time or memory are processed, or rejected in one line."""

import gzip
import io
import json
import os
import random
import socket
import stat
import threading
import time
from pathlib import Path

import pyarrow as pa
import pytest
from attack import MEMORY, attack, attack_function
from data_files import assert_each_rejected, refuse, write_hostile_file
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet
from report import count_inputs
from tokenizers import pre_tokenizers

import tercet.checkpoint
import tercet.encoding
import tercet.generation  # noqa: F401  # in the parent once, and not in every child
from tercet import limits
from tercet.cli.lines import read_lines
from tercet.cli.main import main
from tercet.config import UserError
from tercet.data import TextSpec, prepare
from tercet.data.rows.pools import take_pool
from tercet.data.sources.documents import DocumentFiles, cut_pieces
from tercet.reading.text_files import open_regular_file
from tercet.tokens import BPE, Tokenizer, TrainableTokenizerSpec, Unigram, WordPiece, Words, trainers

SCALE = int(os.environ.get("TERCET_HOSTILE", "1"))
BATCH = 25  # files per child
SECONDS = 10


# Arbitrary bytes.


@pytest.mark.slow
@pytest.mark.parametrize("batch", range(2 if SCALE == 1 else 4 * SCALE))
def test_any_file_is_read_or_rejected(batch: int, tmp_path: Path) -> None:
    commands = [write_hostile_file(tmp_path, seed) for seed in range(batch * BATCH, (batch + 1) * BATCH)]

    def read_files() -> int:
        for path, arguments in commands:
            began = time.process_time()
            code = main(arguments)
            count_inputs(taken=code == 0, refused=code == 2)
            if code not in (0, 2) or time.process_time() - began > SECONDS:
                print(f"{path.name}: exit code {code}, {time.process_time() - began:.1f} s")
                return 1
        return 0

    outcome = attack_function(read_files, seconds=SECONDS * BATCH)
    assert outcome.code == 0, outcome.stdout[-300:] + outcome.stderr[-3000:]
    assert outcome.memory < MEMORY
    assert max(map(len, outcome.stderr.splitlines()), default=0) < 2000


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(SCALE))
def test_any_text_is_encoded_or_rejected(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    draw = random.Random(seed)
    specs = (BPE(vocab_size=300), Unigram(vocab_size=300), WordPiece(vocab_size=300), Words(vocab_size=50))
    paths = [write_hostile_file(tmp_path, number)[0] for number in range(seed * 10, seed * 10 + 10)]

    def prepare_files() -> int:
        for path in paths:
            try:
                prepare(TextSpec(source=str(path), tokenizer=draw.choice(specs)))
            except UserError as error:
                print(error)
                count_inputs(refused=1)
            else:
                count_inputs(taken=1)
        return 0

    outcome = attack_function(prepare_files, seconds=SECONDS * 10)
    assert outcome.code == 0, outcome.stderr[-3000:]
    assert outcome.memory < MEMORY
    assert max(map(len, outcome.stdout.splitlines()), default=0) < 2000


# Words of unlimited length.


@pytest.mark.parametrize("text", ["a" * 300_000, "ACGT" * 75_000, "\t" * 300_000])
@pytest.mark.parametrize("spec", [BPE(vocab_size=400), WordPiece(vocab_size=400), Words()], ids=lambda spec: spec.kind)
def test_training_on_long_words_is_fast(spec: TrainableTokenizerSpec, text: str) -> None:
    began = time.process_time()
    tokenizer = Tokenizer.train(spec, [text, "some other words"])
    tokenizer.encode(text)
    assert time.process_time() - began < 5  # 300,000 characters once took BPE and WordPiece more than 25 s
    assert max(map(len, tokenizer.tokens(range(tokenizer.vocab_size)))) <= 2 * trainers.LONGEST_WORD


@given(st.lists(st.sampled_from(["a" * 9, "b", " ", "\n", "1", "22222222", "!?", "\t\t\t\t\t\t", "é"]), max_size=40))
def test_only_words_that_are_too_long_are_cut(parts: list[str]) -> None:
    text, splitter = "".join(parts), pre_tokenizers.ByteLevel(add_prefix_space=False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainers, "LONGEST_WORD", 5)
        pieces = list(trainers.cut_words([text], splitter))
    words = splitter.pre_tokenize_str(text)
    assert "".join(pieces) == text
    cut = [word for piece in pieces for word in splitter.pre_tokenize_str(piece)]
    assert all(len(word) <= 2 * 5 or not word.isascii() for word, _ in cut)  # é is written as two characters
    if all(len(word) < 5 for word, _ in words):
        assert pieces == [text]


def test_training_text_with_few_repetitions_is_shortened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trainers, "LONGEST_WORD", 5)
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    assert list(trainers.cut_words(["a word " + "b" * 33], splitter, keep=2)) == [
        "a word " + "b" * 8,
        "bbbbb",
        "",
        "",
        "",
        "bbbbb",
    ]
    assert list(trainers.cut_words(["b" * 12, "c"], splitter, keep=0)) == ["", "", "bb", "c"]


def test_ordinary_training_text_is_unchanged() -> None:
    splitter = pre_tokenizers.ByteLevel(add_prefix_space=False)
    for text in (
        "words and more words\n" * 5000,
        "。".join("漢字仮名交じり文" * 9 for _ in range(900)),
        "-" * 4095 + "a" * 4095,
    ):
        assert list(trainers.cut_words([text], splitter)) == [text]


# Lines, objects and rows.


@pytest.mark.slow
def test_long_text_is_split_in_linear_time() -> None:
    def seconds(n: int) -> float:
        began = time.process_time()
        assert sum(len(piece.text) for piece in cut_pieces(["a line\r\n" * (n // 8)])) == n // 8 * 8
        return time.process_time() - began

    seconds(1 << 20)
    assert seconds(16 << 20) < 2  # quadratic search once took 20 s, looking at 4 million characters per 65,536


COSTLY = [
    ("a.jsonl", b'{"text": "' + b"x" * (50 << 20), "line 1 has more than 4,194,304 characters"),
    ("a.jsonl", b'{"text": "a"}\n' + b"[" * 1_000_000, "line 2 is not JSON (nested too deeply)"),
    ("a.jsonl", b'{"text": ' + b"9" * 1_000_000 + b"}", "line 1 is not JSON (a number has too many digits)"),
    ("a.jsonl", b'{"text": 1e999999}', "is not text"),
    ("a.jsonl", json.dumps({f"key{n}": n for n in range(200_000)}).encode(), "has no field 'text'"),
    ("a.csv", b"text,label\n" + b'"' + b"x" * (1 << 20), "field larger than field limit"),
    ("a.csv", b'text,label\n"a' + b'","\n' * (2 << 20), "the row has more than 4,194,304 characters"),
    ("a.tsv", b"one\ttwo" + b"\t" * (3 << 20), "has no column 'text'"),
    ("a.csv", b"text,label\na," + b"x" * 100_000, "a label of 100,000 characters"),
    ("a.txt", b"a\xff", "is not utf-8 text: byte 1"),
]  # fmt: skip


@pytest.mark.slow
def test_excessive_lines_are_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINE_CHARACTERS", 4 << 20)
    paths = [tmp_path / f"{number}{name}" for number, (name, _, _) in enumerate(COSTLY)]
    for path, (_, content, _) in zip(paths, COSTLY, strict=True):
        path.write_bytes(content)
    assert_each_rejected([["data", str(path)] for path in paths], *(words for _, _, words in COSTLY))


@pytest.mark.slow
def test_a_long_line_of_plain_text_is_accepted(tmp_path: Path) -> None:
    """The limit on lines does not apply if no line is requested."""
    (tmp_path / "a.txt").write_bytes(b"x" * (17 << 20))
    outcome = attack(["data", str(tmp_path / "a.txt")])
    assert outcome.code == 0
    assert outcome.memory < MEMORY
    assert "17,825,792" in outcome.stdout


def test_unsuitable_encodings_are_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"\\ud800 +2AA- text")
    encodings = ["punycode", "unicode_escape", "idna", "undefined", "hex", "no\ud800such", "utf-16"]
    assert_each_rejected([["data", str(path), "--encoding", encoding] for encoding in encodings], *["ncoding"] * 7)


def test_an_unpaired_surrogate_in_utf_7_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"+2AA-")
    refuse(attack(["data", str(tmp_path / "a.txt"), "--encoding", "utf-7"]), "is not utf-7 text")


def test_lines_and_pools_of_a_command_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LINE_CHARACTERS", 10)
    monkeypatch.setattr(limits, "POOL_CHARACTERS", 25)
    assert list(read_lines(io.BytesIO(b"0123456789\n0"), "stdin")) == ["0123456789", "0"]
    with pytest.raises(UserError, match="stdin line 2 has more than 10 bytes"):
        list(read_lines(io.BytesIO(b"a\n0123456789a"), "stdin"))
    lines = iter(["0123456789"] * 7)
    assert [len(take_pool(lines, 5, str)) for _ in range(4)] == [3, 3, 1, 0]


@pytest.mark.slow
def test_many_small_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERCET_CACHE", str(tmp_path / "cache"))
    (tmp_path / "a.jsonl").write_bytes(b'{"text": ""}\n' * 30_000 + b'{"text": "a"}\n' * 30_000)
    outcome = attack(["data", str(tmp_path / "a.jsonl")])
    assert outcome.code == 0
    assert outcome.memory < MEMORY
    assert "30,000" in outcome.stdout


# Compressed files that unpack to huge sizes.


@pytest.mark.slow
def test_gzip_bombs_are_rejected(tmp_path: Path) -> None:
    def packed(row: str, header: str = "") -> bytes:
        """The rows are few and long, since bytes are counted."""
        return gzip.compress((header + row.format("a" * 500) * (16 << 10)).encode())

    bomb = packed("{}\n")
    bombs = {
        "jsonl": packed('{{"text": "{}"}}\n'),
        "csv": packed("{},1\n", "text,label\n"),
        "tsv": packed("{0}\t{0}\n"),
    }
    for kind in ("txt", "jsonl", "csv", "tsv", "parquet"):
        name = f"a.{kind}.gz"
        (tmp_path / name).write_bytes(bombs.get(kind, bomb))
        refuse(attack(["data", str(tmp_path / name)], seconds=60), "unpack to more than 200 times as many")
    (tmp_path / "a.txt.gz.gz").write_bytes(gzip.compress(bomb))
    refuse(attack(["data", str(tmp_path / "a.txt.gz.gz")]), "suffix .gz, which is not supported")
    (tmp_path / "lines.gz").write_bytes(bomb)
    refuse(attack(["data", str(tmp_path / "lines.gz"), str(tmp_path / "lines.gz")], seconds=60), "unpack")


@pytest.mark.slow
def test_small_files_may_have_any_compression_ratio(tmp_path: Path) -> None:
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"a" * (3 << 20)))
    assert attack(["data", str(tmp_path / "a.txt.gz")]).code == 0


@pytest.mark.slow
@pytest.mark.parametrize("rows", [("x" * (1 << 20), 100), ("x" * (24 << 20), 1)], ids=["dictionary", "page"])
def test_parquet_bombs_are_rejected(tmp_path: Path, rows: tuple[str, int]) -> None:
    text, count = rows
    column = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array([text]))
    parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet", compression="zstd")
    refuse(attack(["data", str(tmp_path / "a.parquet")]), "unpack to more than 200 times as many")


@pytest.mark.slow
def test_parquet_with_invalid_utf_8_is_rejected(tmp_path: Path) -> None:
    column = pa.Array.from_buffers(pa.string(), 1, pa.array([b"\xff\xfe"], pa.binary()).buffers())
    parquet.write_table(pa.table({"text": column}), tmp_path / "a.parquet")
    refuse(attack(["data", str(tmp_path / "a.parquet")]), "is not UTF-8 text")


@pytest.mark.slow
@pytest.mark.parametrize(("version", "use_dictionary"), [("1.0", True), ("2.0", False)])
def test_forged_parquet_bytes_are_read_or_rejected(tmp_path: Path, version: str, use_dictionary: bool) -> None:
    """Changing any byte leads to text or one line of error, and never kills the process.

    The bytes are those of the pages, sizes and counts of their headers, lengths of texts, numbers of the dictionary,
    and the footer with their places.
    """
    table, whole, path = pa.table({"text": ["the cat", "a dog", "a dog", None]}), io.BytesIO(), tmp_path / "a.parquet"
    parquet.write_table(
        table, whole, compression="none", use_dictionary=use_dictionary, data_page_version=version, store_schema=False,
        write_statistics=False,
    )  # fmt: skip
    data = whole.getvalue()

    def work() -> int:
        read = 0
        for place in range(4, len(data) - 8):
            others = {data[place] ^ 1, 0, 0x7F} if SCALE > 1 else set[int]()
            for value in {data[place] ^ 0x80, 0xFF, *others} - {data[place]}:
                path.write_bytes(data[:place] + bytes([value]) + data[place + 1 :])
                try:
                    list(DocumentFiles(root=path).pieces())
                    read += 1
                except UserError as error:
                    if len(str(error).splitlines()) != 1:
                        return 3
        return 0 if read else 4

    outcome = attack_function(work, seconds=60)
    assert outcome.code == 0, (outcome.code, outcome.stderr[-2000:])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "SEEK_HOLE"), reason="a file system's own")
def test_a_sparse_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    with path.open("wb") as file:
        file.write(b"text")
        file.truncate(limits.FILE_BYTES // 1024)
    refuse(attack(["data", str(path)]), "unpack")
    with path.open("wb") as file:
        file.truncate(limits.FILE_BYTES + 1)
    refuse(attack(["data", str(path)]), "has 1,099,511,627,777 bytes")


# Paths that are not regular files.


@pytest.fixture(params=["/dev/zero", "/dev/random", "pipe", "socket", "folder", "loop", "/proc/kcore", "linked"])
def no_file(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    path = tmp_path / "it"
    match request.param:
        case "pipe":
            os.mkfifo(path)
        case "socket":
            with socket.socket(socket.AF_UNIX) as unix:
                unix.bind(os.path.relpath(path))
        case "folder":
            path.mkdir()
        case "loop":
            path.symlink_to(path)
        case "linked":
            path = tmp_path / "it.jsonl"
            path.symlink_to("/dev/zero")
        case device:
            if not os.access(device, os.R_OK):
                pytest.skip(f"no {device} to read")
            return device
    return str(path)


@pytest.mark.slow
def test_irregular_files_are_rejected(no_file: str, tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("a\n")
    lines = str(tmp_path / "lines.txt")
    commands = [
        ["data", no_file], ["data", no_file, lines], ["data", lines, no_file], ["data", no_file, "--label-field", "b"],
        ["generate", "run", "--prompt", f"FILE:{no_file}"], ["translate", "run", "--input", no_file],
        ["translate", "run", "--input", lines, "--prefix", no_file],
        ["embed", "run", "--input", no_file, "--output", "o.npz"],
        ["embed", "run", "--query", "a", "--input", no_file], ["embed", "run", "--query", "a", "--vectors", no_file],
        ["classify", "run", "--input", no_file], ["evaluate", "run", "--per-line", "--data", no_file],
        ["evaluate", "run", "--per-line", "--source", no_file, "--target", lines],
        ["evaluate", "run", "--per-line", "--source", lines, "--target", no_file],
    ]  # fmt: skip
    # All commands use the same function. A pipe would hang if one did not.
    assert_each_rejected(commands if stat.S_ISFIFO(os.lstat(no_file).st_mode) else commands[:2])


@pytest.mark.slow
def test_links_to_devices_are_rejected(tmp_path: Path) -> None:
    paths = [tmp_path / f"zero{suffix}" for suffix in (".txt", ".txt.gz", ".jsonl", ".parquet", ".csv", ".tsv")]
    for path in paths:
        path.symlink_to("/dev/zero")
    assert_each_rejected([["data", str(path)] for path in paths], *["is not a regular file"] * len(paths))
    refuse(attack(["data", str(tmp_path)]), "has no readable file")  # none of them is a regular file


@pytest.mark.slow
def test_impossible_paths_are_rejected() -> None:
    for path in ("x" * 5000, "~nobody-of-this-name/a.txt", "a\0b", "a\ud800b.txt", "a\nb.txt"):
        assert_each_rejected([["data", path], ["data", path, path], ["data", path, "--label-field", "x"]])


def test_file_names_may_have_any_bytes(tmp_path: Path) -> None:
    for name in (b"a\xff.txt", b"b\nc.txt", b".hidden.txt"):
        Path(os.fsdecode(os.fsencode(tmp_path) + b"/" + name)).write_text("text")
    (tmp_path / "loop").symlink_to(tmp_path)
    outcome = attack(["data", str(tmp_path)])
    assert outcome.code == 0
    assert "documents   2" in outcome.stdout
    assert len(DocumentFiles(root=tmp_path).hash()) == 64


def test_a_folder_with_too_many_files_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "FOLDER_ENTRIES", 2)
    for number in range(3):
        (tmp_path / f"{number}.txt").write_text("a")
    refuse(attack(["data", str(tmp_path)]), "more than 2 files and folders")


def test_a_file_that_changes_during_reading_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"text\n" * 200_000)
    with open_regular_file(path) as file:
        assert len(file.read(10)) == 10
        with path.open("ab") as appended_file:
            appended_file.write(b"x" * 1_000_000)
        assert len(file.read(10_000_000)) == 999_990
    with open_regular_file(path) as file:
        file.read(10)
        os.truncate(path, 100)
        with pytest.raises(UserError, match="became shorter while it was read"):
            file.read(10_000_000)
    stop = threading.Event()

    def grow() -> None:
        with path.open("ab") as file:
            while not stop.is_set():
                file.write(b"more\n" * 100_000)

    writer = threading.Thread(target=grow)
    writer.start()
    try:
        assert sum(1 for _ in DocumentFiles(root=path).pieces()) > 0
    finally:
        stop.set()
        writer.join()
