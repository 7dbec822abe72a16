"""From documents, or from ids that were made elsewhere, to one file of ids.

Each document is ended by eos where there is one, and begun by bos where tokens are masked.
"""

from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
from rich.progress import Progress

from tercet.config import UserError
from tercet.data.cache import chunk_items, id_dtype
from tercet.data.id_files import IdFile
from tercet.data.sources import DocumentSource
from tercet.tokens import Tokenizer
from tercet.tokens.sequences import beyond_error


def encode_source(
    source: DocumentSource | IdFile, tokenizer: Tokenizer, path: Path, bar: Progress
) -> tuple[np.ndarray, np.ndarray]:
    """Write the ids of all documents.

    Returns:
        of each document, where it starts and how many UTF-8 bytes of text it has.
    """
    with path.open("wb") as file:
        written = _Documents(file, tokenizer)
        if isinstance(source, IdFile):
            _copy(source, tokenizer, written, bar)
        else:
            _encode(source, tokenizer, written, bar)
    return np.array(written.ends[:-1], dtype=np.int64), np.array(written.sizes, dtype=np.int64)


def beginning_ids(tokenizer: Tokenizer) -> list[int]:
    """What stands before each document: bos for a model that fills masks, which reads a text between bos and eos."""
    return [] if tokenizer.mask_id is None or tokenizer.bos_id is None else [tokenizer.bos_id]


def check_ids(source: DocumentSource | IdFile, tokenizer: Tokenizer) -> None:
    """Raises UserError where a file has ids that the tokenizer does not; it is read through for that."""
    if isinstance(source, IdFile) and (largest := source.largest()) >= tokenizer.id_limit:
        raise UserError(f"{source.name}: {beyond_error(str(largest), tokenizer.id_limit)}")


class _Documents:
    """The documents that are written so far; what begins with bos already, or ends with eos, gets no second one.

    Attributes:
        ends: position in the file at which each ends, and 0 before the first.
        sizes: UTF-8 bytes of each.
    """

    def __init__(self, file: IO[bytes], tokenizer: Tokenizer) -> None:
        self._file, self._dtype = file, id_dtype(tokenizer)
        self._bos, self._eos = next(iter(beginning_ids(tokenizer)), None), tokenizer.eos_id
        self.ends, self.sizes = [0], list[int]()
        self._written = self._size = 0
        self._last: int | None = None

    @property
    def is_open(self) -> bool:
        """Whether something is written of a document that has not ended."""
        return self._written > self.ends[-1]

    def write(self, ids: np.ndarray[Any, Any], n_bytes: int) -> None:
        """The next ids of a document, and how many bytes they stand for."""
        if self._bos is not None and not self.is_open and not (len(ids) and ids[0] == self._bos):
            self._append(np.array([self._bos]))
        self._append(ids)
        self._size += n_bytes
        if len(ids):
            self._last = int(ids[-1])

    def end(self) -> None:
        if self._eos is not None and self._last != self._eos:
            self._append(np.array([self._eos]))
        self.ends.append(self._written)
        self.sizes.append(self._size)
        self._size, self._last = 0, None

    def _append(self, ids: np.ndarray[Any, Any]) -> None:
        self._file.write(ids.astype(self._dtype).tobytes())
        self._written += len(ids)


def _encode(source: DocumentSource, tokenizer: Tokenizer, written: _Documents, bar: Progress) -> None:
    task = bar.add_task(f"tokenising {source.name}", total=source.size())
    for pieces in chunk_items(source.pieces(), lambda piece: len(piece.text)):
        texts = [piece.text for piece in pieces]
        for piece, ids in zip(pieces, tokenizer.encode_batch(texts), strict=True):
            n_bytes = len(piece.text.encode())
            written.write(ids, n_bytes)
            bar.advance(task, n_bytes)
            if piece.last:
                written.end()


def _copy(source: IdFile, tokenizer: Tokenizer, written: _Documents, bar: Progress) -> None:
    """Each list of ids is a document, and so is what stands between two eos of a list."""
    task = bar.add_task(f"reading {source.name}", total=None)
    for ids, last in source.blocks():
        cuts = [] if tokenizer.eos_id is None else (np.flatnonzero(ids == tokenizer.eos_id) + 1).tolist()
        for start, end in pairwise([0, *cuts]):
            written.write(ids[start:end], tokenizer.count_bytes(ids[start:end]))
            written.end()
        if len(rest := ids[cuts[-1] if cuts else 0 :]):
            written.write(rest, tokenizer.count_bytes(rest))
        if last and written.is_open:
            written.end()
        bar.advance(task, ids.nbytes)
