"""From a unit of inputs to shards, one after another; a killed writer goes on behind the last one that is whole.

A shard is cut where a document ends, once it has `shard_tokens`; a document that goes on for a quarter more is cut
where a piece of it ends. Its record is written last, with hashes and how far the inputs were read: from there the next
one begins, whoever writes it.
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
from tercet.storage import DamagedFile, FileHash, read_sealed_json, write_atomically, write_sealed_json
from tercet.tokens import Tokenizer

CHUNK_CHARACTERS = 1 << 21  # tokenised together: some 60 bytes each while that lasts
BLOCK = 1 << 21  # bytes of ids that are hashed, counted and written together
LONGEST = 1.25  # shards; a document that makes one longer is cut


@dataclass(frozen=True, kw_only=True)
class ReadPosition:
    """How far a unit is read: `pieces` pieces of the input number `input`.

    Attributes:
        first_piece: the hash of the first piece of the document that is written in part.
        last: the last id of that document.
        ended: whether nothing is left.
    """

    input: int = 0
    pieces: int = 0
    first_piece: int | None = None
    last: int | None = None
    ended: bool = False


@dataclass(frozen=True, kw_only=True)
class PartRecord:
    """One side of a shard, with the size and the hash of its two files; for its numbers see `token_folder.Part`."""

    tokens: int
    documents: int
    starts: int
    bytes: int
    ids_hash: FileHash
    starts_hash: FileHash


class ShardRecord(NamedTuple):
    """What was written of a shard, with the hash of its file of counts, and where the next begins."""

    name: str
    parts: dict[Side, PartRecord]
    counts_hash: FileHash
    end: ReadPosition


@dataclass(frozen=True, kw_only=True)
class ShardSettings:
    """Args:
    folder: for the shards.
    validation_share: of the documents, drawn by the hash of the first piece of their text, so that equal ones are on
        one side.
    """

    folder: Path
    tokenizer: Tokenizer
    shard_tokens: int
    validation_share: float | None

    @property
    def dtype(self) -> np.dtype[Any]:
        return id_dtype(self.tokenizer).newbyteorder("<")


def write_unit(unit: Unit, settings: ShardSettings) -> None:
    """Write the shards of a unit that are not there yet.

    Raises:
        UserError: where an input cannot be read, or was changed meanwhile, or the disk is full.
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
    """The records of a unit, as far as one follows the other."""
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
            return records  # written anew


def record_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def ids_path(folder: Path, name: str, side: Side) -> Path:
    return folder / f"{name}.{side}.bin"


def starts_path(folder: Path, name: str, side: Side) -> Path:
    return folder / f"{name}.{side}.documents.npy"


def counts_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.counts.npy"


def array_bytes(array: np.ndarray) -> bytes:
    """A `.npy` file of it."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def _read_pieces(
    unit: Unit, tokenizer: Tokenizer, start: ReadPosition
) -> Iterator[tuple[EncodedPiece, int, ReadPosition]]:
    """The pieces from `start` on, each with the hash of its document's first one, and how far the unit is read then."""
    for number in range(start.input, len(unit.inputs)):
        pieces, first_piece = (start.pieces, start.first_piece) if number == start.input else (0, None)
        source = unit.inputs[number].source
        for piece in encode_pieces(source, tokenizer, skip=pieces, characters=CHUNK_CHARACTERS):
            document = piece.text_hash if first_piece is None else first_piece
            pieces, first_piece = pieces + 1, None if piece.last else document
            yield piece, document, ReadPosition(input=number, pieces=pieces, first_piece=first_piece)


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
        raise UserError(f"{unit.inputs[0].source.name} or a file after it was changed while it was read; begin anew")
    record = {**parts, "counts_hash": astuple(FileHash.from_bytes(counts)), "end": asdict(shard.end)}
    write_sealed_json(record_path(folder, name), record)
    return shard.end


class _Shard:
    """The ids of a shard while they are written.

    Attributes:
        other_side: The side that the unit is not of, to which some of its documents may be drawn.
        end: How far the unit is read.
    """

    def __init__(self, unit: Unit, settings: ShardSettings, start: ReadPosition) -> None:
        self._unit, self._settings, self._start = unit, settings, start
        self.other_side: Side = "validation" if unit.side == "train" else "train"
        self.end = start
        self.sinks = dict[Side, _IdSink]()
        self.writers = dict[Side, DocumentWriter]()
        self._continued = dict.fromkeys(SIDES, 0)  # documents that began in the shard before

    def fill(
        self, file: BinaryIO, other_file: BinaryIO, pieces: Iterator[tuple[EncodedPiece, int, ReadPosition]]
    ) -> None:
        """Write ids of the unit's side to `file`, and those of the other side to `other_file`, until it is full."""
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
            full = self._settings.shard_tokens * (1 if piece.last else LONGEST)
            if total >= full:
                break
        else:
            self.end = ReadPosition(input=len(self._unit.inputs), ended=True)
        for sink in self.sinks.values():
            sink.flush()

    def describe(self, side: Side) -> dict[str, Any]:
        """Return the record of a side, as far as it is about its ids."""
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
    """A file of ids, which are counted and hashed as they are written.

    Attributes:
        counts: (V,) of each id.
        size: in bytes.
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
