"""From documents, or from ids that were made elsewhere, to one file of ids.

Each document is ended by eos where there is one, and begun by bos where tokens are masked.
"""

from array import array
from collections.abc import Iterator
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from rich.progress import Progress

from tercet.config import UserError
from tercet.data.cache import chunk_items, id_dtype
from tercet.data.id_files import IdFile
from tercet.data.sources import DocumentSource
from tercet.data.splitting import hash_bytes
from tercet.tokens import Tokenizer
from tercet.tokens.sequences import beyond_error


class SupportsWrite(Protocol):
    """A file, or a buffer."""

    def write(self, data: bytes, /) -> object: ...


class EncodedPiece(NamedTuple):
    """A part of a document.

    Attributes:
        ids: (N,), perhaps none.
        n_bytes: of its text in UTF-8.
        last: whether the document ends with it.
        text_hash: of its text, or of the ids of a file that has no text.
    """

    ids: np.ndarray[Any, Any]
    n_bytes: int
    last: bool
    text_hash: int


class EncodedSource(NamedTuple):
    """What was written of a source.

    Attributes:
        starts: (D,) int64: where each document starts.
        sizes: (D,) int64: the UTF-8 bytes of its text.
        text_hashes: (D,) uint64: equal for documents of equal text.
    """

    starts: np.ndarray
    sizes: np.ndarray
    text_hashes: np.ndarray


def encode_source(source: DocumentSource | IdFile, tokenizer: Tokenizer, path: Path, bar: Progress) -> EncodedSource:
    """Write the ids of all documents."""
    is_text = not isinstance(source, IdFile)
    task = bar.add_task(
        f"{'tokenising' if is_text else 'reading'} {source.name}", total=source.size() if is_text else None
    )
    text_hashes, pieces = array("Q"), list[int]()
    with path.open("wb") as file:
        written = DocumentWriter(file, tokenizer)
        for piece in encode_pieces(source, tokenizer):
            written.write(piece.ids, piece.n_bytes)
            pieces.append(piece.text_hash)
            bar.advance(task, piece.n_bytes if is_text else piece.ids.nbytes)
            if piece.last:
                written.end()
                text_hashes.append(hash_bytes(array("Q", pieces).tobytes()))
                pieces.clear()
    return EncodedSource(
        starts=np.array(written.ends[:-1], dtype=np.int64),
        sizes=np.array(written.sizes, dtype=np.int64),
        text_hashes=np.array(text_hashes, dtype=np.uint64),
    )


def encode_pieces(
    source: DocumentSource | IdFile, tokenizer: Tokenizer, *, skip: int = 0, characters: int | None = None
) -> Iterator[EncodedPiece]:
    """All documents of a source, piece by piece.

    Args:
        skip: so many pieces are left out, and not tokenised either.
        characters: of text that is tokenised together.
    """
    if isinstance(source, IdFile):
        yield from islice(_cut_blocks(source, tokenizer), skip, None)
        return
    pieces = islice(source.pieces(), skip, None)
    for chunk in chunk_items(pieces, lambda piece: len(piece.text), characters):
        for piece, ids in zip(chunk, tokenizer.encode_batch([piece.text for piece in chunk]), strict=True):
            text = piece.text.encode()
            yield EncodedPiece(ids, len(text), piece.last, hash_bytes(text))


def beginning_ids(tokenizer: Tokenizer) -> list[int]:
    """What stands before each document: bos for a model that fills masks, which reads a text between bos and eos."""
    return [] if tokenizer.mask_id is None or tokenizer.bos_id is None else [tokenizer.bos_id]


def check_ids(source: DocumentSource | IdFile, tokenizer: Tokenizer) -> None:
    """Raises UserError where a file has ids that the tokenizer does not; it is read through for that."""
    if isinstance(source, IdFile) and (largest := source.largest()) >= tokenizer.id_limit:
        raise UserError(f"{source.name}: {beyond_error(str(largest), tokenizer.id_limit)}")


class DocumentWriter:
    """The documents that are written so far; what begins with bos already, or ends with eos, gets no second one.

    Attributes:
        ends: position in the file at which each ends, and 0 before the first.
        sizes: UTF-8 bytes of each.
        last: the last id of the document that has not ended.
    """

    def __init__(
        self,
        file: SupportsWrite,
        tokenizer: Tokenizer,
        *,
        dtype: np.dtype[Any] | None = None,
        last: int | None = None,
    ) -> None:
        """With `last` a document goes on here, of which this was the last id so far."""
        self._file, self._dtype = file, dtype or id_dtype(tokenizer)
        self._bos, self._eos = next(iter(beginning_ids(tokenizer)), None), tokenizer.eos_id
        self.ends, self.sizes, self.last = array("q", [0]), array("q"), last
        self.written = self._size = 0

    @property
    def is_open(self) -> bool:
        """Whether something is written of a document that has not ended."""
        return self.written > self.ends[-1] or self.last is not None

    @property
    def n_bytes(self) -> int:
        return sum(self.sizes) + self._size

    @property
    def starts(self) -> "array[int]":
        """Where each document starts, or goes on from another file."""
        return self.ends if self.written > self.ends[-1] else self.ends[:-1]

    def write(self, ids: np.ndarray[Any, Any], n_bytes: int) -> None:
        """The next ids of a document, and how many bytes they stand for."""
        if self._bos is not None and not self.is_open and not (len(ids) and ids[0] == self._bos):
            self._append(np.array([self._bos]))
        self._append(ids)
        self._size += n_bytes
        if len(ids):
            self.last = int(ids[-1])

    def end(self) -> None:
        if self._eos is not None and self.last != self._eos:
            self._append(np.array([self._eos]))
        self.ends.append(self.written)
        self.sizes.append(self._size)
        self._size, self.last = 0, None

    def _append(self, ids: np.ndarray[Any, Any]) -> None:
        self._file.write(ids.astype(self._dtype).tobytes())
        self.written += len(ids)


def _cut_blocks(source: IdFile, tokenizer: Tokenizer) -> Iterator[EncodedPiece]:
    """Each list of ids is a document, and so is what stands between two eos of a list."""
    is_open = False
    for ids, last in source.blocks():
        cuts = [] if tokenizer.eos_id is None else (np.flatnonzero(ids == tokenizer.eos_id) + 1).tolist()
        for start, end in pairwise([0, *cuts]):
            yield _encoded(ids[start:end], tokenizer, last=True)
        rest = ids[cuts[-1] if cuts else 0 :]
        is_open = bool(len(rest)) or (is_open and not cuts)
        if is_open and (len(rest) or last):
            yield _encoded(rest, tokenizer, last=last)
        is_open = is_open and not last


def _encoded(ids: np.ndarray[Any, Any], tokenizer: Tokenizer, *, last: bool) -> EncodedPiece:
    return EncodedPiece(ids, tokenizer.count_bytes(ids), last, hash_bytes(ids.tobytes()))
