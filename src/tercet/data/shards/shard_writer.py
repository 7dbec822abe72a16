"""Conversion of a unit of inputs to shards, which resumes after the last complete shard.

A shard ends at the end of a document, once it has `shard_tokens` tokens. If a document makes the shard longer than that
by a quarter, it is cut at the end of a piece. The shard's record is written last, with hashes and the position in the
inputs, from which any process can continue.
"""

import io
from collections.abc import Iterator
from dataclasses import asdict, astuple, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import xxhash

from tercet.config import UserError
from tercet.data.cache import id_dtype
from tercet.data.encode.document_ids import DocumentWriter, EncodedPiece, check_ids, encode_pieces
from tercet.data.shards.shard_inputs import Unit, stamps
from tercet.data.specs import SIDES, Side
from tercet.data.text_hashes import hash_text
from tercet.storage import DamagedFile, FileHash, read_sealed_json, write_atomically, write_sealed_json
from tercet.tokens import Tokenizer

CHUNK_CHARACTERS = 1 << 21  # characters tokenized in one call, which takes about 60 bytes of memory for each
BLOCK = 1 << 21  # bytes of ids that are hashed, counted and written together
MAX_SHARD_RATIO = 1.25  # size relative to `shard_tokens` at which a shard ends even within a document


@dataclass(frozen=True, kw_only=True)
class ReadPosition:
    """Position in a unit: after `pieces` pieces of the input number `input`.

    Attributes:
        first_piece: Hash of the first piece of the current document, if it is incomplete.
        last: Last id of the current document, if it is incomplete.
        ended: True if all inputs have been read.
    """

    input: int = 0
    pieces: int = 0
    first_piece: int | None = None
    last: int | None = None
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """One side of a shard: its numbers as in `token_folder.Part`, and the size and hash of each of its two files."""

    tokens: int
    documents: int
    starts: int
    bytes: int
    ids_hash: FileHash
    starts_hash: FileHash


class ShardRecord(NamedTuple):
    """Record of a complete shard: its sides, the hash of its token counts, and the position after it in the unit."""

    name: str
    parts: dict[Side, PartRecord]
    counts_hash: FileHash
    end: ReadPosition


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """Settings of all shards.

    Attributes:
        folder: Folder of the shards.
        tokenizer: Tokenizer of the ids.
        shard_tokens: Approximate tokens per shard.
        validation_share: Share of the documents that are drawn for the validation part, or None to draw none. They are
            drawn by the hash of their first piece, so that equal documents are in the same part.
    """

    folder: Path
    tokenizer: Tokenizer
    shard_tokens: int
    validation_share: float | None

    @property
    def dtype(self) -> np.dtype[Any]:
        return id_dtype(self.tokenizer).newbyteorder("<")


def write_unit(unit: Unit, settings: ShardSettings) -> None:
    """Write the missing shards of a unit.

    Raises:
        UserError: If an input cannot be read or tokenized, or is changed while it is read, or the disk is full.
    """
    records = read_records(settings.folder, unit.number)
    end = records[-1].end if records else ReadPosition()
    initial_stamps = stamps(unit)
    for item in unit.inputs:
        check_ids(item.source, settings.tokenizer)
    pieces = _read_pieces(unit, settings.tokenizer, end)
    number = len(records)
    while not end.ended:
        end = _write_shard(shard_name(unit.number, number), unit, settings, pieces, end, initial_stamps)
        number += 1


def shard_name(unit: int, number: int) -> str:
    return f"{unit:06d}-{number:05d}"


def read_records(folder: Path, unit: int) -> list[ShardRecord]:
    """Return the consecutive records of a unit, up to the first missing or damaged one."""
    records = list[ShardRecord]()
    while True:
        name = shard_name(unit, len(records))
        path = record_path(folder, name)
        if not path.exists():
            return records
        try:
            data = read_sealed_json(path)
            parts: dict[Side, PartRecord] = {side: _parse_part(data[side]) for side in SIDES}
            records.append(ShardRecord(name, parts, FileHash(*data["counts_hash"]), ReadPosition(**data["end"])))
        except (DamagedFile, KeyError, TypeError):
            return records  # this shard is written again


def record_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def ids_path(folder: Path, name: str, side: Side) -> Path:
    return folder / f"{name}.{side}.bin"


def starts_path(folder: Path, name: str, side: Side) -> Path:
    return folder / f"{name}.{side}.documents.npy"


def counts_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.counts.npy"


def array_bytes(array: np.ndarray) -> bytes:
    """Return the array as the bytes of a `.npy` file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _read_pieces(
    unit: Unit, tokenizer: Tokenizer, start: ReadPosition
) -> Iterator[tuple[EncodedPiece, int, ReadPosition]]:
    """Yield the pieces from `start` on, each with the hash of its document's first piece and the position after it."""
    for number in range(start.input, len(unit.inputs)):
        pieces, first_piece = (start.pieces, start.first_piece) if number == start.input else (0, None)
        source = unit.inputs[number].source
        for piece in encode_pieces(source, tokenizer, skip=pieces, characters=CHUNK_CHARACTERS):
            document = _hash_document(piece) if first_piece is None else first_piece
            pieces, first_piece = pieces + 1, None if piece.last else document
            yield piece, document, ReadPosition(input=number, pieces=pieces, first_piece=first_piece)


