"""Malformed files of text, sentence pairs and labeled texts, each generated from a seed."""

import bz2
import csv
import gzip
import io
import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from attack import MEMORY, Outcome, attack_in_one_child
from pyarrow import parquet

SUFFIXES = (
    ".txt", ".jsonl", ".csv", ".tsv", ".parquet", ".txt.gz", ".jsonl.gz", ".csv.gz", ".tsv.gz", ".parquet.gz",
    ".fa", ".fastq", ".bin", ".npy", ".fa.gz", ".npy.gz",
)  # fmt: skip
ODD = (
    "\0", "\r", "\r\n", "\n", "\n\n", "\t", '"', ",", "\ufeff", "\u2028", "\x1c", "\x85", "e\u0301", "🙂", "\U0010ffff",
    "<eos>", "[MASK]", " ",
)  # fmt: skip
BYTES = (
    b"\xff\xfe", b"\xfe\xff", b"\xed\xa0\x80", b"\xc0\x80", b"\x80", b"\xf4\x90\x80\x80", b"\0", b"\x1f\x8b", b"PAR1",
    b"\r", b"\n", b'"', b"\\u",
)  # fmt: skip
ENCODINGS = (
    "utf-8",
    "utf-8",
    "utf-8",
    "utf-16",
    "utf-32-be",
    "latin-1",
    "utf-7",
    "cp1252",
    "shift_jis",
    "utf-8-sig",
    "gb18030",
)


def refuse(outcome: Outcome, *words: str) -> None:
    assert outcome.refused_in_one_line(), (outcome.code, outcome.stderr[-2000:])
    assert len(outcome.stderr.splitlines()) == 1, outcome.stderr[:3000]
    assert len(outcome.stderr) < 2000, outcome.stderr[:3000]
    assert outcome.memory < MEMORY
    for word in words:
        assert word in outcome.stderr


def assert_each_rejected(commands: Sequence[Sequence[str]], *words: str) -> None:
    """Run several commands in one child; `words` has one expected text per command, or none."""
    for outcome, word in zip(attack_in_one_child(commands), words or [""] * len(commands), strict=True):
        refuse(outcome, word)


def write_hostile_file(folder: Path, seed: int) -> tuple[Path, list[str]]:
    """Write a file to `folder` and return it with arguments of `tercet data` to read it."""
    draw = random.Random(seed)
    suffix = draw.choice(SUFFIXES)
    kind = suffix.removesuffix(".gz")
    content = FORMATS[kind](draw)
    if draw.random() < (0.8 if kind == ".parquet" else 0.4):
        content = mutate(content, draw)
    if suffix.endswith(".gz") and draw.random() < 0.95:
        content = gzip.compress(content, 1)
        if draw.random() < 0.5:
            content = mutate(content, draw)
    elif draw.random() < 0.02:
        content = draw.choice([b"", bz2.compress(content), gzip.compress(content), content[:1] * 100_000])
    path = folder / f"{seed}{suffix}"
    path.write_bytes(content)
    arguments = ["data", *(["look"] if draw.random() < 0.5 else []), str(path)]
    if draw.random() < 0.2:
        (folder / f"{seed}.target").write_bytes(mutate(FORMATS[".txt"](draw), draw))
        arguments.append(str(folder / f"{seed}.target"))
    for flag, values in (
        ("--encoding", ENCODINGS), ("--text-field", ("text", "texts", "", "label")),
        ("--label-field", ("label", "text", "b")), ("--over", ("texts", "tokens")),
        ("--documents", ("file", "line", "blank_line")), ("--dtype", ("uint16", "uint32")),
    ):  # fmt: skip
        if draw.random() < 0.2:
            arguments += [flag, draw.choice(values)]
    return path, arguments


def mutate(content: bytes, draw: random.Random) -> bytes:
    """Return the content with some bytes changed, removed, repeated or moved."""
    data = bytearray(content)
    for _ in range(draw.choice((1, 1, 2, 3, 8, 30))):
        at = draw.randrange(len(data) + 1)
        match draw.randrange(6):
            case 0 if data:
                data[at % len(data)] = draw.randrange(256)
            case 1 if data:
                data[at % len(data)] ^= 1 << draw.randrange(8)
            case 2:
                data[at:at] = draw.choice(BYTES)
            case 3:
                del data[at : at + draw.choice((1, 2, 8, 100))]
            case 4:
                data[at:at] = data[at : at + 50] * draw.choice((1, 2, 20))
            case _:
                data[at : at + 4] = draw.randbytes(4)
    return bytes(data)


def draw_text(draw: random.Random) -> str:
    words = [
        draw.choice(ODD) if draw.random() < 0.2 else "".join(draw.choices("abcdeé", k=draw.randint(1, 8)))
        for _ in range(draw.choice((0, 1, 3, 10, 60)))
    ]
    return draw.choice((" ", " ", "")).join(words) * draw.choice((1, 1, 1, 1, 500))


