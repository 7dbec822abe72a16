"""Text to ids, once: the ids stand memory-mapped in a cache folder, under a name made from all that they depend on."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.progress import Progress

from tercet.cache_dir import cache_dir
from tercet.config import UserError, to_plain
from tercet.data.cache import (
    CHUNK_CHARACTERS,
    FORMAT,
    Snapshot,
    check_hash,
    create_atomically,
    digest,
    id_dtype,
    is_complete,
    load_or_train_tokenizer,
    progress_bar,
    report_disk_errors,
    write_meta,
)
from tercet.data.corpora.corpus import Corpus
from tercet.data.corpora.id_split import split_documents, split_tail
from tercet.data.corpora.prepared import is_prepared, prepared_corpus
from tercet.data.datasets.text_datasets import find_text
from tercet.data.encode.document_ids import check_ids, encode_source, encoding_key
from tercet.data.sources.documents import DocumentFiles, DocumentSource
from tercet.data.sources.formats import describe_left_out
from tercet.data.sources.id_files import IdFile
from tercet.data.specs import Documents, HeldOut, Tail, TextSpec
from tercet.data.text_hashes import count_near
from tercet.messages import print_note
from tercet.tokens import PlainIds, Tokenizer, TokenizerSpec


def prepare(
    spec: TextSpec,
    *,
    tokenizer: Tokenizer | None = None,
    expected_hash: str | None = None,
    progress: bool = False,
) -> Corpus:
    """The corpus that `spec` describes, from the cache where it is there.

    Args:
        tokenizer: takes the place of `spec.tokenizer`, as when a trained model meets new text.
        expected_hash: Hash that the data must have. It is compared before any text is tokenized, printed or cached.
        progress: show a bar on stderr, where that is a terminal.

    Raises:
        ChangedData: If the data does not have the expected hash.
        UserError: where text cannot be read, tokenised or divided, or the cache cannot be written.
    """
    if is_prepared(spec):
        return prepared_corpus(spec, tokenizer=tokenizer, expected_hash=expected_hash)
    source, held_out = find_text(spec), None
    if isinstance(spec.validation, HeldOut):
        held_out = find_text(spec, spec.validation.source)
    sources = [some for some in (source, held_out) if some]
    snapshots = [Snapshot(some) for some in sources]
    hashes = [snapshot.hash for snapshot in snapshots]
    content = hashes[0] if len(hashes) == 1 else digest(*hashes)
    check_hash(spec.source, content, expected_hash)
    settings = [spec.encoding, spec.text_field, *_later_settings(spec)]
    with report_disk_errors():
        tokenizer = tokenizer or load_or_train_tokenizer(
            spec.tokenizer, lambda: _texts(source, spec.tokenizer), digest(FORMAT, hashes[0], settings), snapshots[:1]
        )
        if tokenizer.prefix_space:  # each piece of a document would get a space, and a continuation lose one
            raise UserError("prefix_space is for sentence pairs, not for running text; leave it out of data.tokenizer")
        # Corpora of documents that were divided before equal ones went together have another key.
        together = ["equal documents together"] if isinstance(spec.validation, Documents) else []
        key = digest(
            FORMAT, content, settings, to_plain(spec.validation), tokenizer.hash, sys.byteorder,
            *encoding_key(tokenizer), *together,
        )  # fmt: skip
        folder = cache_dir() / "corpora" / key[:32]
        if not is_complete(folder):
            _hint_at_lines(source)
            for some in sources:
                _report_left_out(some)
                check_ids(some, tokenizer)
            with create_atomically(folder, snapshots) as new, progress_bar(shown=progress) as bar:
                _write(new, spec, source, held_out, tokenizer, bar)
    return _load(folder, name=spec.source, content=content, tokenizer=tokenizer)


def _later_settings(spec: TextSpec) -> list[Any]:
    """How files are read beyond what the first caches knew: nothing where all is as it was then."""
    default = TextSpec(source=spec.source).file_settings
    return [
        {name: value}
        for name, value in spec.file_settings.items()
        if name not in ("encoding", "text_field") and value != default[name]
    ]


def _texts(source: DocumentSource | IdFile, tokenizer: TokenizerSpec) -> Iterator[str]:
    """What a vocabulary is learnt from: of ids the largest one, which says how many there are."""
    if not isinstance(source, IdFile):
        yield from (piece.text for piece in source.pieces())
    elif isinstance(tokenizer, PlainIds):
        yield str(source.largest())
    else:
        raise UserError(
            f"{source.name} holds ids, and data.tokenizer ({tokenizer.kind}) is learnt from text; set it to "
            "{kind: ids}, or to {kind: file, path: TOKENIZER.json} where there is the one that made them"
        )


def _hint_at_lines(source: DocumentSource | IdFile) -> None:
    if isinstance(source, DocumentFiles) and source.looks_like_lines():
        print_note(
            f"tercet: {source.name} looks like a document on each line, and is read as one document; "
            "with data.documents: line (--documents line) each line is one"
        )


def _report_left_out(source: DocumentSource | IdFile) -> None:
    if isinstance(source, DocumentFiles) and (left_out := source.left_out()):
        print_note(
            f"tercet: {source.name} has files that are not read: {describe_left_out(left_out)}; to read them, give "
            "their text as .txt, .jsonl or .csv"
        )


def _write(
    folder: Path,
    spec: TextSpec,
    source: DocumentSource | IdFile,
    held_out: DocumentSource | IdFile | None,
    tokenizer: Tokenizer,
    bar: Progress,
) -> None:
    written = encode_source(source, tokenizer, folder / "train.bin", bar)
    starts, sizes, near = written.starts, written.sizes, written.near_hashes
    dtype, near_duplicates = id_dtype(tokenizer), 0
    text_bytes = int(sizes.sum())
    match spec.validation:
        case HeldOut():
            assert held_out is not None
            other = encode_source(held_out, tokenizer, folder / "validation.bin", bar)
            held_starts, held_bytes = other.starts, int(other.sizes.sum())
            near_duplicates = count_near(other.near_hashes, near)
        case Tail(fraction=fraction):
            starts, held_starts = split_tail(folder, starts, dtype, fraction)
            held_bytes = _count_bytes(folder / "validation.bin", tokenizer, held_starts)
            text_bytes -= held_bytes
        case Documents(fraction=fraction):
            (starts, held_starts), moved = split_documents(
                folder, starts, written.text_hashes, dtype, fraction, name=spec.source
            )
            held_bytes, near_duplicates = int(sizes[moved].sum()), count_near(near[moved], near[~moved])
            text_bytes -= held_bytes
    np.save(folder / "train_documents.npy", starts, allow_pickle=False)
    np.save(folder / "validation_documents.npy", held_starts, allow_pickle=False)
    meta = {
        "source": spec.source,
        "tokenizer": {"kind": tokenizer.kind, "vocab_size": tokenizer.vocab_size, "hash": tokenizer.hash},
        "dtype": dtype.name,
        "train_bytes": text_bytes,
        "validation_bytes": held_bytes,
        "near_duplicates": near_duplicates,
    }
    write_meta(folder, meta)


def _count_bytes(path: Path, tokenizer: Tokenizer, starts: np.ndarray) -> int:
    """The UTF-8 bytes of the text; if a document loses the space that was put before it, each document by itself."""
    ids = np.memmap(path, id_dtype(tokenizer), mode="r")
    if tokenizer.adds_prefix:
        return sum(tokenizer.count_bytes(document) for document in np.split(ids, starts[1:]))
    return sum(
        tokenizer.count_bytes(ids[start : start + CHUNK_CHARACTERS]) for start in range(0, len(ids), CHUNK_CHARACTERS)
    )


def _load(folder: Path, *, name: str, content: str, tokenizer: Tokenizer) -> Corpus:
    meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
    return Corpus(
        name=name,
        hash=content,
        tokenizer=tokenizer,
        train=np.memmap(folder / "train.bin", meta["dtype"], mode="r"),
        validation=np.memmap(folder / "validation.bin", meta["dtype"], mode="r"),
        train_documents=np.load(folder / "train_documents.npy", allow_pickle=False),
        validation_documents=np.load(folder / "validation_documents.npy", allow_pickle=False),
        train_bytes=meta["train_bytes"],
        validation_bytes=meta["validation_bytes"],
        near_duplicates=meta.get("near_duplicates", 0),  # of an older version: not counted
    )