def _hash_document(piece: EncodedPiece) -> int:
    """Return a hash of a document's group, or of its first piece if it has none."""
    return hash_text(piece.group) if piece.group else piece.text_hash


def _write_shard(
    name: str,
    unit: Unit,
    settings: ShardSettings,
    pieces: Iterator[tuple[EncodedPiece, int, ReadPosition]],
    start: ReadPosition,
    initial_stamps: list[Any],
) -> ReadPosition:
    folder, shard = settings.folder, _Shard(unit, settings, start)
    other_ids = io.BytesIO()
    write_atomically(ids_path(folder, name, unit.side), lambda file: shard.fill(file, other_ids, pieces))
    write_atomically(ids_path(folder, name, shard.other_side), other_ids.getvalue())
    parts = dict[str, Any]()
    for side in SIDES:
        starts = array_bytes(np.array(shard.writers[side].starts, dtype=np.int64))
        write_atomically(starts_path(folder, name, side), starts)
        parts[side] = shard.describe(side) | {"starts_hash": astuple(FileHash.from_bytes(starts))}
    counts = array_bytes(shard.sinks["train"].counts)
    write_atomically(counts_path(folder, name), counts)
    if stamps(unit) != initial_stamps:
        raise UserError(
            f"{unit.inputs[0].source.name} or a file after it was changed while it was read; "
            "try again when it is complete"
        )
    record = {**parts, "counts_hash": astuple(FileHash.from_bytes(counts)), "end": asdict(shard.end)}
    write_sealed_json(record_path(folder, name), record)
    return shard.end


class _Shard:
    """Ids of a shard that is being written.

    Attributes:
        other_side: Side that is not the unit's own, for which some of the unit's documents may be drawn.
        end: Position in the unit after the last piece written.
        sinks, writers: Counter of ids and writer of documents for each side.
    """

    def __init__(self, unit: Unit, settings: ShardSettings, start: ReadPosition) -> None:
        self._unit, self._settings, self._start = unit, settings, start
        self.other_side: Side = "validation" if unit.side == "train" else "train"
        self.end = start
        self.sinks = dict[Side, _IdSink]()
        self.writers = dict[Side, DocumentWriter]()
        self._continued = dict.fromkeys(SIDES, 0)  # number of documents that started in the previous shard

    def fill(
        self, file: BinaryIO, other_file: BinaryIO, pieces: Iterator[tuple[EncodedPiece, int, ReadPosition]]
    ) -> None:
        """Write the ids of the unit's side to `file` and others to `other_file`, until the shard is full."""
        tokenizer, dtype = self._settings.tokenizer, self._settings.dtype
        outputs: dict[Side, BinaryIO] = {self._unit.side: file, self.other_side: other_file}
        for side, output in outputs.items():
            self.sinks[side] = _IdSink(output, dtype, tokenizer.vocab_size)
            self.writers[side] = DocumentWriter(self.sinks[side], tokenizer, dtype=dtype)
        is_first = True
        for piece, document, position in pieces:
            writer = self.writers[side := self._choose_side(document)]
            if is_first:
                writer.last, is_first = self._start.last, False
                self._continued[side] = int(self._start.last is not None)
            writer.write(piece.ids, piece.n_bytes)
            if piece.last:
                writer.end()
            self.end = replace(position, last=writer.last)
            total = sum(item.n_ids for item in self.writers.values())
            full = self._settings.shard_tokens * (1 if piece.last else MAX_SHARD_RATIO)
            if total >= full:
                break
        else:
            self.end = ReadPosition(input=len(self._unit.inputs), ended=True)
        for sink in self.sinks.values():
            sink.flush()

    def describe(self, side: Side) -> dict[str, Any]:
        """Return the fields of a side's record that describe its ids."""
        writer, sink = self.writers[side], self.sinks[side]
        return {
            "tokens": writer.n_ids,
            "documents": len(writer.starts) - self._continued[side],
            "starts": len(writer.starts),
            "bytes": writer.n_bytes,
            "ids_hash": [sink.size, sink.hash.hexdigest()],
        }

    def _choose_side(self, document: int) -> Side:
        share = self._settings.validation_share
        return self.other_side if share is not None and document < share * 2**64 else self._unit.side


class _IdSink:
    """File of ids, which are counted and hashed while they are written.

    Attributes:
        counts: (V,) number of occurrences of each id.
        hash: Hash of the bytes written so far.
        size: Number of bytes written so far.
    """

    def __init__(self, file: BinaryIO, dtype: np.dtype[Any], vocab_size: int) -> None:
        self._file, self._dtype, self._block = file, dtype, bytearray()
        self.counts, self.hash, self.size = np.zeros(vocab_size, np.int64), xxhash.xxh3_128(), 0

    def write(self, data: bytes, /) -> None:
        self._block += data
        if len(self._block) >= BLOCK:
            self.flush()

    def flush(self) -> None:
        self._file.write(self._block)
        self.hash.update(self._block)
        self.size += len(self._block)
        self.counts += np.bincount(np.frombuffer(self._block, self._dtype), minlength=len(self.counts))
        self._block = bytearray()


def _parse_part(data: Any) -> PartRecord:
    return PartRecord(
        tokens=data["tokens"],
        documents=data["documents"],
        starts=data["starts"],
        bytes=data["bytes"],
        ids_hash=FileHash(*data["ids_hash"]),
        starts_hash=FileHash(*data["starts_hash"]),
    )
