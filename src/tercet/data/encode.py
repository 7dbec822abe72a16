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
from tercet.tokens import Tokenizer
from tercet.tokens.sequences import beyond_error


class SupportsWrite(Protocol):
    """A file, or a buffer."""

    def write(self, data: bytes, /) -> object: ...


class EncodedPiece(NamedTuple):
    """The ids (N,) of a part of a document, perhaps none, and the UTF-8 bytes of its text; `last` where it ends."""

    ids: np.ndarray[Any, Any]
    n_bytes: int
    last: bool


def encode_source(
    source: DocumentSource | IdFile, tokenizer: Tokenizer, path: Path, bar: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """Write the ids of all documents.

    Returns:
        of each document, where it starts and how many UTF-8 bytes of text it has.
    """
    is_text = not isinstance(source, IdFile)
    task = bar.add_task(
        f"{'tokenising' if is_text else 'reading'} {source.name}", total=source.size() if is_text else None
    )
    with path.open("wb") as file:
        written = DocumentWriter(file, tokenizer)
        for piece in encode_pieces(source, tokenizer):
            written.write(piece.ids, piece.n_bytes)
            bar.advance(task, piece.n_bytes if is_text else piece.ids.nbytes)
            if piece.last:
                written.end()
    return np.array(written.ends[:-1], dtype=np.int64), np.array(written.sizes, dtype=np.int64)


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
            yield EncodedPiece(ids, len(piece.text.encode()), piece.last)


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
            yield EncodedPiece(ids[start:end], tokenizer.count_bytes(ids[start:end]), last=True)
        rest = ids[cuts[-1] if cuts else 0 :]
        is_open = bool(len(rest)) or (is_open and not cuts)
        if is_open and (len(rest) or last):
            yield EncodedPiece(rest, tokenizer.count_bytes(rest), last)
        is_open = is_open and not last
