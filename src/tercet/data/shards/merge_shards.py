"""Merge of the shards of all units into one folder of tokens.

Each step can be repeated after a kill: a shard is moved atomically, and files that are copied are removed only at the
end. The manifest is written last.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from tercet.config import UserError
from tercet.data.shards.shard_inputs import Unit
from tercet.data.shards.shard_writer import (
    ShardRecord,
    ShardSettings,
    array_bytes,
    counts_path,
    ids_path,
    read_records,
    record_path,
    starts_path,
)
from tercet.data.shards.token_folder import COUNTS, TOKENIZER, VALIDATION, Contents, Part, roles_of
from tercet.data.specs import Side
from tercet.data.split_specs import DocumentSplit, Tail
from tercet.storage import (
    MANIFEST,
    DamagedFile,
    FileHash,
    Manifest,
    report_write_errors,
    write_atomically,
    write_sealed_json,
)

BLOCK_IDS = 1 << 22  # ids copied together


@dataclass(frozen=True, kw_only=True)
class _Piece:
    """Ids `start` to `end` (exclusive) of one side of a shard."""

    record: ShardRecord
    side: Side
    start: int
    end: int

    @property
    def is_whole(self) -> bool:
        return self.start == 0 and self.end == self.record.parts[self.side].tokens

    @property
    def tokens(self) -> int:
        return self.end - self.start


def merge_shards(
    out: Path,
    units: Sequence[Unit],
    settings: ShardSettings,
    validation: DocumentSplit,
    *,
    made_from: str,
) -> Contents:
    """Merge the shards into the folder `out`, and return its contents.

    Args:
        out: Folder to write.
        units: All units, whose shards are complete.
        settings: Settings of the shards.
        validation: Split of the data. With `Tail`, the last tokens of the training side become the validation part.
        made_from: Hash of the inputs and the settings, for the manifest.

    Raises:
        UserError: If a part has no tokens, a file is missing or damaged, or the disk is full.
    """
    records = [record for unit in units for record in read_records(settings.folder, unit.number)]
    train, held_out = _divide(records, validation)
    tokens = sum(piece.tokens for piece in train)
    for side, pieces, remedy in (
        ("training", train, "use more text"),
        ("validation", held_out, "increase data.validation.fraction, or set data.validation to {kind: tail}"),
    ):
        if not sum(piece.tokens for piece in pieces):
            raise UserError(f"none of the {tokens:,} tokens is for {side}; {remedy}")
    merge = _Merge(out, settings)
    files, shards = dict[str, FileHash](), list[Part]()
    held_out_part = merge.copy(VALIDATION, held_out, files)
    counts = np.sum([merge.read_counts(record) for record in records], axis=0)
    if isinstance(validation, Tail):
        counts = counts - merge.count_ids(held_out_part)
    for number, piece in enumerate(train):
        name = f"train-{number:05d}"
        shards.append(merge.move(name, piece, files) if piece.is_whole else merge.copy(name, [piece], files))
    for name, data in ((TOKENIZER, settings.tokenizer.to_json().encode()), (COUNTS, array_bytes(counts))):
        write_atomically(out / name, data)
        files[name] = FileHash.from_path(out / name)
    contents = Contents(
        dtype=settings.dtype,
        tokenizer_hash=settings.tokenizer.hash,
        roles=roles_of(settings.tokenizer),
        shards=tuple(shards),
        validation=held_out_part,
        files=Manifest(dict(sorted(files.items()))),
        made_from=made_from,
    )
    write_sealed_json(out / MANIFEST, contents.to_plain())
    return contents


def _divide(records: Sequence[ShardRecord], validation: DocumentSplit) -> tuple[list[_Piece], list[_Piece]]:
    """Return the pieces of the training part, and of the validation part."""
    pieces = {
        side: [
            _Piece(record=record, side=side, start=0, end=tokens)
            for record in records
            if (tokens := record.parts[side].tokens)
        ]
        for side in ("train", "validation")
    }
    if not isinstance(validation, Tail):
        return pieces["train"], pieces["validation"]
    left = int(sum(piece.tokens for piece in pieces["train"]) * (1 - validation.fraction))
    train, tail = list[_Piece](), list[_Piece]()
    for piece in pieces["train"]:
        cut = min(left, piece.end)
        left -= cut
        parts = ((train, 0, cut), (tail, cut, piece.end))
        for side, start, end in parts:
            if end > start:
                side.append(_Piece(record=piece.record, side="train", start=start, end=end))
    return train, tail


class _Merge:
    def __init__(self, out: Path, settings: ShardSettings) -> None:
        self._out, self._settings, self._work = out, settings, settings.folder

    def move(self, name: str, piece: _Piece, files: dict[str, FileHash]) -> Part:
        """Move a complete shard to its final name, and add the hashes from when it was written to `files`."""
        record = piece.record.parts[piece.side]
        part = Part(
            name=name, tokens=record.tokens, documents=record.documents, starts=record.starts, bytes=record.bytes
        )
        for file, old, expected in (
            (part.ids_file, ids_path(self._work, piece.record.name, piece.side), record.ids_hash),
            (part.documents_file, starts_path(self._work, piece.record.name, piece.side), record.starts_hash),
        ):
            new = self._out / file
            with report_write_errors(new):
                if old.exists():
                    os.replace(old, new)
                if not new.exists() or new.stat().st_size != expected.size:
                    raise DamagedFile(f"{old} is missing or was changed; remove {self._out} and prepare it again")
            files[file] = expected
        return part

    def copy(self, name: str, pieces: Sequence[_Piece], files: dict[str, FileHash]) -> Part:
        """Copy pieces, such as several shards or a part of a shard, into one new part called `name`.

        Args:
            name: Name of the part.
            pieces: Pieces in the order of the part.
            files: Hashes of the files, to which those of the part's ids and document starts are added.

        Raises:
            DamagedFile: If a shard does not match its hash. Its record is removed, so that it is written again.
        """
        part_starts, position, documents, n_bytes = list[np.ndarray](), 0, 0, 0
        for piece in pieces:
            part_record = piece.record.parts[piece.side]
            self._check(piece.record, ids_path(self._work, piece.record.name, piece.side), part_record.ids_hash)
            path = starts_path(self._work, piece.record.name, piece.side)
            self._check(piece.record, path, part_record.starts_hash)
            starts = np.load(path, allow_pickle=False)
            inner_starts = starts[(starts > piece.start) & (starts < piece.end)] - piece.start
            part_starts.append(np.append(0, inner_starts) + position)  # a document that is cut starts in both parts
            position += piece.tokens
            record = piece.record.parts[piece.side]
            is_document_start = piece.start in starts if piece.start else record.documents == record.starts
            documents += len(inner_starts) + is_document_start
            n_bytes += self._count_bytes(piece)
        starts = np.concatenate(part_starts).astype(np.int64)
        part = Part(name=name, tokens=position, documents=documents, starts=len(starts), bytes=n_bytes)
        write_atomically(self._out / part.documents_file, array_bytes(starts))
        write_atomically(self._out / part.ids_file, lambda file: self._write(file, pieces))
        for file in (part.ids_file, part.documents_file):
            files[file] = FileHash.from_path(self._out / file)
        return part

    def read_counts(self, record: ShardRecord) -> np.ndarray:
        """Return the token counts (V,) of the training side of a shard."""
        path = counts_path(self._work, record.name)
        self._check(record, path, record.counts_hash)
        return np.load(path, allow_pickle=False)

    def _check(self, record: ShardRecord, path: Path, expected: FileHash) -> None:
        """Compare a file with its recorded hash, before its copy gets a new hash.

        Raises:
            DamagedFile: If they differ. The record of the shard is removed, so that it is written again.
        """
        try:
            is_whole = FileHash.from_path(path) == expected
        except OSError:
            is_whole = False
        if not is_whole:
            record_path(self._work, record.name).unlink(missing_ok=True)
            raise DamagedFile(f"{path} is damaged; run the same command again, which writes it again")

    def count_ids(self, part: Part) -> np.ndarray:
        """Return the token counts (V,) of a part that has been written."""
        ids = np.memmap(self._out / part.ids_file, self._settings.dtype, mode="r")
        vocab_size = self._settings.tokenizer.vocab_size
        blocks = (ids[start : start + BLOCK_IDS] for start in range(0, len(ids), BLOCK_IDS))
        return np.sum([np.bincount(block, minlength=vocab_size) for block in blocks], axis=0)

    def _count_bytes(self, piece: _Piece) -> int:
        """Return the bytes of a piece's text. If a shard is cut, its first piece has the total minus the rest."""
        record = piece.record.parts[piece.side]
        if piece.start == 0:
            rest = _Piece(record=piece.record, side=piece.side, start=piece.end, end=record.tokens)
            return record.bytes - (0 if piece.is_whole else self._count_bytes(rest))
        return sum(self._settings.tokenizer.count_bytes(block) for block in self._blocks(piece))

    def _write(self, file: BinaryIO, pieces: Sequence[_Piece]) -> None:
        for piece in pieces:
            for block in self._blocks(piece):
                file.write(block.tobytes())

    def _blocks(self, piece: _Piece) -> Iterator[np.ndarray]:
        ids = np.memmap(ids_path(self._work, piece.record.name, piece.side), self._settings.dtype, mode="r")
        for start in range(piece.start, piece.end, BLOCK_IDS):
            yield ids[start : min(start + BLOCK_IDS, piece.end)]