def draw_value(draw: random.Random, depth: int = 0) -> object:
    match draw.randrange(10 if depth < 4 else 7):
        case 0:
            return draw.choice((None, True, False, "", " "))
        case 1:
            return draw.choice((0, -1, 10**30, 1e308, float("inf"), float("nan")))
        case 2:
            return "\ud800" if draw.random() < 0.2 else "x" * draw.choice((1, 999, 1001, 70_000))
        case 7:
            return [draw_value(draw, depth + 1) for _ in range(draw.randrange(4))]
        case 8:
            return {draw_text(draw)[:9]: draw_value(draw, depth + 1) for _ in range(draw.randrange(4))}
        case _:
            return draw_text(draw)


def _text(draw: random.Random) -> bytes:
    return "\n".join(draw_text(draw) for _ in range(draw.choice((0, 1, 5, 30)))).encode(
        draw.choice(("utf-8", "utf-16", "utf-8-sig"))
    )


def _json_lines(draw: random.Random) -> bytes:
    lines = list[str]()
    for _ in range(draw.choice((1, 3, 20))):
        kind = draw.random()
        if kind < 0.7:
            row: object = {
                "text": draw_text(draw),
                "label": draw.choice("abc"),
                "source": draw_text(draw),
                "target": "a",
            }
        elif kind < 0.8:
            words = draw_text(draw).split()
            row = {"tokens": words, "labels": [draw.choice("ab") for _ in words]}
        else:
            row = {"text": draw_value(draw), "label": draw_value(draw)} if kind < 0.95 else draw_value(draw)
        lines.append(json.dumps(row, ensure_ascii=draw.random() < 0.5))
    if draw.random() < 0.2:
        deep = draw.choice((100, 2000, 100_000))
        lines.append(
            draw.choice(("[" * deep, '{"text":' * deep, '{"text": ' + "9" * deep + "}", '{"text": 1e' + "9" * 99 + "}"))
        )
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _table(delimiter: str) -> Callable[[random.Random], bytes]:
    def write(draw: random.Random) -> bytes:
        file = io.StringIO()
        writer = csv.writer(file, delimiter=delimiter, lineterminator=draw.choice(("\n", "\r\n")))
        header = draw.choice((["text", "label"], ["label", "x", "text"], ["text"], ["text", "text", "label"]))
        writer.writerows([header, *([draw_text(draw)] * len(header) for _ in range(draw.choice((0, 2, 20))))])
        text = file.getvalue()
        return (text + draw.choice(("", '"', '"never ends', '"a"b', delimiter * 5000, '"' + "\n" * 5000))).encode()

    return write


def _parquet(draw: random.Random) -> bytes:
    file = io.BytesIO()
    rows = draw.choice((0, 1, 50))
    texts = [draw_text(draw) for _ in range(rows)]
    columns = draw.choice(
        [
            {"text": texts},
            {"text": pa.array([text.encode() for text in texts], pa.binary()), "b": texts},
            {"text": pa.array(texts, pa.string()).dictionary_encode(), "label": [draw.choice("ab")] * rows},
            {"text": pa.array([[text] for text in texts], pa.list_(pa.string()))},
        ]
    )
    parquet.write_table(
        pa.table(columns), file, compression=draw.choice(("snappy", "zstd", "gzip", "none")),
        row_group_size=draw.choice((1, 10, 1000)), use_dictionary=draw.random() < 0.5,
    )  # fmt: skip
    return file.getvalue()


def _fasta(draw: random.Random) -> bytes:
    lines = list[str]()
    for _ in range(draw.choice((0, 1, 9))):
        lines += [
            f">{draw_text(draw)[:30]}",
            *("".join(draw.choices("ACGTN-*", k=60)) for _ in range(draw.randrange(9))),
        ]
    return draw.choice(("\n", "\r\n")).join(lines).encode()


def _fastq(draw: random.Random) -> bytes:
    reads = ["".join(draw.choices("ACGTN", k=draw.choice((0, 9, 200)))) for _ in range(draw.choice((0, 1, 9)))]
    return "".join(f"@{number}\n{read}\n+\n{'I' * len(read)}\n" for number, read in enumerate(reads)).encode()


def _ids(draw: random.Random) -> bytes:
    return draw.randbytes(2 * draw.choice((0, 1, 500)))


def _npy(draw: random.Random) -> bytes:
    file = io.BytesIO()
    dtype = draw.choice(("uint16", "int64", "float32", "U3", "O"))
    np.save(file, np.array([draw.randrange(99) for _ in range(draw.choice((0, 5, 300)))]).astype(dtype))
    return file.getvalue()


FORMATS: dict[str, Callable[[random.Random], bytes]] = {
    ".txt": _text,
    ".jsonl": _json_lines,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".parquet": _parquet,
    ".fa": _fasta,
    ".fastq": _fastq,
    ".bin": _ids,
    ".npy": _npy,
}
