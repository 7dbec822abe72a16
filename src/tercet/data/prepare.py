"""Text to ids, once: the ids stand memory-mapped in a cache folder, under a name made from all that they depend on.

A changed file, tokenizer or split is another name, so nothing stale is ever served. A folder is written under a
temporary name and renamed when whole; of two processes that prepare the same data, the later takes the earlier's.
"""

import errno
import hashlib
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

from tercet.config import UserError, plain
from tercet.data.datasets import cache_folder, find
from tercet.data.sources import Piece, Source
from tercet.data.specs import DataSpec, Documents, HeldOut, Tail
from tercet.data.splitting import split_documents, split_tail
from tercet.tokens import Characters, Tokenizer, TokenizerSpec

FORMAT = 1  # counts up when the same settings give other files
TRAINING_BYTES = 256 << 20  # of text, from which BPE and words learn their vocabulary
AT_ONCE = (1 << 20) * min(16, max(2, os.cpu_count() or 1))  # characters encoded together: some pieces for each core


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Tokenised text in two parts.

    Attributes:
        train, validation: (N,) memory-mapped ids, uint16 where the vocabulary has at most 65,536, else uint32.
        train_documents, validation_documents: int64 place at which each document starts.
        train_bytes, validation_bytes: UTF-8 bytes of text on each side.
        hash: sha256 of the text the ids were made from.
    """

    name: str
    hash: str
    tokenizer: Tokenizer
    train: np.ndarray
    validation: np.ndarray
    train_documents: np.ndarray
    validation_documents: np.ndarray
    train_bytes: int
    validation_bytes: int


def prepare(spec: DataSpec, *, tokenizer: Tokenizer | None = None, progress: bool = False) -> Corpus:
    """The corpus that `spec` describes, from the cache where it is there.

    Args:
        tokenizer: takes the place of `spec.tokenizer`, as when a trained model meets new text.
        progress: show a bar on stderr, where that is a terminal.

    Raises:
        UserError: where text cannot be read, tokenised or divided, or the cache cannot be written.
    """
    source = find(spec.source, encoding=spec.encoding, text_field=spec.text_field)
    held_out = None
    if isinstance(spec.validation, HeldOut):
        held_out = find(spec.validation.source, encoding=spec.encoding, text_field=spec.text_field)
    hashes = [one.hash() for one in (source, held_out) if one]
    content = hashes[0] if len(hashes) == 1 else _digest(*hashes)
    reading = [spec.encoding, spec.text_field]
    with _disk_errors_told():
        tokenizer = tokenizer or _trained(spec.tokenizer, source, _digest(FORMAT, hashes[0], reading))
        key = _digest(FORMAT, content, reading, plain(spec.validation), tokenizer.hash, sys.byteorder)
        folder = cache_folder() / "corpora" / key[:32]
        if not _whole(folder):
            with _appearing(folder) as new, _bar(shown=progress) as bar:
                _write(new, spec, source, held_out, tokenizer, bar)
    return _load(folder, name=spec.source, content=content, tokenizer=tokenizer)


def _trained(spec: TokenizerSpec, source: Source, content: str) -> Tokenizer:
    """The tokenizer learnt from `source`, kept in the cache."""
    if spec.kind in ("gpt2", "file"):
        return Tokenizer.train(spec, ())
    path = cache_folder() / "tokenizers" / f"{_digest(content, plain(spec))[:32]}.json"
    if not path.exists():
        most = None if isinstance(spec, Characters) else TRAINING_BYTES
        learnt = Tokenizer.train(spec, _texts(source, most))
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".") as new:
            learnt.save(Path(new, path.name))
            os.replace(Path(new, path.name), path)
    return Tokenizer.load(path)


def _texts(source: Source, most: int | None) -> Iterator[str]:
    """The text of `source`, as far as `most` bytes."""
    done = 0
    for piece in source.pieces():
        yield piece.text
        done += len(piece.text.encode())
        if most is not None and done >= most:
            return


def _write(
    folder: Path, spec: DataSpec, source: Source, held_out: Source | None, tokenizer: Tokenizer, bar: Progress
) -> None:
    starts, sizes = _encode(source, tokenizer, folder / "train.bin", bar)
    dtype = id_type(tokenizer)
    text_bytes = int(sizes.sum())
    match spec.validation:
        case HeldOut():
            assert held_out is not None
            held_starts, held_sizes = _encode(held_out, tokenizer, folder / "validation.bin", bar)
            held_bytes = int(held_sizes.sum())
        case Tail(fraction=fraction):
            starts, held_starts = split_tail(folder, starts, dtype, fraction)
            held_bytes = _count_bytes(folder / "validation.bin", tokenizer)
            text_bytes -= held_bytes
        case Documents(fraction=fraction):
            (starts, held_starts), moved = split_documents(folder, starts, dtype, fraction, name=spec.source)
            held_bytes = int(sizes[moved].sum())
            text_bytes -= held_bytes
    np.save(folder / "train_documents.npy", starts)
    np.save(folder / "validation_documents.npy", held_starts)
    meta = {
        "source": spec.source,
        "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash},
        "dtype": dtype.name,
        "files": {path.name: path.stat().st_size for path in sorted(folder.iterdir())},
        "train_bytes": text_bytes,
        "validation_bytes": held_bytes,
    }
    (folder / "meta.json").write_text(json.dumps(meta, indent=2), encoding="utf-8")


def id_type(tokenizer: Tokenizer) -> np.dtype[Any]:
    return np.dtype(np.uint16 if tokenizer.vocab_size <= 1 << 16 else np.uint32)


def _encode(source: Source, tokenizer: Tokenizer, path: Path, bar: Progress) -> tuple[np.ndarray, np.ndarray]:
    """Write the ids of all documents, each ended by eos where there is one.

    Returns:
        of each document, where it starts and how many UTF-8 bytes of text it has.
    """
    ends, sizes, size, written = [0], list[int](), 0, 0
    eos = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    dtype = id_type(tokenizer)
    task = bar.add_task(f"tokenising {source.name}", total=source.size())
    with path.open("wb") as file:
        for pieces in _together(source.pieces()):
            texts = [piece.text for piece in pieces]
            for piece, ids in zip(pieces, tokenizer.encode_batch(texts), strict=True):
                file.write(ids.astype(dtype).tobytes())
                n_bytes = len(piece.text.encode())
                written, size = written + len(ids), size + n_bytes
                bar.advance(task, n_bytes)
                if piece.last:
                    file.write(np.array(eos, dtype).tobytes())
                    written += len(eos)
                    ends.append(written)
                    sizes.append(size)
                    size = 0
    return np.array(ends[:-1], dtype=np.int64), np.array(sizes, dtype=np.int64)


def _together(pieces: Iterator[Piece]) -> Iterator[list[Piece]]:
    """Pieces in lists of about `AT_ONCE` characters."""
    gathered, size = list[Piece](), 0
    for piece in pieces:
        gathered.append(piece)
        size += len(piece.text)
        if size >= AT_ONCE:
            yield gathered
            gathered, size = [], 0
    if gathered:
        yield gathered


def _count_bytes(path: Path, tokenizer: Tokenizer) -> int:
    ids = np.memmap(path, id_type(tokenizer), mode="r")
    return sum(tokenizer.count_bytes(ids[start : start + AT_ONCE]) for start in range(0, len(ids), AT_ONCE))


def _whole(folder: Path) -> bool:
    """Whether the folder is there with every file at its full size."""
    try:
        files = json.loads((folder / "meta.json").read_text(encoding="utf-8"))["files"]
        return all((folder / name).stat().st_size == size for name, size in files.items())
    except (OSError, ValueError, KeyError):
        return False


def _load(folder: Path, *, name: str, content: str, tokenizer: Tokenizer) -> Corpus:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    return Corpus(
        name=name,
        hash=content,
        tokenizer=tokenizer,
        train=np.memmap(folder / "train.bin", meta["dtype"], mode="r"),
        validation=np.memmap(folder / "validation.bin", meta["dtype"], mode="r"),
        train_documents=np.load(folder / "train_documents.npy"),
        validation_documents=np.load(folder / "validation_documents.npy"),
        train_bytes=meta["train_bytes"],
        validation_bytes=meta["validation_bytes"],
    )


@contextmanager
def _appearing(folder: Path) -> Generator[Path]:
    """A temporary folder that becomes `folder` at the end, unless another process was first."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)  # what is there is not whole, or we should not be here
    new = Path(tempfile.mkdtemp(dir=folder.parent, prefix=".new-"))
    try:
        yield new
        try:
            os.replace(new, folder)
        except OSError:
            if not _whole(folder):
                raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


@contextmanager
def _disk_errors_told() -> Generator[None]:
    try:
        yield
    except OSError as error:
        reason = "the disk is full" if error.errno == errno.ENOSPC else error.strerror or str(error)
        raise UserError(
            f"cannot write to the cache {cache_folder()}: {reason}; make room, or set TERCET_CACHE to another folder"
        ) from None


def _bar(*, shown: bool) -> Progress:
    columns = TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TimeRemainingColumn()
    return Progress(*columns, console=Console(stderr=True), transient=True, disable=not (shown and sys.stderr.isatty()))


def _digest(*parts: object) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
